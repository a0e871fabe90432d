"""Job executor: runs jobs on DBOS in the worker, in a command or in a test.

DBOS on the service's database.

DBOS takes workflows from one queue per kind, so that kinds do not wait for each other, and remembers how they ended.
What a dead worker left is queued again by whoever notices.
"""

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from dbos import DBOS, DBOSConfig, DBOSPortableJSONSerializer
from sqlalchemy import event, select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from app.audit.chain import events
from app.audit.chain.change_tracking import update_columns
from app.context import ServiceContext
from app.database.dbos_adapter import (
    APPLICATION,
    APPLICATION_VERSION,
    read_traceparent,
    requeue_dead_worker_jobs,
    stop_scheduler,
    system_engine,
    workflow_table,
)
from app.database.tables import Job
from app.http import traces
from app.http.errors import Problem, is_retryable_error
from app.jobs.handle import (
    JobCancelledError,
    JobFailedError,
    JobFunction,
    JobOvertakenError,
    JobResult,
    RunningJob,
    WorkerStoppingError,
    cancel_if_idle,
    list_requested_cancellations,
)
from app.jobs.locks import lock_dead_worker, worker_lock
from ml.messages import packed, to_text

#: How often a workflow whose process keeps dying is begun again before it is given up.
MAX_RECOVERIES = 20
_UPKEEP = "upkeep"
# a database that is busy for a moment: tried so often, waiting longer each time
_TRIES = 5
_LOST_SECONDS = 30.0
_log = structlog.get_logger("secondread")
_current: "JobExecutor | None" = None
_registered: dict[str, Callable[..., Any]] = {}


@dataclass(frozen=True)
class JobSchedule:
    """Work that runs by a schedule."""

    cron: str
    work: Callable[[ServiceContext], object]


class JobExecutor:
    """Process that runs jobs."""

    def __init__(
        self,
        context: ServiceContext,
        kinds: Mapping[str, JobFunction],
        schedules: Mapping[str, JobSchedule] | None = None,
        poll_seconds: float = 0.5,
    ) -> None:
        self.context, self.kinds, self.schedules = context, kinds, schedules or {}
        self.id = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        #: workflows that were begun here
        self.begun = 0
        #: set when the lock is gone: this process must not continue as a worker
        self.broken = threading.Event()
        self._stopping = threading.Event()
        self._poll_seconds = poll_seconds
        self._url = context.settings.direct_sqlalchemy_url
        self._lock = worker_lock(self._url, self.id)
        self._running: set[str] = set()
        self._lost_since: dict[str, float] = {}
        self._engine = system_engine(self._url)
        event.listen(self._engine, "checkin", self._close_at_the_end)

    def _close_at_the_end(self, _connection: object, record: ConnectionPoolEntry) -> None:
        """A thread of DBOS that outlives this executor leaves no connection open."""
        if self._stopping.is_set():
            record.invalidate()

    def acquire(self) -> bool:
        """Become a worker; on SQLite there can be only one."""
        return self._lock.acquired()

    def start(self) -> None:
        """Begin to take jobs; the lock must be this process's."""
        global _current
        _current = self
        queues = [*self.kinds, *([_UPKEEP] if self.schedules else [])]
        for queue in queues:
            self.context.jobs.client.register_queue(
                queue, worker_concurrency=1, polling_interval_sec=self._poll_seconds
            )
        _register_workflows([*self.kinds], [*self.schedules])
        DBOS(config=self._config())
        logging.getLogger("dbos").addFilter(_reported_elsewhere)
        DBOS.listen_queues(queues)
        DBOS.launch()
        if self.schedules:
            self._apply_schedules()
        else:
            stop_scheduler()
        self.tend()

    def _config(self) -> DBOSConfig:
        return DBOSConfig(
            name=APPLICATION,
            system_database_engine=self._engine,
            system_database_url=self._url.replace("+psycopg", "", 1),
            serializer=DBOSPortableJSONSerializer(),
            application_version=APPLICATION_VERSION,
            executor_id=self.id,
            run_migrations=False,
            use_listen_notify=False,
            # nobody sends notifications; the end waits for this sleep
            notification_listener_polling_interval_sec=self._poll_seconds,
            log_level="WARNING",
        )

    def _apply_schedules(self) -> None:
        names = {f"{_UPKEEP}-{name}": schedule.cron for name, schedule in self.schedules.items()}
        for stored_schedule in DBOS.list_schedules():
            if stored_schedule["schedule_name"] not in names:
                DBOS.delete_schedule(stored_schedule["schedule_name"])
        DBOS.apply_schedules(
            [
                {"schedule_name": name, "workflow_fn": _registered[name], "schedule": cron, "queue_name": _UPKEEP}
                for name, cron in names.items()
            ]
        )

    def require_worker(self) -> None:
        """Make sure that this process may continue as a worker."""
        if not self._stopping.is_set() and not self._lock.kept():
            self.broken.set()
        if self._stopping.is_set() or self.broken.is_set():
            raise WorkerStoppingError

    def perform(self, kind: str, job_id: str) -> JobResult:
        """Do a job; called by DBOS as its workflow, again after a crash."""
        self.begun += 1
        workflow_id = str(DBOS.workflow_id)
        self._running.add(workflow_id)
        try:
            with self.context.database.read() as session:
                parameters = session.get_one(Job, uuid.UUID(job_id)).parameters
                asked_by = read_traceparent(session, workflow_id) if traces.is_tracing_on() else ""
            job = RunningJob(self.context, uuid.UUID(job_id), workflow_id, self.id, parameters, self.require_worker)
            with traces.record_span(f"job {kind}", "consumer", asked_by, job=job_id):
                kept: JobResult = packed(self._attempt(self.kinds[kind], job))
                return kept
        finally:
            self._running.discard(workflow_id)

    def _attempt(self, function: JobFunction, job: RunningJob) -> JobResult:
        """Call a job's function, again while the database is only busy, and say in a sentence why it failed."""
        tries = 0
        while True:
            try:
                job.begin()
                result = function(job)
                job.end()
                return result
            except (JobCancelledError, JobOvertakenError) as exc:
                _log.warning("job left", job=str(job.job_id), reason=type(exc).__name__)
                raise
            except events.KeyRotated:
                self.broken.set()
                raise WorkerStoppingError from None
            except (Problem, ValueError, OSError) as exc:
                raise JobFailedError(to_text(exc.detail if isinstance(exc, Problem) else str(exc))) from None
            except DBAPIError as exc:
                if not is_retryable_error(exc):
                    raise JobFailedError(_log_job_defect(job, exc)) from None
                self.require_worker()
                tries += 1
                _log.warning("the database refused a job", job=str(job.job_id), error=str(exc.orig))
                if tries == _TRIES:
                    self._wait_until_writable(job)
                    raise JobFailedError(f"the database refused: {exc.orig}") from None
                self._stopping.wait(0.25 * 2**tries)
            except Exception as exc:
                raise JobFailedError(_log_job_defect(job, exc)) from None

    def _wait_until_writable(self, job: RunningJob) -> None:
        """Wait for the database to take a sentence, so that it will take the failure too: a disk may be full."""
        while True:
            try:
                with job.write() as session:
                    message = "stopped: the database refused"
                    session.execute(update_columns(Job, message=message).where(Job.id == job.job_id))
                return
            except SQLAlchemyError:
                self._stopping.wait(1.0)

    def look_after(self, name: str) -> None:
        """Do what a schedule asks for, unless its next time waits already; a failure is logged, the next one comes."""
        try:
            if not self._waits(f"{_UPKEEP}-{name}"):
                self.schedules[name].work(self.context)
        except Exception:
            _log.exception("upkeep failed", schedule=name)

    def _waits(self, workflow_name: str) -> bool:
        """Whether a workflow of this name is in its queue."""
        workflows = workflow_table(self.context.database.engine.dialect.name)
        waiting = select(workflows.c.name).where(workflows.c.name == workflow_name, workflows.c.status == "ENQUEUED")
        with self.context.database.read() as session:
            return session.execute(waiting.limit(1)).first() is not None

    def tend(self) -> None:
        """Queue again what dead workers left, end what was cancelled, and notice when this one may not continue."""
        if not self._lock.kept():
            self.broken.set()
            return
        workflows = workflow_table(self.context.database.engine.dialect.name)
        columns = (workflows.c.workflow_uuid, workflows.c.name, workflows.c.executor_id)
        names = [*self.kinds, *(f"{_UPKEEP}-{name}" for name in self.schedules)]
        unfinished = select(*columns).where(workflows.c.status == "PENDING", workflows.c.name.in_(names))
        with self.context.database.read() as session:
            if events.count_keys(session) != len(self.context.keys.audit.signers):  # begun anew it reads the new ring
                self.broken.set()
                return
            pending, cancellations = session.execute(unfinished).all(), list_requested_cancellations(session)
        for workflow_id in set(cancellations) - self._running:  # a job that runs here notices by itself
            cancel_if_idle(self.context, workflow_id)
        for executor_id in {row.executor_id for row in pending} - {self.id}:
            with self.context.database.read() as session, lock_dead_worker(session, executor_id) as dead:
                if dead:
                    _log.warning(
                        "taking up what a dead worker left",
                        worker=executor_id,
                        jobs=requeue_dead_worker_jobs(executor_id),
                    )
        mine = {row.workflow_uuid for row in pending if row.executor_id == self.id and row.name in self.kinds}
        self._notice_lost(mine)

    @property
    def idle(self) -> bool:
        """Whether no job runs in this process."""
        return not self._running

    def _notice_lost(self, mine: set[str]) -> None:
        """A workflow that is ours in the database and runs nowhere, for long, is taken up by restarting."""
        lost = mine - self._running
        self._lost_since = {name: self._lost_since.get(name, time.monotonic()) for name in lost}
        if any(time.monotonic() - since > _LOST_SECONDS for since in self._lost_since.values()):
            _log.error("a job is lost; the worker restarts", workflows=sorted(lost))
            self.broken.set()

    def stop(self, seconds: int = 0) -> bool:
        """End: jobs stop before their next batch and continue with the next worker."""
        global _current
        self._stopping.set()
        DBOS.destroy(workflow_completion_timeout_sec=seconds)
        self._lock.release()
        self._engine.dispose()
        _current = None
        return self.idle


def _require_current() -> JobExecutor:
    """The executor of this process."""
    if _current is None:
        raise WorkerStoppingError
    return _current


def _register_workflows(kinds: list[str], schedules: list[str]) -> None:
    """Make DBOS know a workflow for each kind of job and each schedule, once in a process."""
    for kind in kinds:

        def do(job_id: str, kind: str = kind) -> JobResult:
            return _require_current().perform(kind, job_id)

        if kind not in _registered:
            _registered[kind] = DBOS.workflow(name=kind, max_recovery_attempts=MAX_RECOVERIES)(do)
    for schedule in schedules:

        def look_after(_moment: datetime, _context: Any, schedule: str = schedule) -> None:
            _require_current().look_after(schedule)

        name = f"{_UPKEEP}-{schedule}"
        if name not in _registered:
            _registered[name] = DBOS.workflow(name=name)(look_after)


def _log_job_defect(job: RunningJob, exc: Exception) -> str:
    """Log an unexpected error of a job and return a sentence for its requester."""
    _log.error("job failed", job=str(job.job_id), exc_info=exc)
    return f"a defect ({type(exc).__name__}); the worker's log says more"


def _reported_elsewhere(record: logging.LogRecord) -> bool:
    """Whether a line of DBOS's log says something new: how a job failed stands in the job and in our log."""
    return "background workflow" not in record.getMessage()


def forget_upkeep(context: ServiceContext) -> None:
    """Remove what DBOS remembers of schedules that ran more than a day ago; jobs are never forgotten."""
    client = context.jobs.client
    before = (context.clock() - timedelta(days=1)).isoformat()
    while True:
        old = client.list_workflows(
            queue_name=_UPKEEP, completed_before=before, limit=500, load_input=False, load_output=False
        )
        if not old:
            return
        client.delete_workflows([workflow.workflow_id for workflow in old])
