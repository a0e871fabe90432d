"""Runs jobs in this process, under the lock of an executor: in a worker, or in the command that requested one."""

import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import structlog
from sqlalchemy.exc import DBAPIError

from app.audit.chain import events
from app.context import ServiceContext
from app.database.tables import Job, time_of
from app.http import observability
from app.http.errors import Problem, is_retryable_error
from app.jobs import handle
from app.jobs.locks import executor_lock
from app.jobs.queries import requeue_running_jobs
from app.settings import Settings
from ml.messages import packed

#: How often a job whose process keeps dying, or whose database keeps refusing, is begun before it has failed.
MAX_BEGINS = 20
_SLOTS = 64
_WAIT_SECONDS, _LOOK_SECONDS = 1.0, 0.05
_log = structlog.get_logger("secondread")
_Written = TypeVar("_Written")


def worker_ids(settings: Settings) -> list[str]:
    """Ids that a worker may have, the first that is free; on SQLite there is one worker."""
    if settings.sqlalchemy_url.startswith("sqlite"):
        return ["worker"]
    if settings.executor_id is not None:
        return [settings.executor_id]
    return [f"{socket.gethostname()}-{slot}" for slot in range(_SLOTS)]


def command_ids() -> list[str]:
    """Ids that a command may have which does its own job."""
    return [f"{socket.gethostname()}-command-{slot}" for slot in range(_SLOTS)]


class JobRunner:
    """Runs jobs while it has the lock of its executor id."""

    def __init__(self, context: ServiceContext, kinds: Mapping[str, handle.JobFunction], ids: Iterable[str]) -> None:
        self.context, self.kinds, self.id = context, kinds, ""
        #: jobs that run here, and how many were begun here
        self.running: set[str] = set()
        self.begun = 0
        #: set when the lock is gone or the key was rotated: this process must not continue
        self.broken = threading.Event()
        self._stopping = threading.Event()
        self._ids = ids
        self._lock = executor_lock(context.settings.direct_sqlalchemy_url)

    def acquire(self) -> bool:
        """Acquire the lock of the first free id; what a dead process left under it is queued again."""
        for executor_id in self._ids:
            if self._lock.acquire(executor_id):
                self.id = executor_id
                with self.context.database.write() as session:
                    requeue_running_jobs(session, Job.executor_id == self.id)
                return True
        return False

    def require_worker(self) -> None:
        """Make sure that this process may continue."""
        if not self._stopping.is_set():
            self.check()
        if self._stopping.is_set() or self.broken.is_set():
            raise handle.WorkerStoppingError

    def run(self, kind: str, job_id: str, attempt: int) -> None:
        """Run an attempt of a job, unless another run has it; how it ends is stored in its row."""
        self.running.add(job_id)
        try:
            job = self._until_written(lambda: self._begin(uuid.UUID(job_id), attempt))
            if job is not None:
                self._do(kind, *job)
        except (handle.JobCancelledError, handle.JobOvertakenError) as exc:
            _log.warning("job left", job=job_id, reason=type(exc).__name__)
        except events.KeyRotated:
            self.broken.set()
        except handle.WorkerStoppingError:
            pass  # it stays as it is: whoever gets this executor's lock queues it again
        finally:
            self.running.discard(job_id)

    def _begin(self, job_id: uuid.UUID, attempt: int) -> tuple[handle.RunningJob, str] | None:
        self.require_worker()
        with self.context.database.write() as session:
            row = session.get(Job, job_id, with_for_update=True)
            if row is None or (row.state, row.attempt) != ("queued", attempt):
                return None
            if row.cancel_requested_at is not None:
                row.state, row.ended_at = "cancelled", time_of(session)
                return None
            if row.begun >= MAX_BEGINS:
                row.state, row.ended_at = "failed", time_of(session)
                row.error = f"it was begun {row.begun} times without ending"
                return None
            row.state, row.executor_id, row.begun = "running", self.id, row.begun + 1
            row.started_at = row.started_at or time_of(session)
            job = handle.RunningJob(self.context, job_id, row.parameters, attempt, row.begun, self.require_worker)
            traceparent = row.traceparent
        self.begun += 1
        return job, traceparent

    def _do(self, kind: str, job: handle.RunningJob, traceparent: str) -> None:
        try:
            with observability.record_span(f"job {kind}", "consumer", traceparent, job=str(job.job_id)):
                result = packed(self.kinds[kind](job))
            self._until_written(lambda: job.end("succeeded", result=result))
        except (handle.JobCancelledError, handle.JobOvertakenError, events.KeyRotated):
            raise
        except (Problem, ValueError, OSError) as exc:
            self._fail(job, exc.detail if isinstance(exc, Problem) else str(exc))
        except DBAPIError as exc:
            if not is_retryable_error(exc):
                self._fail(job, _log_defect(job, exc))
                return
            _log.warning("the database refused a job", job=str(job.job_id), error=str(exc.orig))
            if job.begun < MAX_BEGINS:  # busy for a moment, say: it is queued again
                self._until_written(lambda: job.end("queued"))
            else:
                self._fail(job, f"the database refused: {exc.orig}")
        except Exception as exc:
            self._fail(job, _log_defect(job, exc))

    def _fail(self, job: handle.RunningJob, error: str) -> None:
        self._until_written(lambda: job.end("failed", error=error))

    def _until_written(self, work: Callable[[], _Written]) -> _Written:
        """Write how a job begins or ends as soon as the database takes it: a disk may be full."""
        while True:
            try:
                return work()
            except DBAPIError as exc:
                if not is_retryable_error(exc):
                    raise
                _log.warning("the database refused a job", error=str(exc.orig))
                self._stopping.wait(_WAIT_SECONDS)

    def stop(self, seconds: float) -> bool:
        """Ask every job to stop before its next batch, and wait for so long; whether all have stopped."""
        self._stopping.set()
        until = time.monotonic() + seconds
        while self.running and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
        return not self.running

    def release(self) -> None:
        """Release the lock, so that another worker continues what was left."""
        self._lock.release()

    def check(self) -> None:
        """Notice when this process may not continue."""
        if not self._lock.is_held():
            self.broken.set()


def _log_defect(job: handle.RunningJob, exc: Exception) -> str:
    """Log an unexpected error of a job and return a sentence for its requester."""
    _log.error("job failed", job=str(job.job_id), exc_info=exc)
    return f"a defect ({type(exc).__name__}); the worker's log says more"
