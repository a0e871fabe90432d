"""Worker process: runs background jobs."""

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType

import psycopg
import structlog
from sqlalchemy.exc import SQLAlchemyError

from app.audit.anchor import HeadFile
from app.audit.installation import claim_database
from app.context import ServiceContext
from app.database.migration import require_current_schema
from app.http.errors import ServiceUnavailable
from app.job_table import FUNCTIONS, SCHEDULES
from app.jobs.executor import JobExecutor
from app.maintenance.cache import keep_cache_fresh
from app.maintenance.erasure import repeat_listed_erasures

_TEND_SECONDS = 1.0
_LONGEST_WAIT = 8.0
# how long the lock of a worker whose machine is gone may outlive it
_REFUSED_SECONDS = 30.0
# a job that does not reach its next batch in this time is cut off, and continues with the next worker
STOP_SECONDS = 7
#: File in HOME that a worker touches every second, so that others can see that it does not hang.
BEAT = "worker.beat"
_log = structlog.get_logger("secondread")


def run_worker(context: ServiceContext, stop: threading.Event) -> bool:
    """Run jobs until asked to stop, or until this worker may not continue."""
    executor = _start_executor(context, stop)
    if executor is None:
        return True
    _log.info("worker started", worker=executor.runner.id, kinds=sorted(FUNCTIONS))
    with keep_cache_fresh(context), HeadFile(context).kept():
        while not stop.wait(_TEND_SECONDS) and not executor.broken:
            _touch_heartbeat(context)
            try:
                executor.tend()
            except SQLAlchemyError as exc:
                _log.warning("the database does not answer", error=type(exc).__name__)
    if executor.broken and not stop.is_set():
        _log.warning("the worker has lost its lock, or the key was rotated, and it restarts")
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606
    return executor.stop(STOP_SECONDS)


def _touch_heartbeat(context: ServiceContext) -> None:
    with suppress(OSError):  # a full disk is no reason to stop; whoever looks at the file notices
        (context.settings.home / BEAT).touch()


def _start_executor(context: ServiceContext, stop: threading.Event) -> JobExecutor | None:
    """Become a worker as soon as the database answers; None when asked to stop."""
    wait, refused_since = 0.25, None
    while not stop.is_set():
        _touch_heartbeat(context)
        executor = None
        try:
            require_current_schema(context.database.engine)
            claim_database(context.database, context.keys.audit, seconds=0)  # tried again below, unless asked to stop
            HeadFile(context).require()  # before anything is written
            repeat_listed_erasures(context)
            executor = JobExecutor(context, FUNCTIONS, SCHEDULES)
            if executor.acquire():
                executor.start()
                return executor
            refused_since = refused_since or time.monotonic()
            _log.info("another worker lives; waiting for its end")
        except (SQLAlchemyError, psycopg.Error) as exc:
            _log.warning("the database does not answer", error=type(exc).__name__)
        except ServiceUnavailable as exc:
            _log.warning("the worker cannot begin yet", error=exc.detail)
        if executor is not None:
            executor.stop()
        if refused_since is not None:
            _require_other_name(context, time.monotonic() - refused_since)
        stop.wait(wait)
        wait = min(2 * wait, _LONGEST_WAIT)
    return None


def _require_other_name(context: ServiceContext, seconds: float) -> None:
    """Refuse to be a second worker of one name; on SQLite, where there is one worker, the next one waits."""
    name = context.settings.executor_id
    if name is not None and context.database.engine.dialect.name != "sqlite" and seconds > _REFUSED_SECONDS:
        raise ValueError(f"another worker {name} lives: give this one another SECONDREAD_EXECUTOR_ID")


def main(context: ServiceContext, parent: int | None = None) -> None:
    """Run until SIGTERM, SIGINT, or until the process that started this one is gone."""
    stop = threading.Event()
    parent = os.getppid() if parent is None else parent

    def finish(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, finish)

    def watch() -> None:
        while not stop.wait(1.0):
            if os.getppid() != parent:
                stop.set()

    threading.Thread(target=watch, daemon=True).start()
    if not run_worker(context, stop):
        _log.warning("a job did not stop in time; it continues with the next worker")
        os._exit(0)  # its thread would keep the process
