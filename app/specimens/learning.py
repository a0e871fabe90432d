"""Learn what a laboratory's specimens have in common, and check the intervals on completely read specimens."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import expit
from sqlalchemy import exists, func, select
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.cases.service import is_provisional
from app.context import ServiceContext
from app.database.tables import Case, CasePrediction, CountedLabel, Specimen, SpecimenKnowledge
from app.releases.service import class_codes, existing_release, served_release_id
from app.specimens.measuring import final_opinions, laboratory_of, with_labels
from app.triage.service import SpecimenCells, cells_of_specimen, current_policy, reporting_groups
from ml.annotations import Annotations
from ml.specimens.cells import Group
from ml.specimens.laboratory import (
    CoverageBand,
    GroupKnowledge,
    Laboratory,
    LogitShare,
    annotator_tilt,
    coverage_by_band,
    fit_kappa,
    fit_stretch,
    half_cell_logit,
)
from ml.specimens.shares import measure_specimen
from ml.util.arrays import FloatArray

# specimens from which stretch and κ are learned, and planned labels from which the tilt is, the newest of each
_READ, _ANY, _LABELS = 200, 50, 20_000
#: How far a check has come: done and all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class GroupCheck:
    """Coverage of a group's slide intervals on completely read specimens of held-out patients."""

    group: str
    n_specimens: int
    # of the intervals that are widened by what the other specimens taught
    n_covered: int
    by_share: list[CoverageBand]
    # squared errors over what they would be if cells were independent; 1 below 20 specimens
    overdispersion: float
    widened_by: float
    kind: str

    def to_dict(self) -> dict[str, Any]:
        """The check as JSON."""
        return asdict(self) | {"by_share": [band._asdict() for band in self.by_share]}


@dataclass(frozen=True)
class _PredictedShares:
    """Shares of one group in completely read specimens, predicted without labels, and by all of them."""

    predicted: list[LogitShare]
    truth: list[float]


def _read_specimens(session: Session, release_id: uuid.UUID) -> list[SpecimenCells]:
    """Specimens of which every cell has a final blind label, and of whose patients the release was not trained."""
    final = exists().where(
        CountedLabel.case_id == Case.id,
        CountedLabel.blind.is_(True),
        ~is_provisional(CountedLabel.case_id, CountedLabel.annotator_id),
    )
    used = exists().where(
        CasePrediction.case_id == Case.id,
        CasePrediction.release_id == release_id,
        CasePrediction.trained_on.is_not(None),
    )
    live = (Case.specimen_id == Specimen.id, Case.erased_at.is_(None))
    found = select(Specimen.id).where(
        exists().where(*live), ~exists().where(*live, ~final), ~exists().where(*live, used)
    )
    ids = session.execute(found.order_by(Specimen.id.desc()).limit(_READ)).scalars().all()
    cells = [cells_of_specimen(session, specimen_id) for specimen_id in ids]
    return [one for one in cells if one is not None and one.release_id == release_id]


def _predict_shares(
    session: Session, groups: Sequence[Group], kappa: float, read: Sequence[SpecimenCells], progress: Progress
) -> dict[str, _PredictedShares]:
    shares = {group.name: _PredictedShares([], []) for group in groups}
    for done, cells in enumerate(read, 1):
        truth = _label_shares(session, cells)
        measured = measure_specimen(cells.measured(), groups, Laboratory(kappa))
        for group, share in zip(groups, measured.groups, strict=True):
            shares[group.name].predicted.append(share.raw)
            shares[group.name].truth.append(float(truth[[cells.classes.index(code) for code in group.classes]].sum()))
        progress(done, len(read))
    return shares


def _label_shares(session: Session, cells: SpecimenCells) -> FloatArray:
    """Shares (K,) of the classes by the labels of a completely read specimen, each cell once."""
    place = {code: k for k, code in enumerate(cells.classes)}
    sums = np.zeros(len(place))
    for opinions in final_opinions(session, cells.case_ids).values():
        for row in opinions:
            if row.label.class_code in place:
                sums[place[str(row.label.class_code)]] += 1 / len(opinions)
    return np.asarray(sums / len(cells.case_ids))


def _planned_labels(session: Session, classes: Sequence[str]) -> Annotations:
    """The newest planned blind labels, final ones, by annotator."""
    newest = (
        select(CountedLabel.case_id, CountedLabel.annotator_id, CountedLabel.class_code)
        .where(
            CountedLabel.kind == "label",
            CountedLabel.blind.is_(True),
            CountedLabel.round == "planned",
            CountedLabel.class_code.in_(classes),
            ~is_provisional(CountedLabel.case_id, CountedLabel.annotator_id),
        )
        .order_by(CountedLabel.id.desc())
        .limit(_LABELS)
    )
    rows = session.execute(newest).all()
    cases, case = np.unique([row.case_id.bytes for row in rows], return_inverse=True)
    people, annotator = np.unique([row.annotator_id.bytes for row in rows], return_inverse=True)
    label = np.array([classes.index(str(row.class_code)) for row in rows], dtype=np.int64)
    return Annotations(case, annotator, label, len(cases), len(people), len(classes))


def _setting(session: Session) -> tuple[uuid.UUID, list[str], list[Group]]:
    """The release that is served, its classes and the reporting groups."""
    release_id = served_release_id(session)
    classes = class_codes(existing_release(session, release_id))
    groups = reporting_groups(current_policy(session), classes) or [Group(code, (code,)) for code in classes]
    return release_id, classes, groups


def _ignore(_done: int, _total: int) -> None:
    """Show no progress."""


def learn(session: Session) -> tuple[uuid.UUID, Laboratory]:
    """What the specimens of the served release teach now."""
    release_id, classes, groups = _setting(session)
    newest = select(Specimen.id).where(Specimen.erased_at.is_(None)).order_by(Specimen.id.desc()).limit(_ANY)
    found = [cells_of_specimen(session, one) for one in session.execute(newest).scalars().all()]
    some = [cells for cells in found if cells is not None and cells.release_id == release_id]
    kappa = fit_kappa([with_labels(session, cells)[0] for cells in some])
    shares = _predict_shares(session, groups, kappa, _read_specimens(session, release_id), _ignore)
    labels = _planned_labels(session, classes)
    known = {}
    for group in groups:
        stretch = fit_stretch(shares[group.name].predicted, shares[group.name].truth)
        tilt = annotator_tilt(labels, [classes.index(code) for code in group.classes])
        known[group.name] = GroupKnowledge(tilt, stretch.factor, stretch.n_specimens)
    return release_id, Laboratory(kappa, known)


def learn_from_specimens(context: ServiceContext) -> bool:
    """Store what the specimens teach, if it differs from what is in use; gives whether it does."""
    with context.database.read() as session:
        if session.execute(select(Specimen.id).limit(1)).first() is None:
            return False
        release_id, laboratory = learn(session)
        if laboratory == laboratory_of(session, release_id):
            return False
    with context.database.write() as session:
        version = 1 + (session.execute(select(func.max(SpecimenKnowledge.version))).scalar_one() or 0)
        groups = {name: asdict(known) for name, known in laboratory.groups.items()}
        session.add(SpecimenKnowledge(version=version, release_id=release_id, kappa=laboratory.kappa, groups=groups))
        session.flush()
        details = {"version": version, "release": str(release_id)}
        events.record_event(
            session, context.keys.audit, actor="worker", action="specimens.fit", object_id=version, details=details
        )
    return True


def check_specimens(session: Session, progress: Progress = _ignore) -> list[GroupCheck]:
    """Coverage of the slide intervals of each group, each specimen by what the others taught."""
    release_id, _, groups = _setting(session)
    kappa = laboratory_of(session, release_id).kappa
    shares = _predict_shares(session, groups, kappa, _read_specimens(session, release_id), progress)
    return [_check_group(name, of_group) for name, of_group in shares.items()]


def _check_group(name: str, shares: _PredictedShares) -> GroupCheck:
    whole = fit_stretch(shares.predicted, shares.truth)
    intervals = []
    for row, share in enumerate(shares.predicted):
        others = [[*values[:row], *values[row + 1 :]] for values in (shares.predicted, shares.truth)]
        factor = fit_stretch(*others).factor
        intervals.append([share.median + factor * (end - share.median) for end in (share.low, share.high)])
    target = [half_cell_logit(t, share.n_cells) for t, share in zip(shares.truth, shares.predicted, strict=True)]
    covered = [bool(low - 1e-9 <= at <= high + 1e-9) for (low, high), at in zip(intervals, target, strict=True)]
    bands = coverage_by_band(expit(np.reshape(intervals, (-1, 2))), expit(np.array(target)))
    return GroupCheck(name, whole.n_specimens, sum(covered), bands, whole.rho, whole.factor, whole.kind)
