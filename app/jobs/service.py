"""Submits, cancels and retries jobs."""

import uuid
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.covered_rows import update_columns
from app.context import ServiceContext
from app.database.tables import Job, new_id, time_of
from app.http import observability
from app.http.errors import Conflict, NotFound
from app.http.principal import Principal
from app.jobs.handle import JobFunction, JobResult, RunningJob
from app.jobs.queries import OPEN, PARTS, JobView, counts_by_state, job_by_id, jobs_where, newest_jobs, parts_of
from app.jobs.schemas import JobOut, job_out
from app.jobs.workers import count_living_workers, list_missing_workers, take_over_worker
from ml.messages import Term


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
    traceparent = observability.get_trace_headers().get(observability.TRACEPARENT, "")
    session.add(Job(id=job_id, kind=kind, parameters=parameters, created_by=account_id, traceparent=traceparent))
    actor = "command line" if principal is None else principal.name
    details = {"kind": kind, "parameters": parameters}
    events.record_event(
        session, context.keys.audit, actor=actor, action="job.submit", object_id=job_id, details=details
    )
    session.flush()
    return job_by_id(session, job_id)


def cancel_job_and_parts(context: ServiceContext, principal: Principal, job_id: uuid.UUID) -> JobView:
    """Cancel a job and its parts; what they have stored so far stays."""
    with context.database.read() as session:
        job_ids = [job_by_id(session, each).id for each in (job_id, *parts_of(session, job_id))]
    for each in job_ids:
        with context.database.write() as session:
            if _cancel_job(session, each, principal.name):
                events.record_event(
                    session, context.keys.audit, actor=principal.name, action="job.cancel", object_id=each
                )
    with context.database.read() as session:
        return job_by_id(session, job_id)


def _cancel_job(session: Session, job_id: uuid.UUID, requested_by: str) -> bool:
    """Cancel a job at once, or before its next batch if one is being written; whether it was open."""
    lock = select(Job.id).where(Job.id == job_id).with_for_update(skip_locked=True)
    is_idle = session.execute(lock).first() is not None
    values = {"cancel_requested_at": time_of(session), "cancel_requested_by": requested_by}
    if is_idle:
        values |= {"state": "cancelled", "ended_at": time_of(session)}
    request = update_columns(Job, **values)
    request = request.where(Job.id == job_id, Job.state.in_(OPEN), Job.cancel_requested_at.is_(None))
    return session.execute(request.returning(Job.id)).first() is not None


def requeue_job(session: Session, context: ServiceContext, principal: Principal, job_id: uuid.UUID) -> JobView:
    """Queue a failed or cancelled job again; it resumes where it stopped."""
    # the lock: of two that try it again at the same time, one succeeds
    job = session.get(Job, job_id, with_for_update=True)
    if job is None:
        raise NotFound("there is no such job")
    if job.state not in {"failed", "cancelled"}:
        raise Conflict("the job is {state}; only failed or cancelled jobs can be retried", state=Term(job.state))
    job.state, job.attempt, job.begun, job.executor_id = "queued", job.attempt + 1, 0, None
    job.error = job.ended_at = job.cancel_requested_at = job.cancel_requested_by = None
    events.record_event(session, context.keys.audit, actor=principal.name, action="job.retry", object_id=job.id)
    session.flush()
    return job_by_id(session, job_id)


def cancel_open_jobs(context: ServiceContext) -> int:
    """Cancel every job that has not ended: what was under way when a backup was made is not restarted by surprise."""
    with context.database.write() as session:
        cancelled = update_columns(Job, state="cancelled", ended_at=time_of(session))
        return len(session.execute(cancelled.where(Job.state.in_(OPEN)).returning(Job.id)).all())
