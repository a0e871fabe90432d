"""Worker's job executor: DBOS takes queued jobs from one queue per kind, and enqueues what schedules ask for."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import structlog
from dbos import DBOS, DBOSConfig, DBOSPortableJSONSerializer, SetWorkflowID
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from app.audit.chain import events
from app.audit.chain.covered_rows import update_columns
from app.context import ServiceContext
from app.database.migration import job_engine_url
from app.database.tables import Job
from app.jobs.handle import JobFunction
from app.jobs.runner import JobRunner, worker_ids
from app.jobs.workers import HEARTBEAT_SECONDS, forget_worker, record_heartbeat, requeue_jobs_of_dead_executors

#: Connections of the job engine to PostgreSQL, above those of the service, its lock and its listener.
ENGINE_CONNECTIONS = 8
#: Each queue is polled on its own: at twice a second, ten of them cost an idle worker an eighth of a core.
_POLL_SECONDS = 2.0
#: On SQLite the end waits for the sleep of a listener to notifications that nothing here sends.
_LISTENER_SECONDS = 0.5
_UPKEEP = "upkeep"
_TIDY_SECONDS = 3600.0
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
# the names of workflows too, so that another executor of this process can give them
_DESTROY = {"destroy_registry": True}
_ENDED = ("SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED")
_log = structlog.get_logger("secondread")


@dataclass(frozen=True)
class JobSchedule:
    """Work that runs by a schedule."""

    cron: str
    work: Callable[[ServiceContext], object]


class JobExecutor:
    """Worker in this process; DBOS allows one at a time."""

    def __init__(
        self,
        context: ServiceContext,
        kinds: Mapping[str, JobFunction],
        schedules: Mapping[str, JobSchedule] | None = None,
        poll_seconds: float = _POLL_SECONDS,
    ) -> None:
        self.context, self.schedules = context, schedules or {}
        self.runner = JobRunner(context, kinds, worker_ids(context.settings))
        self._poll_seconds = poll_seconds
        self._workflows: dict[str, Callable[[str, int], None]] = {}
        self._enqueued: set[str] = set()
        # start of each schedule's last run, by the machine's clock, as DBOS's moments are
        self._upkeep_began_at: dict[str, datetime] = {}
        self._beat_at, self._tidied_at = 0.0, -_TIDY_SECONDS
        # DBOS refuses calls in a thread that runs an event loop; one thread to enqueue, one to delete
        self._threads = ThreadPoolExecutor(2)

    def acquire(self) -> bool:
        """Become a worker, unless another process is this one."""
        return self.runner.acquire()

    def start(self) -> None:
        """Begin to take jobs; the lock must be this process's."""
        self._threads.submit(self._launch).result()
        self.tend()

    def _launch(self) -> None:
        DBOS(config=self._config())
        self._workflows = {kind: self._register_kind(kind) for kind in self.runner.kinds}
        schedules = {f"{_UPKEEP}-{name}": schedule for name, schedule in self.schedules.items()}
        upkeep = {name: self._register_schedule(name, schedule) for name, schedule in schedules.items()}
        queues = [*self._workflows, _UPKEEP]
        DBOS.listen_queues(queues)
        DBOS.launch()
        for queue in queues:
            DBOS.register_queue(queue, worker_concurrency=1, polling_interval_sec=self._poll_seconds)
        for stored_schedule in DBOS.list_schedules():
            if stored_schedule["schedule_name"] not in schedules:
                DBOS.delete_schedule(stored_schedule["schedule_name"])
        DBOS.apply_schedules(
            [
                {"schedule_name": name, "workflow_fn": upkeep[name], "schedule": schedule.cron, "queue_name": _UPKEEP}
                for name, schedule in schedules.items()
            ]
        )

    def _config(self) -> DBOSConfig:
        url = self.context.settings.direct_sqlalchemy_url
        return DBOSConfig(
            name="secondread",
            system_database_url=job_engine_url(url),
            sys_db_pool_size=ENGINE_CONNECTIONS,
            executor_id=self.runner.id,
            # it stays: what is interrupted under one release of the service continues under the next
            application_version="1",
            run_migrations=url.startswith("sqlite"),  # on PostgreSQL the owner of the tables has run them
            serializer=DBOSPortableJSONSerializer(),
            notification_listener_polling_interval_sec=min(self._poll_seconds, _LISTENER_SECONDS),
            log_level="WARNING",
        )

    def _register_kind(self, kind: str) -> Callable[[str, int], None]:
        def run_attempt(job_id: str, attempt: int) -> None:
            self.runner.run(kind, job_id, attempt)

        return DBOS.workflow(name=kind)(run_attempt)

    def _register_schedule(self, name: str, schedule: JobSchedule) -> Callable[[datetime, Any], None]:
        def run_upkeep(moment: datetime, _context: Any) -> None:
            now = datetime.now(UTC)
            if moment <= self._upkeep_began_at.get(name, _LONG_AGO) <= now:
                return  # it waited while this process was busy: a run that began after its moment has done its work
            try:
                schedule.work(self.context)
                self._upkeep_began_at[name] = now
            except Exception:
                _log.exception("upkeep failed", schedule=name)

        return DBOS.workflow(name=name)(run_upkeep)

    def tend(self) -> None:
        """Enqueue queued jobs, those of dead processes too, and notice when this process may not continue."""
        self.runner.check()
        if self.broken:
            return
        with self.context.database.read() as session:
            if events.count_keys(session) != len(self.context.keys.audit.signers):  # begun anew it reads the new ring
                self.runner.broken.set()
                return
            others = Job.state == "running", Job.executor_id != self.runner.id
            is_left = session.execute(select(Job.id).where(*others).limit(1)).first() is not None
            queued = session.execute(select(Job.id, Job.kind, Job.attempt).where(Job.state == "queued")).all()
        if is_left:
            with self.context.database.write() as session:
                n_jobs = requeue_jobs_of_dead_executors(session)
            if n_jobs:
                _log.warning("jobs of a dead worker are queued again", jobs=n_jobs)
        for job_id, kind, attempt in queued:
            self._threads.submit(self._enqueue, kind, str(job_id), attempt).result()
        if time.monotonic() - self._beat_at >= HEARTBEAT_SECONDS or not self._beat_at:
            with self.context.database.write() as session:
                record_heartbeat(session, self.runner.id)
            self._beat_at = time.monotonic()
        if time.monotonic() - self._tidied_at >= _TIDY_SECONDS:
            self._tidied_at = time.monotonic()
            self._threads.submit(self._delete_ended_workflows)  # while the database is away, DBOS tries without an end

    def _enqueue(self, kind: str, job_id: str, attempt: int) -> None:
        """Enqueue an attempt that this process has not enqueued yet; the same id twice is one workflow."""
        workflow_id = f"{job_id}.{attempt}"
        if workflow_id in self._enqueued or kind not in self._workflows:
            return
        with SetWorkflowID(workflow_id):
            workflow = DBOS.enqueue_workflow(kind, self._workflows[kind], job_id, attempt)
        if workflow.get_status().status in _ENDED:  # the row comes from an older copy of the database
            with self.context.database.write() as session:
                stale = (Job.id == UUID(job_id), Job.state == "queued", Job.attempt == attempt)
                session.execute(update_columns(Job, attempt=attempt + 1).where(*stale))
        self._enqueued.add(workflow_id)

    def _delete_ended_workflows(self) -> None:
        """Delete 500 workflows that ended more than a day ago, from DBOS's memory alone: the jobs' rows stay."""
        # no schedule: within a workflow DBOS stores the list as a step, which our serializer refuses
        before = (self.context.clock() - timedelta(days=1)).isoformat()
        try:
            old = DBOS.list_workflows(completed_before=before, limit=500, load_input=False, load_output=False)
            if old:
                DBOS.delete_workflows([workflow.workflow_id for workflow in old])
        except Exception:
            _log.exception("ended workflows were not deleted")

    @property
    def broken(self) -> bool:
        """Whether this process must not continue as a worker."""
        return self.runner.broken.is_set()

    def stop(self, seconds: float = 0) -> bool:
        """End: jobs stop before their next batch and continue with the next worker; whether all have stopped."""
        stopped = self.runner.stop(seconds)
        self._threads.shutdown()
        DBOS.destroy(**_DESTROY)
        if self._beat_at and not self.broken:
            try:
                with self.context.database.write() as session:
                    forget_worker(session, self.runner.id)
            except SQLAlchemyError as exc:
                _log.warning("the database does not answer", error=type(exc).__name__)
        self.runner.release()
        return stopped
