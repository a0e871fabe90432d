"""Queries of jobs."""

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, case, func, null, select
from sqlalchemy.orm import Session

from app.audit.chain.covered_rows import update_columns
from app.database.tables import Job, JobBatch, time_of
from app.database.tables.values import JobKind, JobState
from app.http.errors import NotFound
from app.jobs.handle import JobResult
from ml.messages import Message

#: States of a job that has not ended.
OPEN = ("queued", "running")
_STATES = (*OPEN, "succeeded", "failed", "cancelled")
#: Name of the batch in which a job notes the other jobs that it was divided into.
PARTS = "parts"
#: Kinds of jobs that a page asks for when somebody looks at it: lists of jobs leave them out.
BY_THEMSELVES = ("report",)


@dataclass(frozen=True)
class JobView:
    """A job as people see it."""

    id: uuid.UUID
    kind: JobKind
    # number of the workflow that does it
    attempt: int
    # what was asked for
    parameters: dict[str, Any]
    # account that asked, None for a schedule or the command line
    created_by: uuid.UUID | None
    state: JobState
    # share done, 0 to 1
    progress: float
    # what is being done
    message: str
    # how often a worker has begun it since somebody asked for it
    attempts: int
    # of one that succeeded
    result: JobResult | None
    # of one that failed
    error: str | None
    # when it was asked for
    created_at: datetime
    # when the first attempt began
    started_at: datetime | None
    ended_at: datetime | None
    # whether it ends, or ended, because somebody asked after it had begun
    cancel_requested: bool


def job_by_id(session: Session, job_id: uuid.UUID) -> JobView:
    """A job."""
    rows = jobs_where(session, Job.id == job_id)
    if not rows:
        raise NotFound("there is no such job")
    return rows[0]


def jobs_where(session: Session, *conditions: ColumnElement[bool], limit: int | None = None) -> list[JobView]:
    """Jobs, newest first, in one statement."""
    query = select(*Job.__table__.columns).where(*conditions).order_by(Job.id.desc()).limit(limit)
    return [_job_view_from_row(row) for row in session.execute(query)]


def newest_jobs(session: Session, limit: int, kind: str | None = None) -> list[JobView]:
    """Jobs, newest first, of one kind where it is named, else of all but those that renew a page by themselves."""
    return jobs_where(session, Job.kind.not_in(BY_THEMSELVES) if kind is None else Job.kind == kind, limit=limit)


def counts_by_state(session: Session) -> dict[str, int]:
    """Number of jobs in each state."""
    counts = {state: count for state, count in session.execute(select(Job.state, func.count()).group_by(Job.state))}
    return dict.fromkeys(_STATES, 0) | counts


def _job_view_from_row(row: Any) -> JobView:
    succeeded = row.state == "succeeded"
    return JobView(
        id=row.id,
        kind=row.kind,
        attempt=row.attempt,
        parameters=row.parameters,
        created_by=row.created_by,
        state=row.state,
        progress=1.0 if succeeded else row.progress,
        message=Message("done") if succeeded else row.message,
        attempts=row.begun,
        result=row.result,
        error=row.error,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        cancel_requested=row.begun > 0 if row.state == "cancelled" else row.cancel_requested_at is not None,
    )


def parts_of(session: Session, job_id: uuid.UUID) -> list[uuid.UUID]:
    """The other jobs that a job was divided into."""
    division = session.get(JobBatch, (job_id, PARTS))
    return [] if division is None else [uuid.UUID(part) for part in division.result["parts"]]


def requeue_running_jobs(session: Session, *conditions: ColumnElement[bool]) -> int:
    """Queue running jobs again under their next attempt, once a batch that is being written has ended."""
    running = select(Job.id).where(Job.state == "running", *conditions).with_for_update()
    job_ids = session.execute(running).scalars().all()
    if job_ids:
        cancelled = Job.cancel_requested_at.is_not(None)
        values = {
            "state": case((cancelled, "cancelled"), else_="queued"),
            "ended_at": case((cancelled, time_of(session)), else_=null()),
            "attempt": Job.attempt + 1,
            "executor_id": None,
        }
        session.execute(update_columns(Job, **values).where(Job.id.in_(job_ids)))
    return len(job_ids)
