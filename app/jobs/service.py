"""Jobs as the rest of the service sees them: ask for one, cancel it, try it again.

A job is a row that says what was asked for, and a workflow of DBOS that does it: state, attempts, result and error are
the workflow's. A request enqueues in its own transaction, so what is rolled back leaves nothing.
"""

import uuid
from typing import Any

from sqlalchemy import update
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.context import Context
from app.database.dbos_adapter import cancel_workflows
from app.database.tables import Job, new_id
from app.http.errors import Conflict, NotFound
from app.http.principal import Principal
from app.jobs.handle import honour_if_free, request_cancellation
from app.jobs.queries import OPEN, JobView, job_by_id, jobs_where, parts_of
from ml.messages import Message, Term


def submit(
    session: Session,
    context: Context,
    kind: str,
    parameters: dict[str, Any],
    principal: Principal | None,
    job_id: uuid.UUID | None = None,
) -> JobView:
    """Ask for a job; it begins once the request has committed.

    Args:
        session: writing session of the request.
        context: parts of the service.
        kind: of ``app.job_table``.
        parameters: JSON values.
        principal: who asks; None for a schedule or the command line.
        job_id: identifier under which something was stored for it; a new one where left out.
    """
    job_id = job_id or new_id()
    account_id = None if principal is None else principal.account_id
    session.add(Job(id=job_id, kind=kind, workflow_id=str(job_id), parameters=parameters, created_by=account_id))
    session.flush()
    context.jobs.enqueue(session, kind, str(job_id), str(job_id))
    actor = "command line" if principal is None else principal.name
    details = {"kind": kind, "parameters": parameters}
    events.record(session, context.keys.audit, actor=actor, action="job.submit", object_id=job_id, details=details)
    return job_by_id(session, job_id)


def cancel(context: Context, principal: Principal, job_id: uuid.UUID) -> JobView:
    """Cancel a job and the parts that it was divided into; what they have stored so far stays, and what has ended too.

    It does not wait for a batch that is being written: the request is kept, and the job ends before its next batch.
    The event is recorded in the transaction that cancels the workflow, so there is never one without the other.

    Raises:
        NotFound: there is no such job.
    """
    with context.database.read() as session:
        jobs = [job_by_id(session, each) for each in (job_id, *parts_of(session, job_id))]
    for job in jobs:
        if job.state in OPEN:
            request_cancellation(context, job.workflow_id, principal.name)
            honour_if_free(context, job.workflow_id)
    with context.database.read() as session:
        return job_by_id(session, job_id)


def retry(session: Session, context: Context, principal: Principal, job_id: uuid.UUID) -> JobView:
    """Queue a failed or cancelled job again as a new workflow; it resumes where it stopped.

    Raises:
        NotFound: there is no such job.
        Conflict: it is under way, or has succeeded.
    """
    # the lock: of two that try it again at the same time, one succeeds
    if session.get(Job, job_id, with_for_update=True) is None:
        raise NotFound("there is no such job")
    job = job_by_id(session, job_id)
    if job.state not in {"failed", "cancelled"}:
        raise Conflict(
            Message("the job is {state}; only a failed or cancelled one is tried again", state=Term(job.state))
        )
    workflow_id = f"{job.id}-{uuid.uuid4().hex[:8]}"
    session.execute(update(Job).where(Job.id == job.id).values(workflow_id=workflow_id))
    context.jobs.enqueue(session, job.kind, workflow_id, str(job.id))
    events.record(session, context.keys.audit, actor=principal.name, action="job.retry", object_id=job.id)
    return job_by_id(session, job_id)


def cancel_all(context: Context) -> int:
    """Cancel every job that has not ended: what was under way when a backup was made is not restarted by surprise.

    Returns:
        Number of jobs.
    """
    with context.database.write() as session:
        return cancel_workflows(session, [job.workflow_id for job in jobs_where(session) if job.state in OPEN])
