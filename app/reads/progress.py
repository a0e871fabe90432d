"""Database access of an annotator's own day: what they have read, declined and still have to read."""

import uuid
from dataclasses import dataclass

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from app.platform.principal import Principal
from app.reads.queries import count_waiting
from app.tables import Annotator, Label, Read, now


@dataclass(frozen=True)
class Progress:
    """An annotator's day (UTC): cases read or declined, and cases waiting."""

    n_today: int
    n_waiting: int


def progress(session: Session, principal: Principal) -> Progress:
    """How far an annotator is today."""
    midnight = now().replace(hour=0, minute=0, second=0, microsecond=0)
    ended_today = (
        select(func.count(Read.id))
        .join(Annotator, Annotator.id == Read.annotator_id)
        .where(
            Annotator.account_id == principal.account_id,
            Read.state.in_(("committed", "declined")),
            Read.ended_at >= midnight,
        )
    )
    return Progress(session.execute(ended_today).scalar_one(), count_waiting(session, principal))


def labelled_cases(session: Session, principal: Principal, limit: int) -> list[uuid.UUID]:
    """Cases that an annotator has labelled, the one that they labelled last first."""
    labelled = _labelled_by(principal).order_by(Label.created_at.desc(), Label.id.desc()).limit(limit)
    return list(session.execute(labelled).scalars())


def count_labelled_cases(session: Session, principal: Principal) -> int:
    """How many cases an annotator has labelled."""
    return session.execute(select(func.count()).select_from(_labelled_by(principal).subquery())).scalar_one()


def _labelled_by(principal: Principal) -> Select[uuid.UUID]:
    return (
        select(Label.case_id)
        .join(Annotator, Annotator.id == Label.annotator_id)
        .where(Annotator.account_id == principal.account_id, Label.supersedes_id.is_(None))
    )
