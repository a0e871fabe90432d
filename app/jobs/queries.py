"""Queries of jobs, joined with their workflows."""

import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, exists, func, select
from sqlalchemy.orm import Session

from app.database.dbos_adapter import output_table, workflow_table
from app.database.tables import Job, JobBatch, JobCancellation
from app.http.errors import NotFound
from app.jobs.handle import JobResult
from ml.messages import from_json, from_text

_STATES = {
    "ENQUEUED": "queued",
    "DELAYED": "queued",
    "PENDING": "running",
    "SUCCESS": "succeeded",
    "CANCELLED": "cancelled",
    "ERROR": "failed",
    "MAX_RECOVERY_ATTEMPTS_EXCEEDED": "failed",
}
#: States of a job that has not ended.
OPEN = ("queued", "running")
#: Name of the batch in which a job notes the other jobs that it was divided into.
PARTS = "parts"
#: Kinds of jobs that a page asks for when somebody looks at it: lists of jobs leave them out.
BY_THEMSELVES = ("report",)


@dataclass(frozen=True)
class JobView:
    """A job and its workflow."""

    id: uuid.UUID
    kind: str
    # of its present workflow
    workflow_id: str
    # what was asked for
    parameters: dict[str, Any]
    # account that asked, None for a schedule or the command line
    created_by: uuid.UUID | None
    # queued, running, succeeded, failed or cancelled
    state: str
    # share done, 0 to 1
    progress: float
    # what is being done
    message: str
    # how often a worker has begun the present workflow
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
    # whether somebody asked to cancel it and the present workflow has not been cancelled yet
    asked_to_stop: bool

    @property
    def cancel_requested(self) -> bool:
        """Whether it ends, or ended, because somebody asked after it had begun."""
        # Until the batch that is being written has ended, its state is what it was; no other batch is begun.
        return self.asked_to_stop if self.state in OPEN else self.state == "cancelled" and self.attempts > 0


def job_by_id(session: Session, job_id: uuid.UUID) -> JobView:
    """A job."""
    rows = jobs_where(session, Job.id == job_id)
    if not rows:
        raise NotFound("there is no such job")
    return rows[0]


def jobs_where(session: Session, *conditions: ColumnElement[bool], limit: int | None = None) -> list[JobView]:
    """Jobs, newest first, in one statement."""
    rows = session.execute(_with_workflow(session).where(*conditions).order_by(Job.id.desc()).limit(limit))
    return [_job_view_from_row(row) for row in rows]


def newest_jobs(session: Session, limit: int, kind: str | None = None) -> list[JobView]:
    """Jobs, newest first, of one kind where it is named, else of all but those that renew a page by themselves."""
    return jobs_where(session, Job.kind.not_in(BY_THEMSELVES) if kind is None else Job.kind == kind, limit=limit)


def counts_by_state(session: Session) -> dict[str, int]:
    """Number of jobs in each state."""
    workflows = workflow_table(session.get_bind().dialect.name)
    status = (
        select(workflows.c.status, func.count())
        .select_from(Job)
        .outerjoin(workflows, workflows.c.workflow_uuid == Job.workflow_id)
        .group_by(workflows.c.status)
    )
    counts = dict.fromkeys(_STATES.values(), 0)
    for name, count in session.execute(status):
        counts[_STATES.get(name, "failed")] += count
    return counts


def _with_workflow(session: Session) -> Select[Any]:
    dialect = session.get_bind().dialect.name
    workflows, outputs = workflow_table(dialect), output_table(dialect)
    return (
        select(
            *(Job.id, Job.kind, Job.workflow_id, Job.parameters, Job.created_by, Job.progress, Job.message),
            *(Job.created_at, Job.started_at),
            exists().where(JobCancellation.workflow_id == Job.workflow_id).label("asked_to_stop"),
            *(workflows.c.status, workflows.c.recovery_attempts),
            *(workflows.c.started_at_epoch_ms, workflows.c.completed_at),
            *(outputs.c.output, outputs.c.error),
        )
        .outerjoin(workflows, workflows.c.workflow_uuid == Job.workflow_id)
        .outerjoin(outputs, outputs.c.workflow_uuid == Job.workflow_id)
    )


def _job_view_from_row(row: Any) -> JobView:
    state = _STATES.get(row.status, "failed")
    return JobView(
        id=row.id,
        kind=row.kind,
        workflow_id=row.workflow_id,
        parameters=row.parameters,
        created_by=row.created_by,
        state=state,
        progress=1.0 if state == "succeeded" else row.progress,
        message="done" if state == "succeeded" else row.message,
        attempts=row.recovery_attempts or 0,
        result=from_json(row.output) if state == "succeeded" else None,
        error=_read_job_error(row) if state == "failed" else None,
        created_at=row.created_at,
        started_at=row.started_at or _time_from_milliseconds(row.started_at_epoch_ms),
        ended_at=_time_from_milliseconds(row.completed_at),
        asked_to_stop=row.asked_to_stop,
    )


def _read_job_error(row: Any) -> str:
    if row.error is not None:
        return from_text(json.loads(row.error)["message"])
    if row.status is None:
        return "its workflow is missing from the database"
    return f"it was begun {row.recovery_attempts} times without ending"


def _time_from_milliseconds(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)


def parts_of(session: Session, job_id: uuid.UUID) -> list[uuid.UUID]:
    """The other jobs that a job was divided into."""
    division = session.get(JobBatch, (job_id, PARTS))
    return [] if division is None else [uuid.UUID(part) for part in division.result["parts"]]
