"""Routes of frozen evaluations and of the report's targets."""

import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Response
from fastapi.responses import JSONResponse

from app.accounts.permissions import GuardedRoute, Policy
from app.context import Parts
from app.database.engine import Reader, Writer
from app.database.idempotency import Idempotent
from app.database.revisions import Revision
from app.http.errors import (
    BadRequest,
    Conflict,
    KeyMissing,
    NotFound,
    PreconditionFailed,
    PreconditionRequired,
    responses,
)
from app.http.principal import Principal
from app.metrics.schemas import EvaluationIn, EvaluationOut, EvaluationsOut
from app.reports import frozen_evaluations
from app.reports.targets import TargetsIn, TargetsOut, current_targets, set_targets

router = APIRouter(tags=["evaluations"], route_class=GuardedRoute)
_VIEWING = [Depends(Policy("metrics:read"))]
#: For a report, which must open offline and carries its own style.
_REPORT_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


@router.post(
    "/v1/evaluations",
    operation_id="freeze_evaluation",
    status_code=202,
    response_model=EvaluationOut,
    responses=responses(KeyMissing, NotFound),
)
def freeze_evaluation(
    body: EvaluationIn,
    context: Parts,
    principal: Annotated[Principal, Depends(Policy("manage"))],
    once: Idempotent,
    session: Writer,
) -> Response:
    """Freeze current labels and predictions, and evaluate them in a job."""
    return once(session, body, lambda: frozen_evaluations.ask(session, context, principal, body))


@router.get("/v1/evaluations", operation_id="list_evaluations", responses=responses(), dependencies=_VIEWING)
def list_evaluations(session: Reader) -> EvaluationsOut:
    """Frozen evaluations, newest first, without their documents."""
    return frozen_evaluations.list_evaluations(session)


@router.get(
    "/v1/evaluations/{evaluation_id}",
    operation_id="get_evaluation",
    response_model=EvaluationOut,
    responses={
        200: {"content": {"text/html": {}, "text/csv": {}}, "description": "JSON, HTML or CSV, by Accept."},
        **responses(NotFound, Conflict),
    },
    dependencies=_VIEWING,
)
def get_evaluation(
    evaluation_id: uuid.UUID,
    context: Parts,
    session: Reader,
    accept: Annotated[str, Header(description="application/json, text/html or text/csv")] = "application/json",
) -> Response:
    """A frozen evaluation: its state, and once it is done its document, report or table."""
    for kind, name in (("text/html", "report.html"), ("text/csv", "report.csv")):
        if kind in accept:
            data = frozen_evaluations.report_file(session, context, evaluation_id, name)
            disposition = f'inline; filename="evaluation-{evaluation_id}{name[6:]}"'
            headers = _REPORT_HEADERS | {"Content-Disposition": disposition}
            return Response(data, media_type=f"{kind}; charset=utf-8", headers=headers)
    return JSONResponse(frozen_evaluations.show(session, evaluation_id).model_dump(mode="json"))


@router.get("/v1/report-targets", operation_id="get_report_targets", responses=responses(), dependencies=_VIEWING)
def get_report_targets(session: Reader, response: Response) -> TargetsOut:
    """The laboratory's own targets, beside which the report puts its first sentences."""
    targets = current_targets(session)
    response.headers["ETag"] = f'"{targets.version}"'
    return targets


@router.put(
    "/v1/report-targets",
    operation_id="set_report_targets",
    responses=responses(BadRequest, Conflict, PreconditionFailed, PreconditionRequired),
)
def set_report_targets(
    body: TargetsIn,
    context: Parts,
    principal: Annotated[Principal, Depends(Policy("manage"))],
    revision: Revision,
    session: Writer,
    response: Response,
) -> TargetsOut:
    """Set the laboratory's own targets, with a reason; earlier versions are kept."""
    targets = set_targets(session, context.keys.audit, principal, body, revision)
    response.headers["ETag"] = f'"{targets.version}"'
    return targets
