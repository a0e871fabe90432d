"""Selection of settled cells for practice, without unblinding any read."""

import uuid
from dataclasses import dataclass

import numpy as np
from sqlalchemy import ColumnElement, and_, exists, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.annotators.service import ClosedCase, opinions_until, others_posteriors
from app.database.tables import (
    SHOWN_KINDS,
    Case,
    CaseTwin,
    CountedLabel,
    Exposure,
    PolicyRow,
    PracticeCell,
    PracticeItem,
    PracticeSet,
    ProvisionalLabel,
    Read,
    ReadRequest,
    ReferenceCell,
    Repeat,
    time_of,
)
from app.releases.service import class_names
from app.triage.service import current_policy
from ml.agreement.qualification import LEAST_SLIPS, slip_rate
from ml.util.arrays import FloatArray

#: Settled cases that are looked at for a set, the newest.
MOST_CANDIDATES = 4000
_NOBODY = uuid.UUID(int=0)


@dataclass(frozen=True)
class CellOutcomes:
    """Outcomes of some cells by the labels of all annotators."""

    # N cases that have a prediction of the reading classes
    cells: list[uuid.UUID]
    # every blind opinion of each
    opinions: dict[uuid.UUID, ClosedCase]
    # (N, K) probability of each class for the next answer, from the prediction and all opinions
    probs: FloatArray
    codes: list[str]

    def take(self, rows: list[int]) -> "CellOutcomes":
        """Some of the cells."""
        cells = [self.cells[row] for row in rows]
        return CellOutcomes(cells, {cell: self.opinions[cell] for cell in cells}, self.probs[rows], self.codes)


def outcomes_of(session: Session, case_ids: list[uuid.UUID]) -> CellOutcomes:
    """Load the outcomes of some cells in their order; those without a prediction are left out."""
    codes = list(class_names(session))
    ids = select(Case.id.label("case_id")).where(Case.id.in_(case_ids)).subquery()
    opinions = opinions_until(session, ids, time_of(session))
    triples = [(case_id, opinions[case_id], _NOBODY) for case_id in case_ids if case_id in opinions]
    probs = others_posteriors(session, triples, codes)
    kept = np.flatnonzero(~np.isnan(probs).any(axis=1)).tolist()
    cells = [triples[row][0] for row in kept]
    return CellOutcomes(cells, {cell: opinions[cell] for cell in cells}, probs[kept], codes)


def slips_of_pool(session: Session, outcomes: CellOutcomes) -> float:
    """Share of slips among the opinions of these cells, each against the posterior by the others'."""
    triples = [
        (cell, outcomes.opinions[cell], annotator_id)
        for cell in outcomes.cells
        for annotator_id, opinion in sorted(outcomes.opinions[cell].opinions.items())
        if opinion.class_code in outcomes.codes
    ]
    if not triples:
        return LEAST_SLIPS
    answers = [outcomes.codes.index(case.opinions[who].class_code) for _, case, who in triples]
    return slip_rate(others_posteriors(session, triples, outcomes.codes), np.array(answers, dtype=np.int64))


def with_twins(
    column: InstrumentedAttribute[uuid.UUID], case_id: InstrumentedAttribute[uuid.UUID], *which: ColumnElement[bool]
) -> ColumnElement[bool]:
    """Build the condition that a row with these properties refers to a case or a twin of it."""
    of_twin = exists().where(CaseTwin.case_id == case_id, column == CaseTwin.twin_id, *which)
    return or_(exists().where(column == case_id, *which), of_twin)


def is_settled() -> ColumnElement[bool]:
    """Condition on a case: nobody is to read it or a twin of it, and every label is final."""
    has_open_request = with_twins(ReadRequest.case_id, Case.id, ReadRequest.state.in_(("open", "leased")))
    has_provisional = with_twins(ProvisionalLabel.case_id, Case.id, ProvisionalLabel.purpose == "read")
    return and_(Case.erased_at.is_(None), ~has_open_request, ~has_provisional)


def _of_other_purpose(purpose: str) -> ColumnElement[bool]:
    """Condition: the case or a twin is in a set of the other purpose, since tests exclude training cells."""
    other = and_(PracticeSet.id == PracticeCell.set_id, PracticeSet.purpose != purpose)
    return with_twins(PracticeCell.case_id, Case.id, other)


def _is_reference() -> ColumnElement[bool]:
    """Condition: the case or a twin was ever a reference cell, whose reads everybody may know."""
    return with_twins(ReferenceCell.case_id, Case.id, ReferenceCell.kind.in_(SHOWN_KINDS))


def list_practice_candidates(session: Session, purpose: str, min_labels: int) -> CellOutcomes:
    """Settled cells with so many blind labels, the newest first, one of each group of twins."""
    # Of a training set only those that the policy shows to annotators once they are closed.
    fit = [CountedLabel.blind.is_(True), is_settled(), ~_of_other_purpose(purpose)]
    if purpose == "qualification":
        fit.append(~_is_reference())
    statement = (
        select(Case.id)
        .join(CountedLabel, CountedLabel.case_id == Case.id)
        .where(*fit)
        .group_by(Case.id)
        .having(func.count(CountedLabel.annotator_id.distinct()) >= min_labels)
        .order_by(Case.id.desc())
        .limit(MOST_CANDIDATES)
    )
    ids = list(session.execute(statement).scalars())
    outcomes = outcomes_of(session, drop_later_twins(session, ids))
    hidden = never_revealed_cases(session, outcomes.cells) if purpose == "training" else set()
    rows = [
        row
        for row, cell in enumerate(outcomes.cells)
        if len(outcomes.opinions[cell].opinions) >= min_labels and cell not in hidden
    ]
    return outcomes.take(rows)


def drop_later_twins(session: Session, case_ids: list[uuid.UUID]) -> list[uuid.UUID]:
    """The cases without those that have a twin before them."""
    pairs = select(CaseTwin.case_id, CaseTwin.twin_id).where(CaseTwin.case_id.in_(case_ids))
    twins: dict[uuid.UUID, set[uuid.UUID]] = {}
    for case_id, twin_id in session.execute(pairs):
        twins.setdefault(case_id, set()).add(twin_id)
    kept: list[uuid.UUID] = []
    taken: set[uuid.UUID] = set()
    for case_id in case_ids:
        if not twins.get(case_id, set()) & taken:
            kept.append(case_id)
            taken.add(case_id)
    return kept


def never_revealed_cases(session: Session, case_ids: list[uuid.UUID]) -> set[uuid.UUID]:
    """Cases that the newest policy which asked for a read of them shows to no annotator."""
    newest = select(ReadRequest.case_id, func.max(ReadRequest.policy_version)).where(ReadRequest.case_id.in_(case_ids))
    versions = {case_id: version for case_id, version in session.execute(newest.group_by(ReadRequest.case_id))}
    reveals = {row.version: row.reveal for row in session.execute(select(PolicyRow.version, PolicyRow.reveal))}
    in_force = current_policy(session).version
    return {cell for cell in case_ids if reveals[versions.get(cell, in_force)] == "never"}


def cells_for(session: Session, chosen: PracticeSet, annotator_id: uuid.UUID) -> CellOutcomes:
    """Cells of a set that an annotator may be given: settled, and neither they nor a twin were ever with them."""
    # What they trained with may come to them in training again; a qualification has cells that they have met nowhere.
    encounters = [
        with_twins(Read.case_id, Case.id, Read.annotator_id == annotator_id),
        with_twins(CountedLabel.case_id, Case.id, CountedLabel.annotator_id == annotator_id),
        with_twins(Repeat.case_id, Case.id, Repeat.annotator_id == annotator_id),
    ]
    if chosen.purpose == "qualification":
        encounters.append(with_twins(Exposure.case_id, Case.id, Exposure.annotator_id == annotator_id))
        encounters.append(_is_reference())
        encounters.append(with_twins(PracticeItem.case_id, Case.id, PracticeItem.annotator_id == annotator_id))
    statement = (
        select(Case.id)
        .join(PracticeCell, PracticeCell.case_id == Case.id)
        .where(PracticeCell.set_id == chosen.id, is_settled(), ~_of_other_purpose(chosen.purpose), ~or_(*encounters))
        .order_by(Case.id)
    )
    return outcomes_of(session, list(session.execute(statement).scalars()))
