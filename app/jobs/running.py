"""A job while a worker does it: every transaction first makes sure that the job is still this worker's."""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import exists, select, update
from sqlalchemy.orm import Session

from app.context import Context
from app.database.dbos_adapter import workflow_table
from app.database.tables import Job, JobBatch, JobCancellation, time_of
from app.database.tables.jobs import MESSAGE_LENGTH
from app.jobs.cancelling import honour
from ml.messages import to_text

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
