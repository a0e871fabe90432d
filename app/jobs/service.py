"""Submits, cancels and retries jobs.

A job is a row that says what was asked for, and a workflow of DBOS that does it: state, attempts, result and error are
the workflow's. A request enqueues in its own transaction, so what is rolled back leaves nothing.
"""

import uuid
from typing import Any

from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.change_tracking import update_columns
from app.context import ServiceContext
from app.database.dbos_adapter import cancel_workflows
from app.database.tables import Job, new_id
from app.http.errors import Conflict, NotFound
from app.http.principal import Principal
from app.jobs.handle import JobFunction, JobResult, RunningJob, cancel_if_idle, request_cancellation
from app.jobs.locks import count_living_workers
from app.jobs.queries import OPEN, PARTS, JobView, counts_by_state, job_by_id, jobs_where, newest_jobs, parts_of
from app.jobs.schemas import JobOut, job_out
from ml.messages import Message, Term

__all__ = [
    "OPEN",
    "PARTS",
    "JobFunction",
    "JobOut",
    "JobResult",
    "JobView",
    "RunningJob",
    "cancel_job_and_parts",
    "cancel_open_jobs",
    "count_living_workers",
    "counts_by_state",
    "job_out",
    "jobs_where",
    "newest_jobs",
    "requeue_job",
    "submit_job",
]


def submit_job(
    session: Session,
    context: ServiceContext,
    kind: str,
    parameters: dict[str, Any],
    principal: Principal | None,
    job_id: uuid.UUID | None = None,
) -> JobView:
    """Submit a job; it begins after the request has committed."""
    job_id = job_id or new_id()
    account_id = None if principal is None else principal.account_id
    session.add(Job(id=job_id, kind=kind, workflow_id=str(job_id), parameters=parameters, created_by=account_id))
    session.flush()
    context.jobs.enqueue(session, kind, str(job_id), str(job_id))
    actor = "command line" if principal is None else principal.name
    details = {"kind": kind, "parameters": parameters}
    events.record_event(
        session, context.keys.audit, actor=actor, action="job.submit", object_id=job_id, details=details
    )
    return job_by_id(session, job_id)


def cancel_job_and_parts(context: ServiceContext, principal: Principal, job_id: uuid.UUID) -> JobView:
    """Cancel a job and its parts; what they have stored so far stays."""
    # It does not wait for a batch that is being written: the request is kept, and the job ends before its next batch.
    # The event is recorded in the transaction that cancels the workflow, so there is never one without the other.
    with context.database.read() as session:
        jobs = [job_by_id(session, each) for each in (job_id, *parts_of(session, job_id))]
    for job in jobs:
        if job.state in OPEN:
            request_cancellation(context, job.workflow_id, principal.name)
            cancel_if_idle(context, job.workflow_id)
    with context.database.read() as session:
        return job_by_id(session, job_id)


def requeue_job(session: Session, context: ServiceContext, principal: Principal, job_id: uuid.UUID) -> JobView:
    """Queue a failed or cancelled job again as a new workflow; it resumes where it stopped."""
    # the lock: of two that try it again at the same time, one succeeds
    if session.get(Job, job_id, with_for_update=True) is None:
        raise NotFound("there is no such job")
    job = job_by_id(session, job_id)
    if job.state not in {"failed", "cancelled"}:
        raise Conflict(
            Message("the job is {state}; only a failed or cancelled one is tried again", state=Term(job.state))
        )
    workflow_id = f"{job.id}-{uuid.uuid4().hex[:8]}"
    session.execute(update_columns(Job, workflow_id=workflow_id).where(Job.id == job.id))
    context.jobs.enqueue(session, job.kind, workflow_id, str(job.id))
    events.record_event(session, context.keys.audit, actor=principal.name, action="job.retry", object_id=job.id)
    return job_by_id(session, job_id)


def cancel_open_jobs(context: ServiceContext) -> int:
    """Cancel every job that has not ended: what was under way when a backup was made is not restarted by surprise."""
    with context.database.write() as session:
        return cancel_workflows(session, [job.workflow_id for job in jobs_where(session) if job.state in OPEN])
