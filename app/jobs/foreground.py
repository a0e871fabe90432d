"""Doing a job in the process that asks for it: what commands do, with a progress bar."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.progress import Progress
from sqlalchemy.orm import Session

from app.context import Context
from app.jobs import engine
from app.tables import Job


def do_here(
    context: Context, ask: Callable[[Session], Job], function: engine.JobFunction, title: str
) -> tuple[Job, dict[str, Any]]:
    """Ask for a job and do it at once.

    Args:
        context: parts of the service.
        ask: makes the job's row in a writing session.
        function: does it.
        title: beside the progress bar.

    Returns:
        The job and its result.

    Raises:
        ValueError: it failed; the message says why.
    """
    with context.database.write() as session:
        job = ask(session)
        engine.begin_at_once(job)  # in the transaction that makes it, so that no worker takes it
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=1.0)
        running = engine.RunningJob(context, job.id, 1, job.parameters)
        engine.perform(replace(running, observer=lambda done: progress.update(task, completed=done)), function)
    with context.database.read() as session:
        done = session.get_one(Job, job.id)
        if done.result is None:
            raise ValueError(f"the job {done.state}: {done.error}")
        return done, done.result
