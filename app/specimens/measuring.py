"""Measure a specimen: its shares from predictions and final blinded labels, stored until something changes."""

import hashlib
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.annotators.models.service import model_in_use
from app.cases.service import NamedLabel, blind_opinions, label_histories, read_outcomes
from app.context import ServiceContext
from app.database.tables import (
    Alias,
    Case,
    CaseChange,
    PolicyRow,
    ProvisionalLabel,
    ReaderModelInUse,
    Specimen,
    SpecimenKnowledge,
    SpecimenResult,
    SpecimenSignature,
    time_of,
)
from app.database.tables.values import SpecimenState
from app.http.errors import NotFound
from app.specimens.schemas import (
    ComponentsOut,
    DecidingCellOut,
    DifferenceOut,
    GroupShareOut,
    MeasuredShares,
    ShareOut,
    SpecimenReadsOut,
    ThresholdOut,
)
from app.triage.service import (
    SpecimenCells,
    cells_of_specimen,
    current_policy,
    differential_groups,
    reporting_groups,
    sum_values,
)
from ml.annotations import Annotations
from ml.messages import Message, from_json, to_json
from ml.specimens.cells import MOST_DRAWS, Group, NamedReads
from ml.specimens.cells import Specimen as SpecimenOfCells
from ml.specimens.laboratory import GroupKnowledge, Laboratory
from ml.specimens.own_mix import FEWEST_FOR_OWN_MIX
from ml.specimens.reads import choose_reads
from ml.specimens.shares import GroupShare, Share, SpecimenShares, ThresholdDecision, measure_specimen

#: Deciding cells that are listed.
MOST_DECIDING = 10
# specimens whose results the worker keeps fresh, the newest first, and those of one round
_TENDED, _OF_ROUND = 1000, 50

_NO_MIX = Message("the release's card has no class frequencies: all classes count as equally frequent")


@dataclass(frozen=True)
class Measured:
    """What is computed of a specimen; the defaults are those of one without cells."""

    shares: MeasuredShares = field(default_factory=MeasuredShares)
    state: SpecimenState = "open"
    release_id: uuid.UUID | None = None
    cells: tuple[str, ...] = ()
    class_probs: bytes = b""


class Basis(NamedTuple):
    """Number of a specimen's cells that are not erased, and digest of everything that its numbers follow from."""

    n_cells: int
    digest: str


def bases_of(session: Session, specimen_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, Basis]:
    """What the numbers of each specimen follow from."""
    newest = (
        select(Case.specimen_id, func.count(Case.id.distinct()), func.max(CaseChange.sequence))
        .outerjoin(CaseChange, CaseChange.case_id == Case.id)
        .where(Case.specimen_id.in_(specimen_ids), Case.erased_at.is_(None))
        .group_by(Case.specimen_id)
    )
    of_cells = {row[0]: (row[1], row[2]) for row in session.execute(newest)}
    of_all = [
        session.execute(statement).scalar_one_or_none()
        for statement in (
            select(func.max(PolicyRow.version)),
            select(Alias.revision).where(Alias.name == "champion"),
            select(ReaderModelInUse.revision),
            select(func.max(SpecimenKnowledge.version)),
        )
    ]
    bases = {}
    for one in specimen_ids:
        digest = hashlib.sha256(repr((of_cells.get(one), of_all)).encode()).hexdigest()
        bases[one] = Basis(of_cells.get(one, (0,))[0], digest)
    return bases


def existing_specimen(session: Session, specimen_id: uuid.UUID) -> Specimen:
    """A specimen that is not erased."""
    specimen = session.get(Specimen, specimen_id)
    if specimen is None or specimen.erased_at is not None:
        raise NotFound("there is no such specimen")
    return specimen


def knowledge_of(session: Session, release_id: uuid.UUID) -> SpecimenKnowledge | None:
    """What is stored of what specimens taught under the predictions of a release."""
    newest = select(SpecimenKnowledge).where(SpecimenKnowledge.release_id == release_id)
    return session.execute(newest.order_by(SpecimenKnowledge.version.desc()).limit(1)).scalar_one_or_none()


def laboratory_of(session: Session, release_id: uuid.UUID) -> Laboratory:
    """What the laboratory's specimens taught under the predictions of a release."""
    row = knowledge_of(session, release_id)
    if row is None:
        return Laboratory()
    groups = {name: (group["tilt"], group["shift"], group["n_specimens"]) for name, group in row.groups.items()}
    return Laboratory(row.kappa, {name: GroupKnowledge(*group) for name, group in groups.items()})


def final_opinions(
    session: Session, case_ids: Sequence[uuid.UUID], *, before_reveal: bool = False
) -> dict[uuid.UUID, list[NamedLabel]]:
    """Final blind opinions of cells, one per annotator; all that they had before the reveal, or those that stand."""
    waiting = select(ProvisionalLabel.case_id, ProvisionalLabel.annotator_id).where(
        ProvisionalLabel.case_id.in_(case_ids), ProvisionalLabel.purpose == "read"
    )
    provisional = {(row[0], row[1]) for row in session.execute(waiting)}
    histories = label_histories(session, case_ids)
    if before_reveal:
        histories = {one: [row for row in rows if not row.label.post_reveal] for one, rows in histories.items()}
    return {
        case_id: blind_opinions([row for row in history if (case_id, row.label.annotator_id) not in provisional])
        for case_id, history in histories.items()
    }


def with_labels(session: Session, cells: SpecimenCells) -> tuple[SpecimenOfCells, SpecimenReadsOut]:
    """The specimen with its final blinded labels, by annotator where a model is in use."""
    place, number = {one: row for row, one in enumerate(cells.case_ids)}, {c: k for k, c in enumerate(cells.classes)}
    given = [
        (place[case_id], row.annotator, number[str(row.label.class_code)])
        for case_id, opinions in final_opinions(session, cells.case_ids).items()
        for row in opinions
        if row.label.class_code in number
    ]
    names = sorted({name for _, name, _ in given})
    reads = SpecimenReadsOut(labels=len(given), annotators=len(names))
    if not given:
        return cells.measured(), reads
    rows, classes = np.array([one[0] for one in given]), np.array([one[2] for one in given])
    in_use = model_in_use(session, cells.release_id)
    if in_use is not None and len(in_use[1].population) == len(cells.classes):
        people = np.array([names.index(one[1]) for one in given])
        labels = Annotations(rows, people, classes, len(place), len(names), len(number))
        alike = cells.measured()
        draws = NamedReads.of(in_use[1], labels, names, alike.mix, MOST_DRAWS)
        return cells.measured(named=draws), reads
    counts = np.zeros((len(place), len(number)), dtype=np.int64)
    np.add.at(counts, (rows, classes), 1)
    return cells.measured(label_counts=counts, n_annotators=len(names)), reads


def measure(session: Session, specimen_id: uuid.UUID) -> Measured:
    """Measure a specimen by what is stored now."""
    policy, cells = current_policy(session), cells_of_specimen(session, specimen_id)
    if cells is None:
        return Measured()
    groups = differential_groups(policy, cells.classes)
    (specimen, reads), laboratory = with_labels(session, cells), laboratory_of(session, cells.release_id)
    shares = measure_specimen(specimen, groups, laboratory)
    outcomes = {one: row.outcome.class_code for one, row in read_outcomes(session, cells.case_ids).items()}
    decisions = [threshold.decision for group in shares.groups for threshold in group.thresholds]
    state: SpecimenState = "decided" if decisions and "open" not in decisions else "open"
    closed = set(outcomes) | _fully_read(specimen, cells, policy)
    document = MeasuredShares(
        n_cells=shares.n_cells,
        release=str(cells.release_id),
        mix=shares.mix,
        groups=[
            _group_out(group, share, _count(group, shares, cells, outcomes))
            for group, share in zip(groups, shares.groups, strict=True)
        ],
        deciding_cells=_deciding_cells(shares, cells, policy, closed) if state == "open" else [],
        reads=reads,
        assumes=list(shares.assumes),
        warnings=_warnings(shares, cells, policy),
    )
    probs = shares.class_probs.astype("<f8").tobytes()
    return Measured(document, state, cells.release_id, tuple(map(str, cells.case_ids)), probs)


def _fully_read(specimen: SpecimenOfCells, cells: SpecimenCells, policy: PolicyRow) -> set[uuid.UUID]:
    full = specimen.counts.sum(axis=1) >= policy.max_labels
    return {case_id for case_id, done in zip(cells.case_ids, full, strict=True) if done}


def _deciding_cells(
    shares: SpecimenShares, cells: SpecimenCells, policy: PolicyRow, closed: set[uuid.UUID]
) -> list[DecidingCellOut]:
    """Cells of which a further read is worth most, those left out that are settled or fully read."""
    reported = len(reporting_groups(policy, cells.classes)) or len(shares.groups)
    valued = replace(shares, groups=shares.groups[:reported])
    values, ties = sum_values(valued, policy.specimen_goal or "decision")
    names = tuple(map(str, cells.case_ids))
    place = {name: row for row, name in enumerate(names)}
    chosen = choose_reads(values, len(names), names, ties)
    left = [name for name in chosen if uuid.UUID(name) not in closed]
    return [DecidingCellOut(case=name, value=float(values[place[name]])) for name in left[:MOST_DECIDING]]


def _count(group: Group, shares: SpecimenShares, cells: SpecimenCells, outcomes: dict[uuid.UUID, str | None]) -> int:
    """Cells of a group by outcome, else by leading class in the specimen; a split cell counts nowhere."""
    leading = shares.class_probs.argmax(axis=1)
    classes = [
        outcomes[case_id] if case_id in outcomes else cells.classes[k]
        for case_id, k in zip(cells.case_ids, leading, strict=True)
    ]
    return sum(code in group.classes for code in classes)


def _share_out(share: Share) -> ShareOut:
    return ShareOut(share=share.share, interval=(share.low, share.high))


def _threshold_out(one: ThresholdDecision) -> ThresholdOut:
    fields = asdict(one)
    return ThresholdOut(**fields.pop("threshold"), **fields)


def _group_out(group: Group, share: GroupShare, count: int) -> GroupShareOut:
    return GroupShareOut(
        group=group.name,
        count=count,
        slide=_share_out(share.slide),
        patient=_share_out(share.patient),
        counted=share.counted,
        components=ComponentsOut(**asdict(share.components)),
        thresholds=[_threshold_out(one) for one in share.thresholds],
    )


def _warnings(shares: SpecimenShares, cells: SpecimenCells, policy: PolicyRow) -> list[str]:
    warnings: list[str] = []
    if shares.mix == "training":
        warnings.append(
            Message("fewer than {n} cells: the class mix is that of the calibration cells", n=FEWEST_FOR_OWN_MIX)
        )
    if not shares.resolved:
        warnings.append(Message("the shares are not resolved: every decision is open"))
    if cells.mix is None:
        warnings.append(_NO_MIX)
    if cells.n_left_out:
        warnings.append(
            Message("{n} cells are left out: copies of others, or not predicted by the release yet", n=cells.n_left_out)
        )
    for group in policy.reporting_groups or []:
        missing = [code for code in group["classes"] if code not in cells.classes]
        if missing:
            fields = {"group": group["group"], "classes": ", ".join(missing)}
            warnings.append(Message("{group} is not reported: the release has no class {classes}", **fields))
    return warnings


def latest_signature(session: Session, specimen_id: uuid.UUID) -> SpecimenSignature | None:
    """The signature on a specimen that holds."""
    of_specimen = select(SpecimenSignature).where(SpecimenSignature.specimen_id == specimen_id)
    return session.execute(of_specimen.order_by(SpecimenSignature.number.desc()).limit(1)).scalar_one_or_none()


def differing_decisions(signed: Mapping[str, Any], now: Mapping[str, Any]) -> list[DifferenceOut]:
    """Decisions at thresholds that both documents have, and that are not the same."""
    before, after = (
        {(group["group"], one["at"]): one["decision"] for group in document["groups"] for one in group["thresholds"]}
        for document in (signed, now)
    )
    return [
        DifferenceOut(group=group, at=at, signed=before[group, at], now=decision)
        for (group, at), decision in after.items()
        if before.get((group, at), decision) != decision
    ]


def refresh_specimen(context: ServiceContext, specimen_id: uuid.UUID) -> None:
    """Measure a specimen again if something has changed, and store the result."""
    with context.database.read() as session:
        stored, basis = session.get(SpecimenResult, specimen_id), bases_of(session, [specimen_id])[specimen_id]
        if stored is not None and stored.basis == basis.digest:
            return
        measured = measure(session, specimen_id)
    with context.database.write() as session:
        # a specimen is locked before its cases, and compared after the wait: some of them may be erased meanwhile
        locked = session.get_one(Specimen, specimen_id, with_for_update={"key_share": True})
        if locked.erased_at is None and bases_of(session, [specimen_id])[specimen_id] == basis:
            _store(session, specimen_id, measured, basis.digest)


def _store(session: Session, specimen_id: uuid.UUID, measured: Measured, basis: str) -> None:
    _bring_forward(session, specimen_id, {uuid.UUID(one.case) for one in measured.shares.deciding_cells})
    before, document = session.get(SpecimenResult, specimen_id), from_json(to_json(measured.shares.model_dump()))
    version, signature = 0 if before is None else before.version, latest_signature(session, specimen_id)
    result = SpecimenResult(
        specimen_id=specimen_id,
        state=measured.state,
        version=version + (before is None or before.document != document),
        computed_at=time_of(session),
        basis=basis,
        release_id=measured.release_id,
        document=document,
        cells=list(measured.cells),
        class_probs=measured.class_probs,
        differs=signature is not None and bool(differing_decisions(signature.document, document)),
    )
    session.merge(result)


def _bring_forward(session: Session, specimen_id: uuid.UUID, deciding: set[uuid.UUID]) -> None:
    """Put deciding cells first in the lead's worklist: their need is above 1."""
    changed = (Case.specimen_id == specimen_id, (Case.need > 1) | Case.id.in_(deciding))
    locked = select(Case).where(*changed).order_by(Case.id).with_for_update(key_share=True)
    for case in session.execute(locked.execution_options(populate_existing=True)).scalars():
        own = case.need - 1 if case.need > 1 else case.need
        case.need = own + 1 if case.id in deciding and own > 0 else own


def refresh_stale_specimens(context: ServiceContext) -> None:
    """Measure the newest specimens again of which something has changed; some of them in each round."""
    with context.database.read() as session:
        newest = select(Specimen.id).where(Specimen.erased_at.is_(None)).order_by(Specimen.id.desc()).limit(_TENDED)
        ids = list(session.execute(newest).scalars())
        held = select(SpecimenResult.specimen_id, SpecimenResult.basis).where(SpecimenResult.specimen_id.in_(ids))
        stored = {row[0]: row[1] for row in session.execute(held)}
        now = bases_of(session, ids)
    for specimen_id in [one for one in ids if stored.get(one) != now[one].digest][:_OF_ROUND]:
        refresh_specimen(context, specimen_id)
