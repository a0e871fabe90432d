"""Recalibrating from the command line: the same job, done in this process."""

import uuid
from collections.abc import Mapping
from datetime import datetime

from sqlalchemy.orm import Session

from app.context import Context
from app.jobs import service
from app.jobs.handle import JobFunction
from app.jobs.inline import do_here
from app.jobs.queries import JobView
from app.recalibration.report import JudgementReport, RecalibrationReport
from app.releases.queries import served_release_id
from app.releases.schemas import DEFAULT_METHOD, RECALIBRATION_METHODS
from app.releases.service import submit_judgement


def recalibrate_here(
    context: Context, kinds: Mapping[str, JobFunction], method: str | None, since: datetime | None
) -> RecalibrationReport:
    """Recalibrate now, on cases stored at a time or later.

    Args:
        context: parts of the service.
        kinds: what each kind of job does.
        method: one of ``RECALIBRATION_METHODS``; None for the default.
        since: only cases stored at this time or later.

    Returns:
        The report, with the candidate's identifier.

    Raises:
        ValueError: an unknown method, too few labels, a fit that fails, or a change beyond the plan.
    """
    method = method or DEFAULT_METHOD
    if method not in RECALIBRATION_METHODS:
        raise ValueError(f"unknown method {method!r}; there are {', '.join(RECALIBRATION_METHODS)}")
    parameters = {"method": method, "since": None if since is None else since.isoformat()}

    def ask(session: Session) -> JobView:
        served_release_id(session)
        return service.submit(session, context, "recalibration", parameters, None)

    return RecalibrationReport.model_validate(do_here(context, ask, kinds, "recalibrating")[1])


def judge_here(context: Context, kinds: Mapping[str, JobFunction], release_id: uuid.UUID) -> JudgementReport:
    """Judge a release that was trained elsewhere now.

    Args:
        context: parts of the service.
        kinds: what each kind of job does.
        release_id: to be judged.

    Returns:
        The report.

    Raises:
        Conflict: it is the champion, or its card cannot be read.
        NotFound: no such release.
        NoRelease: there is no champion.
    """

    def ask(session: Session) -> JobView:
        return submit_judgement(session, context, None, release_id)

    return JudgementReport.model_validate(do_here(context, ask, kinds, "judging")[1])
