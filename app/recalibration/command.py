"""Recalibrating from the command line: the same job, done in this process."""

from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from app.context import Context
from app.jobs import engine
from app.jobs.foreground import do_here
from app.jobs.queries import JobView
from app.recalibration.service import recalibrate
from app.releases.queries import served_release_id
from ml.calibration.scaling import METHODS


def recalibrate_here(context: Context, method: str, since: datetime | None) -> dict[str, Any]:
    """Recalibrate now, on cases stored at a time or later.

    Returns:
        The report, with the candidate's identifier.

    Raises:
        ValueError: an unknown method, too few labels, a fit that fails, or a change beyond the plan.
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; there are {', '.join(METHODS)}")
    parameters = {"method": method, "since": None if since is None else since.isoformat()}

    def ask(session: Session) -> JobView:
        served_release_id(session)
        return engine.submit(session, context, "recalibration", parameters, None)

    return do_here(context, ask, recalibrate, "recalibrating")[1]
