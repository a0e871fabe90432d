"""HTTP route of recalibration."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from app.accounts.service import GuardedRoute, RequireScope
from app.context import AppContext
from app.database.engine import WriteSession
from app.database.idempotency import Idempotent, KeyMissing
from app.http.errors import list_problem_responses
from app.http.principal import Principal
from app.jobs.service import JobOut
from app.releases import service
from app.releases.service import RecalibrationIn

router = APIRouter(tags=["releases"], route_class=GuardedRoute)


@router.post(
    "/v1/recalibrations",
    operation_id="recalibrate",
    status_code=202,
    response_model=JobOut,
    responses=list_problem_responses(KeyMissing),
)
def start_recalibration(
    body: RecalibrationIn,
    context: AppContext,
    principal: Annotated[Principal, Depends(RequireScope("manage"))],
    once: Idempotent,
    session: WriteSession,
) -> Response:
    """Fit a candidate on the labels collected so far and judge it against the champion, in a job."""
    return once(session, body, lambda: service.request_recalibration(session, context, principal, body))
