"""The worker process: does the jobs that requests have asked for.

On SQLite there is one, which ``secondread serve`` starts and starts again; on PostgreSQL there may be many. A worker
that loses the database restarts in the same process, so that nothing of its former life can write.
"""

import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType

import psycopg
import structlog
from sqlalchemy.exc import SQLAlchemyError

from app.audit.installation import claim
from app.audit.linking import Sealer
from app.context import Context
from app.database.migration import require_head
from app.http.errors import Unavailable
from app.job_table import FUNCTIONS, SCHEDULES
from app.jobs.executor import Executor
from app.maintenance.cache import renewing_copies
from app.maintenance.erasure import erase_again_as_listed

_TEND_SECONDS = 1.0
_LONGEST_WAIT = 8.0
# a job that does not reach its next batch in this time is cut off, and continues with the next worker
STOP_SECONDS = 7
#: File in HOME that a worker touches every second, so that others can see that it does not hang.
BEAT = "worker.beat"
_log = structlog.get_logger("secondread")


def run(context: Context, stop: threading.Event) -> bool:
    """Do jobs until asked to stop, or until this worker may not continue.

    Returns:
        Whether every job has stopped.
    """
    executor = _start(context, stop)
    if executor is None:
        return True
    sealer = Sealer(context.settings.direct_sqlalchemy_url, context.keys.audit)
    sealer.start()
    _log.info("worker started", worker=executor.id, kinds=sorted(FUNCTIONS))
    with renewing_copies(context):
        while not stop.wait(_TEND_SECONDS) and not executor.broken.is_set():
            _beat(context)
            try:
                executor.tend()
            except SQLAlchemyError as exc:
                _log.warning("the database does not answer", error=type(exc).__name__)
    if executor.broken.is_set() and not stop.is_set():
        _log.warning("the worker has lost its lock, or the key was rotated, and it restarts")
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606
    ended = executor.stop(STOP_SECONDS)
    sealer.stop()
    return ended


def _beat(context: Context) -> None:
    with suppress(OSError):  # a full disk is no reason to stop; whoever looks at the file notices
        (context.settings.home / BEAT).touch()


def _start(context: Context, stop: threading.Event) -> Executor | None:
    """Become a worker as soon as the database answers and, on SQLite, no other one lives; None when asked to stop.

    Args:
        context: parts of the service.
        stop: asks to stop.

    Raises:
        ValueError: the database lacks migrations, or belongs to another key.
    """
    wait = 0.25
    while not stop.is_set():
        _beat(context)
        executor = None
        try:
            require_head(context.database.engine)
            claim(context.database, context.keys.audit, seconds=0)  # tried again below, unless asked to stop
            erase_again_as_listed(context)
            executor = Executor(context, FUNCTIONS, SCHEDULES)
            if executor.acquire():
                executor.start()
                return executor
            _log.info("another worker lives; waiting for its end")
        except (SQLAlchemyError, psycopg.Error) as exc:
            _log.warning("the database does not answer", error=type(exc).__name__)
        except Unavailable as exc:
            _log.warning("the worker cannot begin yet", error=exc.detail)
        if executor is not None:
            executor.stop()
        stop.wait(wait)
        wait = min(2 * wait, _LONGEST_WAIT)
    return None


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

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, finish)

    def watch() -> None:
        while not stop.wait(1.0):
            if os.getppid() != parent:
                stop.set()

    threading.Thread(target=watch, daemon=True).start()
    if not run(context, stop):
        _log.warning("a job did not stop in time; it continues with the next worker")
        os._exit(0)  # its thread would keep the process
