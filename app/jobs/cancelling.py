"""Cancelling a job without waiting for the batch that is being written.

A batch keeps its workflow's row locked until it commits. So a request to cancel is a row of its own, which is honoured
at once where nothing is being written, and else by the job's worker before its next batch.
"""

from sqlalchemy import delete, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.context import Context
from app.database.dbos_adapter import cancel_workflows
from app.database.engine import insert_if_absent
from app.database.tables import Job, JobCancellation

# how long whoever asks waits for a row that a batch may have locked
_PATIENCE_MS = 200


def request_cancellation(context: Context, workflow_id: str, requested_by: str) -> None:
    """Record that somebody wants a workflow cancelled; locks nothing that a batch has locked on PostgreSQL.

    Args:
        context: parts of the service.
        workflow_id: of the job.
        requested_by: who, for the audit.
    """
    with context.database.write() as session:
        values = {"workflow_id": workflow_id, "requested_by": requested_by, "requested_at": context.clock()}
        insert_if_absent(session, JobCancellation, values)


def honour(session: Session, context: Context, workflow_id: str) -> bool:
    """Cancel a workflow if somebody asked for that, with the event; of one that has ended the request is forgotten.

    Args:
        session: writing session.
        context: parts of the service.
        workflow_id: of the job.

    Returns:
        Whether it is cancelled now and was not before.
    """
    request = session.execute(
        select(JobCancellation.requested_by, Job.id)
        .join(Job, Job.workflow_id == JobCancellation.workflow_id, isouter=True)
        .where(JobCancellation.workflow_id == workflow_id)
    ).one_or_none()
    if request is None:
        return False
    cancelled = bool(cancel_workflows(session, [workflow_id]))
    session.execute(delete(JobCancellation).where(JobCancellation.workflow_id == workflow_id))
    if cancelled:
        events.record(session, context.keys.audit, actor=request[0], action="job.cancel", object_id=request[1])
    return cancelled


def honour_if_free(context: Context, workflow_id: str) -> bool:
    """``honour`` in a transaction of its own, unless somebody else is writing: then the job's worker will do it.

    Returns:
        As ``honour``.
    """
    try:
        with context.database.write() as session:
            if session.get_bind().dialect.name == "postgresql":
                session.execute(text(f"SET LOCAL lock_timeout = {_PATIENCE_MS}"))
            return honour(session, context, workflow_id)
    except OperationalError:
        return False


def unanswered(session: Session) -> list[str]:
    """Workflows that somebody wants cancelled."""
    return list(session.execute(select(JobCancellation.workflow_id)).scalars())
