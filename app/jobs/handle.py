"""Handle of a running job: batches, progress and cancellation.

A batch keeps its workflow's row locked until it commits. So a request to cancel is a row of its own, which is honoured
at once where nothing is being written, and else by the job's worker before its next batch.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, exists, select, text, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.context import Context
from app.database.dbos_adapter import cancel_workflows, workflow_table
from app.database.engine import insert_if_absent
from app.database.tables import Job, JobBatch, JobCancellation, time_of
from app.database.tables.jobs import MESSAGE_LENGTH
from ml.messages import to_text

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


#: What a job ends with: JSON values, declared by each kind of job.
JobResult = Mapping[str, object]


class JobFailedError(Exception):
    """A job cannot be done; the message is what people are shown."""


class JobCancelledError(Exception):
    """Somebody asked for the job to stop."""


class JobOvertakenError(Exception):
    """Another worker has the job now; this one must write nothing more."""


class WorkerStoppingError(BaseException):
    """The worker ends or has lost its lock: the workflow stays as it is, for the next worker.

    No ``Exception``, because that would be recorded as the workflow's failure.
    """


@dataclass(frozen=True)
class RunningJob:
    """A job that this process does.

    Attributes:
        context: parts of the service.
        job_id: which job.
        workflow_id: workflow that does it.
        executor_id: this process.
        parameters: what was asked for.
        require_worker: raises ``WorkerStoppingError`` where the worker may not continue.
    """

    context: Context
    job_id: uuid.UUID
    workflow_id: str
    executor_id: str
    parameters: dict[str, Any]
    require_worker: Callable[[], None]

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Writing session that commits only while the job is this worker's.

        The workflow's row stays locked until the commit, so nobody takes the job over in between.

        Raises:
            WorkerStoppingError: the worker ends.
            JobOvertakenError: another worker has the job.
            JobCancelledError: somebody asked for the job to stop.
        """
        self.require_worker()
        with self.context.database.write() as session:
            if not self._asked_to_stop(session):
                yield session
                return
            honour(session, self.context, self.workflow_id)
        raise JobCancelledError

    def _asked_to_stop(self, session: Session) -> bool:
        """Lock the workflow's row; whether somebody asked to cancel the job, which is this worker's.

        Raises:
            JobOvertakenError: another worker has the job.
            JobCancelledError: it was cancelled.
        """
        workflows = workflow_table(session.get_bind().dialect.name)
        status, executor_id, asked = session.execute(
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
        return bool(asked)

    def begin(self) -> None:
        """Say that the first attempt begins; later ones change nothing."""
        with self.write() as session:
            session.execute(
                update(Job).where(Job.id == self.job_id, Job.started_at.is_(None)).values(started_at=time_of(session))
            )

    def end(self) -> None:
        """Make sure that nobody asked to cancel the job while its last batch was written.

        Raises:
            JobCancelledError: somebody did.
        """
        with self.context.database.read() as session:
            asked = session.get(JobCancellation, self.workflow_id) is not None
        if asked:
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
        values = {"progress": min(max(progress, 0.0), 1.0), "message": shown}
        session.execute(update(Job).where(Job.id == self.job_id).values(values))

    def batch(self, name: str, work: Callable[[Session], JobResult]) -> JobResult:
        """Write a part of the job once, whoever dies when: its result is recorded in the transaction that writes it.

        Args:
            name: of the part, unique in the job.
            work: writes it; not called where an earlier attempt has.

        Returns:
            What ``work`` returned, now or then; JSON values.
        """
        with self.write() as session:
            known = session.get(JobBatch, (self.job_id, name))
            if known is not None:
                return known.result
            result = work(session)
            session.add(JobBatch(job_id=self.job_id, name=name, result=dict(result)))
            return result

    def recorded(self, name: str) -> JobResult | None:
        """Result of a part that was written already."""
        with self.context.database.read() as session:
            known = session.get(JobBatch, (self.job_id, name))
            return None if known is None else known.result


JobFunction = Callable[[RunningJob], JobResult]
