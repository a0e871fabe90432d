"""Database access of jobs."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.tables import Job


def newest_jobs(session: Session, limit: int, kind: str | None = None) -> list[Job]:
    """Jobs, newest first, of one kind where it is named."""
    statement = select(Job).order_by(Job.id.desc()).limit(limit)
    if kind is not None:
        statement = statement.where(Job.kind == kind)
    return list(session.execute(statement).scalars())
