"""Database access of an annotator's day: cases read, declined and waiting."""

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import Session

from app.accounts.service import annotator_of_account
from app.database.tables import Annotator, Label, Read, Repeat, time_of
from app.http.days import start_of_day
from app.http.principal import Principal
from app.labels.queries import is_answered_by_label, leases_of
from app.labels.queue import count_waiting

#: Cases that the page of an annotator's day lists among those they have read.
LISTED = 120


@dataclass(frozen=True)
class DayProgress:
    """An annotator's day: cases read or declined, cases waiting, and those that they hold."""

    n_today: int
    n_waiting: int
    n_held: int = 0


def get_day_progress(session: Session, principal: Principal, zone: tzinfo = UTC) -> DayProgress:
    """Return an annotator's progress since midnight in the laboratory's time zone."""
    midnight = start_of_day(time_of(session), zone)
    ended_today = (
        select(func.count())
        .select_from(Read)
        .join(Annotator, Annotator.id == Read.annotator_id)
        .where(
            Annotator.account_id == principal.account_id,
            Read.state.in_(("committed", "declined")),
            Read.ended_at >= midnight,
        )
    )
    annotator = annotator_of_account(session, principal.account_id)
    n_held = 0 if annotator is None else len(leases_of(session, annotator.id))
    return DayProgress(session.execute(ended_today).scalar_one(), count_waiting(session, principal), n_held)


def labelled_cases(session: Session, principal: Principal, limit: int) -> list[uuid.UUID]:
    """Cases that an annotator has answered, by what their handles are made from, the last one first."""
    answered = _answered_by(principal).subquery()
    newest = select(answered.c.named).order_by(answered.c.created_at.desc(), answered.c.id.desc()).limit(limit)
    return list(session.execute(newest).scalars())


def listed_since(session: Session, annotator_id: uuid.UUID, n_listed: int = LISTED) -> datetime | None:
    """Return the time of the oldest answer on an annotator's page; None if it lists fewer."""
    answered = _first_answers_statement(Annotator.id == annotator_id).subquery()
    newest = select(answered.c.created_at).order_by(answered.c.created_at.desc()).offset(n_listed - 1).limit(1)
    return session.execute(newest).scalar_one_or_none()


def count_labelled_cases(session: Session, principal: Principal) -> int:
    """Count the cases that an annotator has answered."""
    return session.execute(select(func.count()).select_from(_answered_by(principal).subquery())).scalar_one()


def _answered_by(principal: Principal) -> Select[uuid.UUID, datetime, uuid.UUID]:
    return _first_answers_statement(Annotator.account_id == principal.account_id)


def _first_answers_statement(mine: ColumnElement[bool]) -> Select[uuid.UUID, datetime, uuid.UUID]:
    named = func.coalesce(Repeat.id, Label.case_id).label("named")
    return (
        select(named, Label.created_at, Label.id)
        .join(Annotator, Annotator.id == Label.annotator_id)
        .outerjoin(Repeat, is_answered_by_label())
        .where(mine, Label.supersedes_id.is_(None))
    )
