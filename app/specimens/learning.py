"""Learn what a laboratory's specimens have in common, and check the intervals on completely read specimens."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from scipy.special import expit
from sqlalchemy import exists, func, select
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.cases.service import is_provisional
from app.context import ServiceContext
from app.database.tables import Case, CasePrediction, CountedLabel, Specimen, SpecimenKnowledge
from app.metrics.service import blind_labels, label_rows
from app.releases.service import class_codes, existing_release, served_release_id
from app.specimens.measuring import final_opinions, knowledge_of, laboratory_of, with_labels
from app.triage.service import SpecimenCells, cells_of_specimen, current_policy, differential_groups
from ml.annotations import Annotations
from ml.distributions.families import has_concentration
from ml.specimens.cells import Group
from ml.specimens.laboratory import (
    CoverageBand,
    GroupKnowledge,
    Laboratory,
    LogitShare,
    PatientShift,
    annotator_tilt,
    annotator_tilt_interval,
    coverage_by_band,
    fit_kappa,
    fit_shift,
    half_cell_logit,
)
from ml.specimens.shares import measure_specimen
from ml.util.arrays import FloatArray

# specimens from which the shift and κ are learned, and planned labels from which the tilt is, the newest of each
_READ, _ANY, _LABELS = 200, 50, 20_000
_Z = 1.959964
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
    # standard deviation of what all cells of a patient have in common, on the log-odds; 0 below 20 specimens
    shift: float

    def to_dict(self) -> dict[str, Any]:
        """The check as JSON."""
        return asdict(self) | {"by_share": [band._asdict() for band in self.by_share]}


@dataclass(frozen=True)
class _PredictedShares:
    """Shares of one group in completely read specimens, predicted without labels, and by all of them."""

    predicted: list[LogitShare] = field(default_factory=list)
    truth: list[float] = field(default_factory=list)
    # variance of the truth on the log-odds, since a cell has few labels
    noise: list[float] = field(default_factory=list)

    def fit(self, without: int | None = None) -> PatientShift:
        """The shift by all specimens, or by all but one."""
        kept = [row for row in range(len(self.truth)) if row != without]
        predicted, truth = [self.predicted[row] for row in kept], [self.truth[row] for row in kept]
        return fit_shift(predicted, truth, [self.noise[row] for row in kept])


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
    statement = select(Specimen.id).where(
        exists().where(*live), ~exists().where(*live, ~final), ~exists().where(*live, used)
    )
    ids = session.execute(statement.order_by(Specimen.id.desc()).limit(_READ)).scalars().all()
    cells = [cells_of_specimen(session, specimen_id) for specimen_id in ids]
    found = [one for one in cells if one is not None and one.release_id == release_id]
    # A chain of labels may end in a retraction. After the reveal it changes nothing, as in ``blind_labels``: else those
    # who disagree with the prediction could take their specimen out of the check.
    opinions = [final_opinions(session, one.case_ids, before_reveal=True) for one in found]
    return [one for one, of_cell in zip(found, opinions, strict=True) if all(map(of_cell.get, one.case_ids))]


def _predict_shares(
    session: Session, groups: Sequence[Group], kappa: float, read: Sequence[SpecimenCells], progress: Progress
) -> dict[str, _PredictedShares]:
    shares = {group.name: _PredictedShares() for group in groups}
    for done, cells in enumerate(read, 1):
        truth, per_cell = _label_shares(session, cells)
        measured = measure_specimen(cells.measured(), groups, Laboratory(kappa))
        for group, share in zip(groups, measured.groups, strict=True):
            of_group = shares[group.name]
            of_group.predicted.append(share.raw)
            of_group.truth.append(float(truth[[cells.classes.index(code) for code in group.classes]].sum()))
            of_group.noise.append(share.raw.label_noise / per_cell if has_concentration(cells.prior) else 0.0)
        progress(done, len(read))
    return shares


def _label_shares(session: Session, cells: SpecimenCells) -> tuple[FloatArray, float]:
    """Shares (K,) of the classes by the labels of a completely read specimen, each cell once, and labels per cell."""
    place = {code: k for k, code in enumerate(cells.classes)}
    sums, opinions = np.zeros(len(place)), final_opinions(session, cells.case_ids, before_reveal=True)
    for of_cell in opinions.values():
        for row in of_cell:
            if row.label.class_code in place:
                sums[place[str(row.label.class_code)]] += 1 / len(of_cell)
    n_labels = sum(map(len, opinions.values()))
    return np.asarray(sums / len(cells.case_ids)), n_labels / len(cells.case_ids)


def _planned_labels(session: Session, classes: Sequence[str]) -> Annotations:
    """The newest planned labels that may judge, by annotator."""
    newest = blind_labels().where(CountedLabel.class_code.in_(classes)).order_by(None).order_by(CountedLabel.id.desc())
    labels = label_rows(session, newest.limit(_LABELS), None)
    cases, case = np.unique([label.case_id.bytes for label in labels], return_inverse=True)
    given = np.array([classes.index(label.class_code) for label in labels], dtype=np.int64)
    return Annotations.of_names(case, [label.annotator for label in labels], given, len(cases), len(classes))


def _setting(session: Session) -> tuple[uuid.UUID, list[str], list[Group]]:
    """The release that is served, its classes and the groups of a differential."""
    release_id = served_release_id(session)
    classes = class_codes(existing_release(session, release_id))
    groups = differential_groups(current_policy(session), classes)
    return release_id, classes, groups


def learn(session: Session) -> SpecimenKnowledge:
    """What the specimens of the served release teach now and how it was checked, without a version."""
    release_id, classes, groups = _setting(session)
    newest = select(Specimen.id).where(Specimen.erased_at.is_(None)).order_by(Specimen.id.desc()).limit(_ANY)
    found = [cells_of_specimen(session, one) for one in session.execute(newest).scalars().all()]
    some = [cells for cells in found if cells is not None and cells.release_id == release_id]
    kappa = fit_kappa([with_labels(session, cells)[0] for cells in some])
    shares = _predict_shares(session, groups, kappa, _read_specimens(session, release_id), lambda *_: None)
    labels = _planned_labels(session, classes)
    known = {}
    for group in groups:
        check, numbers = _check_group(group.name, shares[group.name]), [classes.index(code) for code in group.classes]
        in_use = GroupKnowledge(annotator_tilt(labels, numbers), check.shift, check.n_specimens)
        limits = annotator_tilt_interval(labels, numbers)
        document = {"tilt_interval": None if limits is None else list(limits), "check": check.to_dict()}
        known[group.name] = asdict(in_use) | document
    return SpecimenKnowledge(release_id=release_id, kappa=kappa, groups=known)


def learn_from_specimens(context: ServiceContext) -> bool:
    """Store what the specimens teach, if it differs from what is in use; gives whether it does."""
    with context.database.read() as session:
        if session.execute(select(Specimen.id).limit(1)).first() is None:
            return False
        lesson = learn(session)
        stored = knowledge_of(session, lesson.release_id)
        if stored is not None and (stored.kappa, stored.groups) == (lesson.kappa, lesson.groups):
            return False
    with context.database.write() as session:
        version = lesson.version = 1 + (session.execute(select(func.max(SpecimenKnowledge.version))).scalar_one() or 0)
        session.add(lesson)
        session.flush()
        details = {"version": version, "release": str(lesson.release_id)}
        events.record_event(
            session, context.keys.audit, actor="worker", action="specimens.fit", object_id=version, details=details
        )
    return True


def check_specimens(session: Session, progress: Progress = lambda *_: None) -> list[GroupCheck]:
    """Coverage of the slide intervals of each group, each specimen by what the others taught."""
    release_id, _, groups = _setting(session)
    kappa = laboratory_of(session, release_id).kappa
    shares = _predict_shares(session, groups, kappa, _read_specimens(session, release_id), progress)
    return [_check_group(name, of_group) for name, of_group in shares.items()]


def _check_group(name: str, shares: _PredictedShares) -> GroupCheck:
    whole, intervals = shares.fit(), []
    for row, share in enumerate(shares.predicted):
        shift = shares.fit(without=row).sd
        half = _Z * np.sqrt(share.variance + shares.noise[row] + shift**2 * share.sensitivity**2)
        intervals.append([share.mean - half, share.mean + half])
    target = [float(half_cell_logit(t, one.n_cells)) for t, one in zip(shares.truth, shares.predicted, strict=True)]
    bands = coverage_by_band(expit(np.reshape(intervals, (-1, 2))), expit(np.array(target)))
    n_covered = sum(band.n_covered for band in bands)
    return GroupCheck(name, whole.n_specimens, n_covered, bands, whole.rho, whole.sd)
