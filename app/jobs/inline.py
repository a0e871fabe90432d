"""Runs a job inside the command that requested it, with a progress bar."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress
from sqlalchemy.orm import Session

from app.context import ServiceContext
from app.jobs.executor import JobExecutor
from app.jobs.handle import JobFunction, JobResult
from app.jobs.locks import count_living_workers
from app.jobs.queries import OPEN, JobView, job_by_id

_LOOK_SECONDS = 0.05
_TEND_SECONDS = 1.0
# a job that does not reach its next batch in this time after Ctrl-C is cut off
_STOP_SECONDS = 2
_INTERRUPTED = 130


def run_inline(
    context: ServiceContext, ask: Callable[[Session], JobView], kinds: Mapping[str, JobFunction], title: str
) -> tuple[JobView, JobResult]:
    """Submit a job and wait for its end."""
    # While it waits this process is a worker like any other, for every kind of job but without schedules.
    with context.database.write() as session:
        job = ask(session)
    here = _InlineWorker(context, kinds)
    try:
        with _trap_interrupt() as pressed, Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(title, total=1.0)
            while job.state in OPEN:
                here.tend()
                if pressed.wait(_LOOK_SECONDS):
                    raise KeyboardInterrupt
                with context.database.read() as session:
                    job = job_by_id(session, job.id)
                progress.update(task, completed=job.progress, description=f"{title}: {job.message or job.state}")
    except KeyboardInterrupt:
        print(f"interrupted: the job {job.id} is not cancelled, the next worker continues it", file=sys.stderr)
        if not here.stop(_STOP_SECONDS):
            sys.stderr.flush()
            os._exit(_INTERRUPTED)  # the job's thread would keep the process
        raise
    finally:
        here.stop()
    if job.result is None:
        raise ValueError(f"the job {job.state}: {job.error}")
    return job, job.result


@contextmanager
def _trap_interrupt() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets, instead of cutting off a statement of the database; a second Ctrl-C cuts off."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # no other one is interrupted
        yield pressed
        return
    before = signal.getsignal(signal.SIGINT) or signal.default_int_handler

    def note(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, before)
        pressed.set()

    signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


class _InlineWorker:
    """The worker in this process, as soon as it may be one: on SQLite another process may be the only one."""

    def __init__(self, context: ServiceContext, kinds: Mapping[str, JobFunction]) -> None:
        self._context, self._kinds = context, kinds
        self._executor: JobExecutor | None = None
        self._tended = 0.0

    def tend(self) -> None:
        """Become a worker, or do what one does now and then."""
        if time.monotonic() - self._tended < _TEND_SECONDS:
            return
        self._tended = time.monotonic()
        if self._executor is None:
            self._start()
            return
        self._executor.tend()
        if self._executor.broken.is_set():
            raise ValueError("the connection to the database broke; the next worker continues the job")

    def _start(self) -> None:
        if self._context.database.engine.dialect.name == "sqlite":
            with self._context.database.read() as session:
                if count_living_workers(session):
                    return
        executor = JobExecutor(self._context, self._kinds, poll_seconds=_LOOK_SECONDS)
        if not executor.acquire():  # another process was faster
            executor.stop()
            return
        self._executor = executor
        executor.start()

    def stop(self, seconds: int = 0) -> bool:
        """End as a worker; whether every job has stopped."""
        executor, self._executor = self._executor, None
        return executor is None or executor.stop(seconds)
