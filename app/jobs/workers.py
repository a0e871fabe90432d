"""Workers that run now, and those that are missing: each stores now and then that it was there."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from app.database.tables import Job, WorkerRow, time_of
from app.jobs.locks import find_living_executors
from app.jobs.queries import requeue_running_jobs

#: How often a worker stores that it is there, and after how long it is missing.
HEARTBEAT_SECONDS = 10.0
_MISSING = timedelta(minutes=2)


@dataclass(frozen=True)
class MissingWorker:
    """A worker that neither ended nor was seen for two minutes."""

    executor_id: str
    seen_at: datetime


def record_heartbeat(session: Session, executor_id: str) -> None:
    """Store that a worker is there."""
    session.merge(WorkerRow(executor_id=executor_id, seen_at=time_of(session)))


def forget_worker(session: Session, executor_id: str) -> None:
    """Remove a worker that has ended."""
    session.execute(delete(WorkerRow).where(WorkerRow.executor_id == executor_id))


def count_living_workers(session: Session) -> int:
    """Number of workers whose process lives."""
    return len(find_living_executors(session, session.execute(select(WorkerRow.executor_id)).scalars().all()))


def list_missing_workers(session: Session) -> list[MissingWorker]:
    """Workers that were not seen for two minutes."""
    missing = select(WorkerRow).where(WorkerRow.seen_at < time_of(session) - _MISSING).order_by(WorkerRow.executor_id)
    return [MissingWorker(row.executor_id, row.seen_at) for row in session.execute(missing).scalars()]


def requeue_jobs_of_dead_executors(session: Session) -> int:
    """Queue again what processes left that are gone."""
    running = select(Job.executor_id).where(Job.state == "running").distinct()
    executor_ids = {str(executor_id) for executor_id in session.execute(running).scalars()}
    dead = executor_ids - find_living_executors(session, executor_ids)
    return requeue_running_jobs(session, Job.executor_id.in_(dead)) if dead else 0


def take_over_worker(session: Session, executor_id: str) -> int:
    """Queue again what a worker left whose host is gone, and forget the worker; refused while it lives."""
    known_ids = session.execute(select(WorkerRow.executor_id).order_by(WorkerRow.executor_id)).scalars().all()
    if executor_id not in known_ids:
        raise ValueError(f"there is no worker {executor_id}; there are: {', '.join(known_ids) or 'none'}")
    if find_living_executors(session, [executor_id]):
        raise ValueError(f"the worker {executor_id} lives; end it first")
    forget_worker(session, executor_id)
    return requeue_running_jobs(session, Job.executor_id == executor_id)
