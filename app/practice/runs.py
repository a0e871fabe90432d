"""Database access of sets, runs, cells of runs and their answers."""

import uuid
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.database.tables import (
    Annotator,
    Case,
    PracticeAnswer,
    PracticeCell,
    PracticeItem,
    PracticeRun,
    PracticeSet,
    Qualification,
)
from app.http.errors import NotFound


@dataclass(frozen=True)
class OwnItem:
    """A cell of a run of the caller's."""

    item: PracticeItem
    run: PracticeRun
    chosen: PracticeSet
    annotator: Annotator


def set_of(session: Session, set_id: uuid.UUID) -> PracticeSet:
    """A set.

    Raises:
        NotFound: there is none.
    """
    chosen = session.get(PracticeSet, set_id)
    if chosen is None:
        raise NotFound("there is no such set")
    return chosen


def all_sets(session: Session) -> list[PracticeSet]:
    """Every set, newest first."""
    return list(session.execute(select(PracticeSet).order_by(PracticeSet.id.desc())).scalars())


def count_cells(session: Session, set_ids: list[uuid.UUID]) -> dict[uuid.UUID, int]:
    """Cells of each set whose patient is not erased."""
    statement = (
        select(PracticeCell.set_id, func.count())
        .join(Case, Case.id == PracticeCell.case_id)
        .where(PracticeCell.set_id.in_(set_ids), Case.erased_at.is_(None))
        .group_by(PracticeCell.set_id)
    )
    return {row[0]: row[1] for row in session.execute(statement)}


def runs_of_sets(session: Session, set_ids: list[uuid.UUID]) -> list[PracticeRun]:
    """Runs of some sets, newest first."""
    statement = select(PracticeRun).where(PracticeRun.set_id.in_(set_ids)).order_by(PracticeRun.created_at.desc())
    return list(session.execute(statement).scalars())


def runs_of(session: Session, annotator_id: uuid.UUID, limit: int = 100) -> list[tuple[PracticeRun, PracticeSet]]:
    """Runs of an annotator with their sets, newest first."""
    statement = (
        select(PracticeRun, PracticeSet)
        .join(PracticeSet, PracticeSet.id == PracticeRun.set_id)
        .where(PracticeRun.annotator_id == annotator_id)
        .order_by(PracticeRun.created_at.desc(), PracticeRun.id)
        .limit(limit)
    )
    return [(row[0], row[1]) for row in session.execute(statement)]


def attempts_of(session: Session, annotator_id: uuid.UUID) -> list[PracticeRun]:
    """Every qualification that an annotator has begun."""
    statement = select(PracticeRun).join(PracticeSet, PracticeSet.id == PracticeRun.set_id)
    mine = (PracticeRun.annotator_id == annotator_id, PracticeSet.purpose == "qualification")
    return list(session.execute(statement.where(*mine)).scalars())


def own_run(session: Session, account_id: uuid.UUID, run_id: uuid.UUID) -> tuple[PracticeRun, PracticeSet]:
    """A run of the annotator of an account, with its set.

    Raises:
        NotFound: there is none, or it is somebody else's.
    """
    statement = (
        select(PracticeRun, PracticeSet)
        .join(PracticeSet, PracticeSet.id == PracticeRun.set_id)
        .join(Annotator, Annotator.id == PracticeRun.annotator_id)
        .where(PracticeRun.id == run_id, Annotator.account_id == account_id)
    )
    row = session.execute(statement).first()
    if row is None:
        raise NotFound("there is no such run")
    return row[0], row[1]


def own_item(session: Session, account_id: uuid.UUID, item_id: uuid.UUID) -> OwnItem:
    """A cell of a run of the annotator of an account.

    Raises:
        NotFound: there is none, or it is somebody else's.
    """
    statement = (
        select(PracticeItem, PracticeRun, PracticeSet, Annotator)
        .join(PracticeRun, PracticeRun.id == PracticeItem.run_id)
        .join(PracticeSet, PracticeSet.id == PracticeRun.set_id)
        .join(Annotator, Annotator.id == PracticeItem.annotator_id)
        .where(PracticeItem.id == item_id, Annotator.account_id == account_id)
    )
    row = session.execute(statement).first()
    if row is None:
        raise NotFound("there is no such cell of a run")
    return OwnItem(row[0], row[1], row[2], row[3])


def next_item(session: Session, run_id: uuid.UUID) -> PracticeItem | None:
    """The cell of a run that is answered next; those of erased patients are passed over."""
    statement = (
        select(PracticeItem)
        .join(Case, Case.id == PracticeItem.case_id)
        .outerjoin(PracticeAnswer, PracticeAnswer.item_id == PracticeItem.id)
        .where(PracticeItem.run_id == run_id, PracticeAnswer.id.is_(None), Case.erased_at.is_(None))
        .order_by(PracticeItem.position)
        .limit(1)
    )
    return session.execute(statement).scalar_one_or_none()


def answer_of(session: Session, item_id: uuid.UUID) -> PracticeAnswer | None:
    """The answer to a cell of a run."""
    return session.execute(select(PracticeAnswer).where(PracticeAnswer.item_id == item_id)).scalar_one_or_none()


def answers_of_run(session: Session, run_id: uuid.UUID) -> dict[uuid.UUID, str]:
    """Class that was said of each case of a run."""
    statement = (
        select(PracticeItem.case_id, PracticeAnswer.class_code)
        .join(PracticeAnswer, PracticeAnswer.item_id == PracticeItem.id)
        .where(PracticeItem.run_id == run_id)
        .order_by(PracticeItem.position)
    )
    return {row[0]: row[1] for row in session.execute(statement)}


def count_items(session: Session, run_ids: list[uuid.UUID]) -> dict[uuid.UUID, tuple[int, int]]:
    """Cells of each run, and how many are answered."""
    statement = (
        select(PracticeItem.run_id, func.count(PracticeItem.id), func.count(PracticeAnswer.id))
        .outerjoin(PracticeAnswer, PracticeAnswer.item_id == PracticeItem.id)
        .where(PracticeItem.run_id.in_(run_ids))
        .group_by(PracticeItem.run_id)
    )
    return {row[0]: (row[1], row[2]) for row in session.execute(statement)}


def decisions_on(session: Session, annotator_id: uuid.UUID) -> list[Qualification]:
    """Decisions on an annotator, newest first."""
    statement = select(Qualification).where(Qualification.annotator_id == annotator_id)
    newest_first = (Qualification.created_at.desc(), Qualification.id.desc())
    return list(session.execute(statement.order_by(*newest_first)).scalars())
