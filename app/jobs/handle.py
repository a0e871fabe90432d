"""Handle of a running job: batches, progress and cancellation.

A batch keeps its workflow's row locked until it commits. So a request to cancel is a row of its own, which is honoured
at once where nothing is being written, and else by the job's worker before its next batch.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, exists, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.change_tracking import update_columns
from app.context import ServiceContext
from app.database.dbos_adapter import cancel_workflows, workflow_table
from app.database.engine import insert_if_absent
from app.database.tables import Job, JobBatch, JobCancellation, time_of
from app.database.tables.jobs import MESSAGE_LENGTH
from ml.messages import to_text

# how long whoever asks waits for a row that a batch may have locked
_PATIENCE_MS = 200


def request_cancellation(context: ServiceContext, workflow_id: str, requested_by: str) -> None:
    """Record a request to cancel a workflow, without waiting for its batch."""
    with context.database.write() as session:
        values = {"workflow_id": workflow_id, "requested_by": requested_by, "requested_at": context.clock()}
        insert_if_absent(session, JobCancellation, values)


def cancel_if_requested(session: Session, context: ServiceContext, workflow_id: str) -> bool:
    """Cancel a workflow if that was requested, and record the event."""
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
        events.record_event(session, context.keys.audit, actor=request[0], action="job.cancel", object_id=request[1])
    return cancelled


def cancel_if_idle(context: ServiceContext, workflow_id: str) -> bool:
    """Cancel a requested workflow now, unless its worker is writing."""
    try:
        with context.database.write() as session:
            if session.get_bind().dialect.name == "postgresql":
                session.execute(text(f"SET LOCAL lock_timeout = {_PATIENCE_MS}"))
            return cancel_if_requested(session, context, workflow_id)
    except OperationalError:
        return False


def list_requested_cancellations(session: Session) -> list[str]:
    """List the workflows with a request to cancel."""
    return list(session.execute(select(JobCancellation.workflow_id)).scalars())


#: What a job ends with: JSON values, declared by each kind of job.
JobResult = Mapping[str, object]


class JobFailedError(Exception):
    """A job cannot be done; the message is what people are shown."""


class JobCancelledError(Exception):
    """Somebody asked for the job to stop."""


class JobOvertakenError(Exception):
    """Another worker has the job now; this one must write nothing more."""


class WorkerStoppingError(BaseException):
    """The worker ends or has lost its lock: the workflow stays as it is, for the next worker."""

    # No ``Exception``, because that would be recorded as the workflow's failure.


@dataclass(frozen=True)
class RunningJob:
    """A job that this process does."""

    # parts of the service
    context: ServiceContext
    job_id: uuid.UUID
    # workflow that does it
    workflow_id: str
    executor_id: str
    # what was asked for
    parameters: dict[str, Any]
    # raises ``WorkerStoppingError`` where the worker may not continue
    require_worker: Callable[[], None]

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Writing session that commits only while the job is this worker's."""
        # The workflow's row stays locked until the commit, so nobody takes the job over in between.
        self.require_worker()
        with self.context.database.write() as session:
            if not self._asked_to_stop(session):
                yield session
                return
            cancel_if_requested(session, self.context, self.workflow_id)
        raise JobCancelledError

    def _asked_to_stop(self, session: Session) -> bool:
        """Lock the workflow's row; whether somebody asked to cancel the job, which is this worker's."""
        workflows = workflow_table(session.get_bind().dialect.name)
        status, executor_id, cancel_requested = session.execute(
            select(
                *(workflows.c.status, workflows.c.executor_id),
                exists().where(JobCancellation.workflow_id == workflows.c.workflow_uuid),
            )
            .where(workflows.c.workflow_uuid == self.workflow_id)
            .with_for_update(key_share=True, of=workflows)
        ).one()
        if status == "CANCELLED":
            raise JobCancelledError
        if (status, executor_id) != ("PENDING", self.executor_id):
            raise JobOvertakenError
        return bool(cancel_requested)

    def begin(self) -> None:
        """Say that the first attempt begins; later ones change nothing."""
        with self.write() as session:
            begun = update_columns(Job, started_at=time_of(session))
            session.execute(begun.where(Job.id == self.job_id, Job.started_at.is_(None)))

    def end(self) -> None:
        """Make sure that nobody asked to cancel the job while its last batch was written."""
        with self.context.database.read() as session:
            cancel_requested = session.get(JobCancellation, self.workflow_id) is not None
        if cancel_requested:
            with self.write():
                pass

    def report(self, progress: float, message: str) -> None:
        """Say how far the job is; ends it where somebody asked for that."""
        with self.write() as session:
            self.report_in(session, progress, message)

    def report_in(self, session: Session, progress: float, message: str) -> None:
        """Say how far the job is, in the transaction that brings it there."""
        fits = len(to_text(message)) <= MESSAGE_LENGTH
        shown = message if fits else message[:MESSAGE_LENGTH]
        reported = update_columns(Job, progress=min(max(progress, 0.0), 1.0), message=shown)
        session.execute(reported.where(Job.id == self.job_id))

    def batch(self, name: str, work: Callable[[Session], JobResult]) -> JobResult:
        """Write a part of the job once, whoever dies when: its result is recorded in the transaction that writes it."""
        with self.write() as session:
            stored_batch = session.get(JobBatch, (self.job_id, name))
            if stored_batch is not None:
                return stored_batch.result
            result = work(session)
            session.add(JobBatch(job_id=self.job_id, name=name, result=dict(result)))
            return result

    def recorded(self, name: str) -> JobResult | None:
        """Result of a part that was written already."""
        with self.context.database.read() as session:
            stored_batch = session.get(JobBatch, (self.job_id, name))
            return None if stored_batch is None else stored_batch.result


JobFunction = Callable[[RunningJob], JobResult]
