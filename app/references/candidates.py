"""Settled cells that may stand for a class: none that anybody is to read, and none that would tell of a read."""

import uuid
from collections import defaultdict
from collections.abc import Iterable

from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session

from app.annotators.history import opinions_until
from app.audit.chain.keys import DerivedKey
from app.database.tables import Case, HeldBack, Label, PracticeCell, PracticeSet, Repeat, time_of
from app.practice.cells import MOST_CANDIDATES, never_shown, one_of_twins, settled, with_twins
from app.references.selecting import MIN_READERS, Candidate, candidate_of


def candidates(
    session: Session, order: DerivedKey, first: Iterable[uuid.UUID] = (), only: uuid.UUID | None = None
) -> dict[str, list[Candidate]]:
    """Cells that may be chosen, by class, one of each group of twins.

    They are settled, of the calibration partition, held back from nobody, in no qualification and shown to annotators
    by the policy: whoever has seen them as reference cells can neither read them nor judge a release by them.

    Args:
        session: for reading.
        order: key by which those that are alike are put in order.
        first: cases that go before their twins.
        only: this case alone.
    """
    test = and_(PracticeSet.id == PracticeCell.set_id, PracticeSet.purpose == "qualification")
    statement = (
        select(Case.id)
        .join(Label, Label.case_id == Case.id)
        .where(
            Case.partition == "calibration",
            settled(),
            ~with_twins(HeldBack.case_id, Case.id),
            ~with_twins(Repeat.case_id, Case.id),
            ~with_twins(PracticeCell.case_id, Case.id, test),
        )
        .group_by(Case.id)
        .having(func.count(Label.annotator_id.distinct()) >= MIN_READERS)
        .order_by(Case.id.desc())
        .limit(MOST_CANDIDATES)
    )
    if only is not None:
        statement = statement.where(Case.id == only)
    found = list(session.execute(statement).scalars())
    before = set(first)
    ids = one_of_twins(session, sorted(found, key=lambda case_id: case_id not in before))
    hidden = never_shown(session, ids)
    return _by_class(session, order, [case_id for case_id in ids if case_id not in hidden])


def _by_class(session: Session, order: DerivedKey, case_ids: list[uuid.UUID]) -> dict[str, list[Candidate]]:
    ids = select(Case.id.label("case_id")).where(Case.id.in_(case_ids)).subquery()
    opinions = opinions_until(session, ids, time_of(session))
    of_cases = select(Case.id, Case.patient).where(Case.id.in_(case_ids))
    patients = {row.id: row.patient for row in session.execute(of_cases)}
    by_class: dict[str, list[Candidate]] = defaultdict(list)
    for case_id in case_ids:
        answers = opinions[case_id].opinions.values() if case_id in opinions else ()
        said = [one.class_code for one in answers if not one.late]
        lot = order.digest(b"reference cell " + case_id.bytes)
        found = candidate_of(case_id, said, patients[case_id], lot)
        if found is not None:
            by_class[found.class_code].append(found)
    return by_class
