"""Handle of a running job: batches, progress and cancellation."""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.audit.chain.covered_rows import update_columns
from app.context import ServiceContext
from app.database.tables import Job, JobBatch, time_of
from app.database.tables.jobs import MESSAGE_LENGTH
from ml.messages import to_text

_PROGRESS = "progress of the job"

#: What a job ends with: JSON values, declared by each kind of job.
JobResult = Mapping[str, object]


class JobCancelledError(Exception):
    """Somebody asked for the job to stop."""


class JobOvertakenError(Exception):
    """Another run has the job now; this one must write nothing more."""


class WorkerStoppingError(BaseException):
    """The process ends or has lost its lock: the next worker continues the job."""

    # No ``Exception``, because a job's function would take that for a failure of its own.


@dataclass(frozen=True)
class RunningJob:
    """A job that this process runs."""

    # parts of the service
    context: ServiceContext
    job_id: uuid.UUID
    # what was asked for
    parameters: dict[str, Any]
    # this run: the attempt, and how often the job was begun since somebody asked for it
    attempt: int
    begun: int
    # raises ``WorkerStoppingError`` where this process may not continue
    require_worker: Callable[[], None]

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Writing session that commits only while the job is this run's."""
        self.require_worker()
        with self.context.database.write() as session:
            if not self._lock_row(session):
                yield session
                if _PROGRESS in session.info:  # last, because the changed row keeps a request to cancel waiting
                    self._set(session, **session.info[_PROGRESS])
                return
            self._set(session, state="cancelled", ended_at=time_of(session))
        raise JobCancelledError

    def _lock_row(self, session: Session, *, whole: bool = False) -> bool:
        """Lock the job's row, which must be this run's; whether somebody asked to cancel the job."""
        columns = (Job.state, Job.attempt, Job.begun, Job.cancel_requested_at)
        # FOR KEY SHARE: no other run may begin meanwhile, but a request to cancel may be written
        query = select(*columns).where(Job.id == self.job_id).with_for_update(read=not whole, key_share=not whole)
        row = session.execute(query).one()
        if (row.attempt, row.begun) != (self.attempt, self.begun):
            raise JobOvertakenError
        if row.state != "running":
            raise JobCancelledError if row.state == "cancelled" else JobOvertakenError
        return row.cancel_requested_at is not None

    def _set(self, session: Session, **values: object) -> None:
        session.execute(update_columns(Job, **values).where(Job.id == self.job_id))

    def end(self, state: str, **values: object) -> None:
        """End the job, or give it back to the queue; one that somebody asked to cancel does not succeed."""
        self.require_worker()
        with self.context.database.write() as session:
            if self._lock_row(session, whole=True) and state != "failed":
                state, values = "cancelled", {}
            if state == "queued":
                values = {"attempt": self.attempt + 1, "executor_id": None}
            else:
                values["ended_at"] = time_of(session)
            self._set(session, state=state, **values)

    def report(self, progress: float, message: str) -> None:
        """Store how far the job is; ends it where somebody asked for that."""
        with self.write() as session:
            self.report_in(session, progress, message)

    def report_in(self, session: Session, progress: float, message: str) -> None:
        """Store how far the job is, in the transaction that brings it there."""
        fits = len(to_text(message)) <= MESSAGE_LENGTH
        text = message if fits else message[:MESSAGE_LENGTH]
        session.info[_PROGRESS] = {"progress": min(max(progress, 0.0), 1.0), "message": text}

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
