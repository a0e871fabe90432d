"""HTTP route of recalibration."""

from typing import Annotated

from fastapi import APIRouter, Response

from app.accounts.service import GuardedRoute
from app.context import Call, writing_call
from app.database.idempotency import Idempotent, KeyMissing
from app.http.errors import list_problem_responses
from app.jobs.service import JobOut
from app.releases import service
from app.releases.service import RecalibrationIn

router = APIRouter(tags=["releases"], route_class=GuardedRoute)
_ManagingWrite = Annotated[Call, writing_call("manage")]


@router.post(
    "/v1/recalibrations",
    operation_id="recalibrate",
    status_code=202,
    response_model=JobOut,
    responses=list_problem_responses(KeyMissing),
)
def start_recalibration(body: RecalibrationIn, once: Idempotent, call: _ManagingWrite) -> Response:
    """Recalibrate the champion. A job fits a candidate on the labels so far and runs the promotion check."""
    return once(
        call.session, body, lambda: service.request_recalibration(call.session, call.context, call.principal, body)
    )
