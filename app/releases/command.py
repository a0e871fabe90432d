"""Recalibrating from the command line: the same job, done in this process with a progress bar."""

from dataclasses import replace
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.progress import Progress

from app import jobs
from app.context import Context
from app.releases.queries import served_release_id
from app.releases.recalibration import recalibrate
from app.tables import Job
from ml.scaling import METHODS


def recalibrate_here(context: Context, method: str, since: datetime | None) -> dict[str, Any]:
    """Recalibrate now, on cases stored at a time or later.

    Returns:
        The report, with the candidate's identifier.

    Raises:
        ValueError: an unknown method, too few labels, a fit that fails, or a change beyond the plan.
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; there are {', '.join(METHODS)}")
    with context.database.write() as session:
        served_release_id(session)
        job = jobs.submit(
            session,
            context,
            "recalibration",
            {"method": method, "since": None if since is None else since.isoformat()},
            None,
        )
        jobs.begin_at_once(job)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("recalibrating", total=1.0)
        running = jobs.RunningJob(context, job.id, 1, job.parameters)
        jobs.perform(replace(running, observer=lambda done: progress.update(task, completed=done)), recalibrate)
    with context.database.read() as session:
        done = session.get_one(Job, job.id)
        if done.result is None:
            raise ValueError(f"the recalibration {done.state}: {done.error}")
        return done.result
