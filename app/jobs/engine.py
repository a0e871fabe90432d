"""Long work behind one port: a request writes a row, the worker process does the job.

The row in ``jobs`` is what the API tells. Which job runs where, and what is resumed after a crash, is DBOS's
business (``app.worker``). A job function is written so that running it again goes on where it stopped. Each attempt
has a number; an attempt that was overtaken (its process had stopped and came back) may write nothing any more.
"""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog
from sqlalchemy import select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.context import Context
from app.platform import audit_chain
from app.platform.errors import Conflict, NotFound, Problem
from app.platform.principal import Principal
from app.tables import Job, now

#: Attempts before a job that keeps dying with its process is given up.
MAX_ATTEMPTS = 3
#: Silence after which a running job's process is taken for dead.
SILENCE = timedelta(seconds=60)
_log = structlog.get_logger("secondread")


class JobCancelledError(Exception):
    """Somebody asked for the job to stop."""


class JobOvertakenError(Exception):
    """Another process has taken the job over; this one must write nothing more."""


@dataclass(frozen=True)
class RunningJob:
    """One attempt at a job.

    Attributes:
        context: parts of the service.
        job_id: which job.
        attempt: its number, 1 for the first.
        parameters: what was asked for.
        observer: also told the share done, for a progress bar.
    """

    context: Context
    job_id: uuid.UUID
    attempt: int
    parameters: dict[str, Any]
    observer: Callable[[float], object] = lambda _: None

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Writing session, for this attempt only.

        Raises:
            JobOvertakenError: another attempt has begun.
            JobCancelledError: somebody asked for the job to stop.
        """
        with self.context.database.write() as session:
            job = session.get_one(Job, self.job_id, with_for_update=True)
            if job.attempts != self.attempt or job.state != "running":
                raise JobOvertakenError
            if job.cancel_requested:
                raise JobCancelledError
            yield session

    def report(self, progress: float, message: str) -> None:
        """Say how far the job is; stops it where somebody asked for that."""
        with self.write() as session:
            job = session.get_one(Job, self.job_id)
            job.progress, job.message, job.seen_at = min(max(progress, 0.0), 1.0), message[:500], now()
        self.observer(progress)


JobFunction = Callable[[RunningJob], dict[str, Any]]


def submit(
    session: Session, context: Context, kind: str, parameters: dict[str, Any], principal: Principal | None
) -> Job:
    """Ask for a job; it begins once the request has committed.

    Args:
        session: writing session of the request.
        context: parts of the service.
        kind: of ``app.job_kinds``.
        parameters: JSON values.
        principal: who asks; None for a schedule or the command line.
    """
    job = Job(kind=kind, parameters=parameters, created_by=None if principal is None else principal.account_id)
    session.add(job)
    session.flush()
    actor = "command line" if principal is None else principal.name
    details = {"kind": kind, "parameters": parameters}
    audit_chain.record(session, context.secret, actor=actor, action="job.submit", object_id=job.id, details=details)
    return job


def job_by_id(session: Session, job_id: uuid.UUID, *, lock: bool = False) -> Job:
    """A job.

    Raises:
        NotFound: there is no such job.
    """
    job = session.get(Job, job_id, with_for_update=True if lock else None)
    if job is None:
        raise NotFound("there is no such job")
    return job


def cancel(session: Session, context: Context, principal: Principal, job_id: uuid.UUID) -> Job:
    """Ask a job to stop; one that has not begun ends at once, one that has ended stays as it is."""
    job = job_by_id(session, job_id, lock=True)
    if job.state == "queued":
        job.state, job.ended_at = "cancelled", now()
    elif job.state == "running":
        job.cancel_requested = True
    else:
        return job
    session.flush()
    audit_chain.record(session, context.secret, actor=principal.name, action="job.cancel", object_id=job.id)
    return job


def retry(session: Session, context: Context, principal: Principal, job_id: uuid.UUID) -> Job:
    """Queue a failed or cancelled job again; it goes on where it stopped.

    Raises:
        NotFound: there is no such job.
        Conflict: it is under way, or has succeeded.
    """
    job = job_by_id(session, job_id, lock=True)
    if job.state not in {"failed", "cancelled"}:
        raise Conflict(f"the job is {job.state}; only a failed or cancelled one is tried again")
    job.state, job.cancel_requested, job.error, job.ended_at = "queued", False, None, None
    session.flush()
    audit_chain.record(session, context.secret, actor=principal.name, action="job.retry", object_id=job.id)
    return job


def waiting_jobs(session: Session) -> list[uuid.UUID]:
    """Jobs to begin: queued ones, and running ones whose process has fallen silent, oldest first."""
    silent = (Job.state == "running") & (Job.seen_at < now() - SILENCE)
    found = select(Job.id).where((Job.state == "queued") | silent).order_by(Job.id).limit(10)
    return list(session.execute(found).scalars())


def begin(context: Context, job_id: uuid.UUID) -> RunningJob | None:
    """Claim a job for a new attempt; None where another process has it, or it was given up."""
    with context.database.write() as session:
        job = session.get(Job, job_id, with_for_update={"skip_locked": True})
        if job is None or job.state not in {"queued", "running"}:
            return None
        if job.state == "running" and job.seen_at is not None and job.seen_at >= now() - SILENCE:
            return None
        if job.attempts >= MAX_ATTEMPTS and job.state == "running":
            job.state, job.ended_at = "failed", now()
            job.error = f"its process died {MAX_ATTEMPTS} times"
            return None
        job.state, job.attempts, job.seen_at = "running", job.attempts + 1, now()
        job.started_at = job.started_at or now()
        return RunningJob(context, job_id, job.attempts, job.parameters)


def forget_dead_process(context: Context) -> None:
    """Take every running job's process for dead: for a worker that knows to be the only one."""
    with context.database.write() as session:
        session.execute(update(Job).where(Job.state == "running").values(seen_at=now() - 2 * SILENCE))


@contextmanager
def _signs_of_life(running: RunningJob) -> Iterator[None]:
    """Write down every few seconds that the process lives, however long one part of its work takes."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(SILENCE.total_seconds() / 4):
            try:
                with running.write() as session:
                    session.get_one(Job, running.job_id).seen_at = now()
            except (JobCancelledError, JobOvertakenError):
                return
            except SQLAlchemyError as exc:
                _log.warning("no sign of life written", job=str(running.job_id), error=type(exc).__name__)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def begin_at_once(job: Job) -> None:
    """Begin a job in the transaction that makes it, so that no worker takes it: its own process does it."""
    job.state, job.attempts, job.seen_at, job.started_at = "running", 1, now(), now()


def perform(running: RunningJob, function: JobFunction) -> None:
    """Do a job and write down how it ended."""
    try:
        with _signs_of_life(running):
            result = function(running)
        with running.write() as session:
            job = session.get_one(Job, running.job_id)
            job.state, job.progress, job.message = "succeeded", 1.0, "done"
            job.result, job.ended_at = result, now()
    except JobOvertakenError:
        _log.warning("job overtaken", job=str(running.job_id), attempt=running.attempt)
    except JobCancelledError:
        _end(running, "cancelled", None)
    except (Problem, ValueError, OSError) as exc:
        _end(running, "failed", exc.detail if isinstance(exc, Problem) else str(exc))
    except Exception as exc:
        _log.exception("job failed", job=str(running.job_id))
        _end(running, "failed", f"a defect ({type(exc).__name__}); the worker's log tells more")


def _end(running: RunningJob, state: str, error: str | None) -> None:
    with running.context.database.write() as session:
        job = session.get_one(Job, running.job_id, with_for_update=True)
        if job.attempts == running.attempt and job.state == "running":
            job.state, job.error, job.ended_at = state, error, now()
