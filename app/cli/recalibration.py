"""Runs recalibration and judgement jobs inline, from the command line."""

import uuid
from collections.abc import Mapping
from datetime import datetime

from sqlalchemy.orm import Session

from app.context import ServiceContext
from app.jobs import service
from app.jobs.inline import run_inline
from app.jobs.service import JobFunction, JobView
from app.recalibration.report import JudgementReport, RecalibrationReport
from app.releases.service import DEFAULT_METHOD, RECALIBRATION_METHODS, served_release_id, submit_judgement


def recalibrate_inline(
    context: ServiceContext, kinds: Mapping[str, JobFunction], method: str | None, since: datetime | None
) -> RecalibrationReport:
    """Recalibrate now, on cases stored at a time or later."""
    method = method or DEFAULT_METHOD
    if method not in RECALIBRATION_METHODS:
        raise ValueError(f"unknown method {method!r}; there are {', '.join(RECALIBRATION_METHODS)}")
    parameters = {"method": method, "since": None if since is None else since.isoformat()}

    def ask(session: Session) -> JobView:
        served_release_id(session)
        return service.submit_job(session, context, "recalibration", parameters, None)

    return RecalibrationReport.model_validate(run_inline(context, ask, kinds, "recalibrating")[1])


def judge_release_inline(
    context: ServiceContext, kinds: Mapping[str, JobFunction], release_id: uuid.UUID
) -> JudgementReport:
    """Run the promotion check on a model release now."""

    def ask(session: Session) -> JobView:
        return submit_judgement(session, context, None, release_id)

    return JudgementReport.model_validate(run_inline(context, ask, kinds, "judging")[1])
