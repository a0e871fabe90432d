"""Jobs as the rest of the service sees them: ask for one, look at it, cancel it, try it again.

A job is a row that says what was asked for, and a workflow of DBOS that does it: state, attempts, result and error are
the workflow's. A request enqueues in its own transaction, so what is rolled back leaves nothing.
"""

import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select, update
from sqlalchemy.orm import Session

from app.context import Context
from app.platform import audit_chain
from app.platform.durable import output_table, workflow_table
from app.platform.errors import Conflict, NotFound
from app.platform.principal import Principal
from app.tables import Job, new_id

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


@dataclass(frozen=True)
class JobView:
    """A job and its workflow.

    Attributes:
        id: of the job.
        kind: of ``app.job_kinds``.
        workflow_id: of its present workflow.
        parameters: what was asked for.
        created_by: account that asked, None for a schedule or the command line.
        state: queued, running, succeeded, failed or cancelled.
        progress: share done, 0 to 1.
        message: what is being done.
        attempts: how often a worker has begun the present workflow.
        result: of one that succeeded.
        error: of one that failed.
        created_at: when it was asked for.
        started_at: when the present attempt began.
        ended_at: when it ended.
    """

    id: uuid.UUID
    kind: str
    workflow_id: str
    parameters: dict[str, Any]
    created_by: uuid.UUID | None
    state: str
    progress: float
    message: str
    attempts: int
    result: dict[str, Any] | None
    error: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody asked for it to stop: it has stopped for everybody but its worker, which writes no more."""
        return self.state == "cancelled"


def submit(
    session: Session, context: Context, kind: str, parameters: dict[str, Any], principal: Principal | None
) -> JobView:
    """Ask for a job; it begins once the request has committed.

    Args:
        session: writing session of the request.
        context: parts of the service.
        kind: of ``app.job_kinds``.
        parameters: JSON values.
        principal: who asks; None for a schedule or the command line.
    """
    job_id = new_id()
    account_id = None if principal is None else principal.account_id
    session.add(Job(id=job_id, kind=kind, workflow_id=str(job_id), parameters=parameters, created_by=account_id))
    session.flush()
    context.jobs.enqueue(session, kind, str(job_id), str(job_id))
    actor = "command line" if principal is None else principal.name
    details = {"kind": kind, "parameters": parameters}
    audit_chain.record(session, context.secret, actor=actor, action="job.submit", object_id=job_id, details=details)
    return job_by_id(session, job_id)


def job_by_id(session: Session, job_id: uuid.UUID) -> JobView:
    """A job.

    Raises:
        NotFound: there is no such job.
    """
    rows = jobs_where(session, Job.id == job_id)
    if not rows:
        raise NotFound("there is no such job")
    return rows[0]


def jobs_where(session: Session, *conditions: ColumnElement[bool], limit: int | None = None) -> list[JobView]:
    """Jobs, newest first, in one statement.

    Args:
        session: for reading.
        conditions: on the columns of ``Job``.
        limit: at most so many.
    """
    rows = session.execute(_with_workflow(session).where(*conditions).order_by(Job.id.desc()).limit(limit))
    return [_view(row) for row in rows]


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


def cancel(context: Context, principal: Principal, job_id: uuid.UUID) -> JobView:
    """Cancel a job; what it has stored so far stays, and one that has ended stays as it is.

    The event is committed before the workflow is cancelled: DBOS does that in a transaction of its own, which on SQLite
    would wait for this one.

    Raises:
        NotFound: there is no such job.
    """
    with context.database.write() as session:
        job = job_by_id(session, job_id)
        if job.state not in OPEN:
            return job
        audit_chain.record(session, context.secret, actor=principal.name, action="job.cancel", object_id=job.id)
    context.jobs.cancel([job.workflow_id])
    with context.database.read() as session:
        return job_by_id(session, job_id)


def retry(session: Session, context: Context, principal: Principal, job_id: uuid.UUID) -> JobView:
    """Queue a failed or cancelled job again as a new workflow; it goes on where it stopped.

    Raises:
        NotFound: there is no such job.
        Conflict: it is under way, or has succeeded.
    """
    # the lock: of two that try it again at the same time, one succeeds
    if session.get(Job, job_id, with_for_update=True) is None:
        raise NotFound("there is no such job")
    job = job_by_id(session, job_id)
    if job.state not in {"failed", "cancelled"}:
        raise Conflict(f"the job is {job.state}; only a failed or cancelled one is tried again")
    workflow_id = f"{job.id}-{uuid.uuid4().hex[:8]}"
    session.execute(update(Job).where(Job.id == job.id).values(workflow_id=workflow_id))
    context.jobs.enqueue(session, job.kind, workflow_id, str(job.id))
    audit_chain.record(session, context.secret, actor=principal.name, action="job.retry", object_id=job.id)
    return job_by_id(session, job_id)


def cancel_all(context: Context) -> int:
    """Cancel every job that has not ended: what was under way when a backup was made is not begun anew by surprise.

    Returns:
        Number of jobs.
    """
    with context.database.read() as session:
        open_jobs = [job for job in jobs_where(session) if job.state in OPEN]
    if open_jobs:
        context.jobs.cancel([job.workflow_id for job in open_jobs])
    return len(open_jobs)


def _with_workflow(session: Session) -> Select[Any]:
    dialect = session.get_bind().dialect.name
    workflows, outputs = workflow_table(dialect), output_table(dialect)
    return (
        select(
            *(Job.id, Job.kind, Job.workflow_id, Job.parameters, Job.created_by, Job.progress, Job.message),
            Job.created_at,
            *(workflows.c.status, workflows.c.recovery_attempts),
            *(workflows.c.started_at_epoch_ms, workflows.c.completed_at),
            *(outputs.c.output, outputs.c.error),
        )
        .outerjoin(workflows, workflows.c.workflow_uuid == Job.workflow_id)
        .outerjoin(outputs, outputs.c.workflow_uuid == Job.workflow_id)
    )


def _view(row: Any) -> JobView:
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
        result=json.loads(row.output) if state == "succeeded" else None,
        error=_error(row) if state == "failed" else None,
        created_at=row.created_at,
        started_at=_moment(row.started_at_epoch_ms),
        ended_at=_moment(row.completed_at),
    )


def _error(row: Any) -> str:
    if row.error is not None:
        return str(json.loads(row.error)["message"])
    if row.status is None:
        return "its workflow is missing from the database"
    return f"its process died {row.recovery_attempts} times"


def _moment(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)
