"""The worker process: does the jobs that requests have asked for, with DBOS as the durable engine behind them.

Every attempt at a job is a DBOS workflow of its own. What a crash interrupted is taken up when the
worker starts again, or by another worker once the job's process has been silent for a minute. On SQLite there is
one worker, which ``secondread serve`` starts; on PostgreSQL there may be many.
"""

import math
import os
import signal
import socket
import threading
import time
import uuid
from datetime import timedelta
from importlib.metadata import version
from types import FrameType

import structlog
from dbos import DBOS, DBOSConfig, SetWorkflowID
from dbos import error as dbos_errors
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from app.context import Context
from app.evaluations.publishing import publish_estimates
from app.evaluations.snapshots import refresh
from app.job_kinds import FUNCTIONS, function_of
from app.jobs import engine
from app.operations.upkeep import tidy
from app.releases.queries import aliases, class_codes, existing_release
from app.releases.schemas import RecalibrationIn
from app.tables import Job, now

_POLL_SECONDS = 1.0
_TIDY_SECONDS = 60.0
_log = structlog.get_logger("secondread")
_context: Context | None = None


@DBOS.step(name="attempt")
def _attempt(job_id: str) -> str:
    """One attempt at a job; a step, so that a workflow whose step has ended is never done again.

    Raises:
        RuntimeError: the worker was not started.
    """
    if _context is None:
        raise RuntimeError("the worker was not started")
    running = engine.begin(_context, uuid.UUID(job_id))
    if running is None:
        return "taken"
    engine.perform(running, function_of(_context, running.job_id))
    return "done"


@DBOS.workflow(name="job")
def _job(job_id: str) -> str:
    return _attempt(job_id)


def _config(context: Context) -> DBOSConfig:
    settings = context.settings
    database = settings.sqlalchemy_url if settings.database_url is not None else None
    if database is None or database.startswith("sqlite"):
        database = f"sqlite:///{settings.home.absolute() / 'jobs.db'}"
    return DBOSConfig(
        name="secondread",
        system_database_url=database,
        application_version=version("secondread"),
        # many workers on PostgreSQL: each resumes its own; what a dead one left is begun anew after a minute's silence
        executor_id="worker" if database.startswith("sqlite") else f"{socket.gethostname()}-{os.getpid()}",
        log_level="WARNING",
    )


def run(context: Context, stop: threading.Event) -> None:
    """Do jobs until told to stop; the one at hand is finished first, or taken up again after the next start."""
    global _context
    _context = context
    if context.database.engine.dialect.name == "sqlite":
        engine.forget_dead_process(context)  # there is one worker only, and it is this one
    DBOS(config=_config(context))
    DBOS.launch()
    _log.info("worker started", kinds=sorted(FUNCTIONS))
    tidied = -math.inf
    try:
        while not stop.wait(_POLL_SECONDS):
            try:
                ask_for_recalibration(context)
                _begin_waiting(context)
                if time.monotonic() >= tidied + _TIDY_SECONDS:
                    tidied = time.monotonic()
                    _tidy(context)
            except SQLAlchemyError as exc:
                _log.warning("the database does not answer", error=type(exc).__name__)
    finally:
        DBOS.destroy(workflow_completion_timeout_sec=10)


def _tidy(context: Context) -> None:
    """Keep the snapshots of champion and challenger young, so that metrics need to read little; publish the gauges."""
    tidy(context)
    with context.database.read() as session:
        releases = [existing_release(session, alias.release_id) for alias in aliases(session)]
        watched = [(release.id, class_codes(release)) for release in releases]
    for release_id, classes in watched:
        refresh(context, release_id, classes)
    publish_estimates(context)


def _begin_waiting(context: Context) -> None:
    with context.database.read() as session:
        waiting = engine.waiting_jobs(session)
    for job_id in waiting:
        with context.database.read() as session:
            attempts = engine.job_by_id(session, job_id).attempts
        try:
            # a name of its own for each try: a try that found the job taken must not stand for the next one
            with SetWorkflowID(f"{job_id}-{attempts + 1}-{uuid.uuid4().hex[:8]}"):
                DBOS.start_workflow(_job, str(job_id)).get_result()
        except (dbos_errors.DBOSException, dbos_errors.DBOSBaseException) as exc:
            _log.warning("the job's engine failed; it is tried again", job=str(job_id), error=type(exc).__name__)


def ask_for_recalibration(context: Context) -> None:
    """Ask for a recalibration when the last one was asked for long enough ago."""
    days = context.settings.recalibrate_days
    if days is None:
        return
    with context.database.read() as session:
        newest = select(func.max(Job.created_at)).where(Job.kind == "recalibration")
        last = session.execute(newest).scalar_one()
    if last is None or now() - last >= timedelta(days=days):
        with context.database.write() as session:
            engine.submit(session, context, "recalibration", RecalibrationIn().model_dump(mode="json"), None)


def main(context: Context, parent: int | None = None) -> None:
    """Run until SIGTERM, SIGINT, or until the process that started this one is gone.

    Args:
        context: parts of the service.
        parent: process that started this one; it may be gone already, so that asking now would name another.
    """
    stop = threading.Event()
    parent = os.getppid() if parent is None else parent

    def finish(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, finish)

    def watch() -> None:
        while not stop.wait(1.0):
            if os.getppid() != parent:
                stop.set()

    threading.Thread(target=watch, daemon=True).start()
    run(context, stop)
