"""Runs a job inside the command that requested it, with a progress bar."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress
from sqlalchemy.orm import Session

from app.context import ServiceContext
from app.jobs.handle import JobFunction, JobResult
from app.jobs.queries import OPEN, JobView, job_by_id
from app.jobs.runner import JobRunner, command_ids

_LOOK_SECONDS = 0.05
# a job that does not reach its next batch in this time after Ctrl-C is cut off
_STOP_SECONDS = 2
_INTERRUPTED = 130


def run_inline(
    context: ServiceContext, ask: Callable[[Session], JobView], kinds: Mapping[str, JobFunction], title: str
) -> tuple[JobView, JobResult]:
    """Submit a job, run it unless a worker was faster, and wait for its end."""
    runner = JobRunner(context, kinds, command_ids())
    if not runner.acquire():
        raise ValueError("too many commands run at once")
    try:
        with context.database.write() as session:
            job = ask(session)
        with _trap_interrupt() as pressed, Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(title, total=1.0)
            while job.state in OPEN:
                if job.state == "queued" and not runner.running:
                    runner.running.add(str(job.id))
                    threading.Thread(target=runner.run, args=(job.kind, str(job.id), job.attempt), daemon=True).start()
                if pressed.wait(_LOOK_SECONDS):
                    raise KeyboardInterrupt
                if runner.broken.is_set():
                    raise ValueError("the connection to the database broke; the next worker continues the job")
                with context.database.read() as session:
                    job = job_by_id(session, job.id)
                progress.update(task, completed=job.progress, description=f"{title}: {job.message or job.state}")
    except KeyboardInterrupt:
        print(f"interrupted: the job {job.id} is not cancelled, the next worker continues it", file=sys.stderr)
        if not runner.stop(_STOP_SECONDS):
            sys.stderr.flush()
            os._exit(_INTERRUPTED)  # the job's thread would keep the process
        raise
    finally:
        runner.stop(0)
        runner.release()
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
