"""A job for the command that asks for it, with a progress bar: done by a worker, or here where none lives."""

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import Progress
from sqlalchemy.orm import Session

from app.context import Context
from app.jobs.executor import Executor
from app.jobs.locks import living_workers
from app.jobs.queries import OPEN, JobView, job_by_id
from app.jobs.running import JobFunction

_LOOK_SECONDS = 0.05


def do_here(
    context: Context, ask: Callable[[Session], JobView], function: JobFunction, title: str
) -> tuple[JobView, dict[str, Any]]:
    """Ask for a job and wait for its end.

    Args:
        context: parts of the service.
        ask: asks for the job in a writing session.
        function: does it.
        title: next to the progress bar.

    Returns:
        The job and its result.

    Raises:
        ValueError: it failed; the message says why.
    """
    with context.database.write() as session:
        job = ask(session)
    executor = None
    try:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(title, total=1.0)
            while job.state in OPEN:
                if executor is None:
                    executor = _worker_where_none_lives(context, job.kind, function)
                time.sleep(_LOOK_SECONDS)
                with context.database.read() as session:
                    job = job_by_id(session, job.id)
                progress.update(task, completed=job.progress, description=f"{title}: {job.message or job.state}")
    finally:
        if executor is not None:
            executor.stop()
    if job.result is None:
        raise ValueError(f"the job {job.state}: {job.error}")
    return job, job.result


def _worker_where_none_lives(context: Context, kind: str, function: JobFunction) -> Executor | None:
    with context.database.read() as session:
        if living_workers(session):
            return None
    executor = Executor(context, {kind: function}, poll_seconds=_LOOK_SECONDS)
    if not executor.acquire():
        return None  # another process was faster
    executor.start()
    return executor
