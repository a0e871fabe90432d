"""Routes of frozen evaluations and of the report's targets."""

import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Response
from fastapi.responses import JSONResponse

from app.accounts.service import GuardedRoute, RequireScope
from app.context import AppContext, Call, writing_call
from app.database.engine import ReadSession
from app.database.idempotency import Idempotent, KeyMissing
from app.database.revisions import Revision
from app.http.errors import (
    BadRequest,
    Conflict,
    NotFound,
    PreconditionFailed,
    PreconditionRequired,
    list_problem_responses,
)
from app.http.models import Line
from app.metrics.service import CohortQuery, EvaluationIn, EvaluationOut, EvaluationsOut, Partition, Weighting
from app.reports import frozen_evaluations
from app.reports.report import current_findings
from app.reports.schemas import FindingsOut
from app.reports.targets import TargetsIn, TargetsOut, current_targets, set_targets

router = APIRouter(tags=["evaluations"], responses=list_problem_responses(), route_class=GuardedRoute)
_ManagingWrite = Annotated[Call, writing_call("manage")]
_VIEWING = [Depends(RequireScope("metrics:read"))]
#: For a report, which must open offline and carries its own style.
_REPORT_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


@router.post(
    "/v1/evaluations",
    operation_id="freeze_evaluation",
    status_code=202,
    response_model=EvaluationOut,
    responses=list_problem_responses(KeyMissing, NotFound),
)
def freeze_evaluation(body: EvaluationIn, once: Idempotent, call: _ManagingWrite) -> Response:
    """Freeze an evaluation. A job evaluates a snapshot of current labels and predictions."""
    return once(
        call.session,
        body,
        lambda: frozen_evaluations.request_evaluation(call.session, call.context, call.principal, body),
    )


@router.get("/v1/evaluations", operation_id="list_evaluations", dependencies=_VIEWING)
def list_evaluations(session: ReadSession) -> EvaluationsOut:
    """List frozen evaluations. Newest first, without their documents."""
    return frozen_evaluations.list_evaluations(session)


@router.get(
    "/v1/evaluations/{evaluation_id}",
    operation_id="get_evaluation",
    response_model=EvaluationOut,
    responses={
        200: {
            "content": {kind: {"schema": {"type": "string"}} for kind in ("text/html", "text/csv")},
            "description": "JSON, HTML or CSV, by Accept.",
        },
        **list_problem_responses(NotFound, Conflict),
    },
    dependencies=_VIEWING,
)
def get_evaluation(
    evaluation_id: uuid.UUID,
    context: AppContext,
    session: ReadSession,
    accept: Annotated[str, Header()] = "application/json",
) -> Response:
    """Get a frozen evaluation. Its state, and the finished document, report or table, by ``Accept``."""
    for kind, name in (("text/html", "report.html"), ("text/csv", "report.csv")):
        if kind in accept:
            data = frozen_evaluations.read_report_file(session, context, evaluation_id, name)
            disposition = f'inline; filename="evaluation-{evaluation_id}{name[6:]}"'
            headers = _REPORT_HEADERS | {"Content-Disposition": disposition}
            return Response(data, media_type=f"{kind}; charset=utf-8", headers=headers)
    return JSONResponse(frozen_evaluations.read_evaluation(session, evaluation_id).model_dump(mode="json"))


@router.get("/v1/report", operation_id="get_report", responses=list_problem_responses(NotFound), dependencies=_VIEWING)
def get_report(
    context: AppContext,
    session: ReadSession,
    partition: Annotated[Partition, Query()] = "evaluation",
    weighting: Annotated[Weighting, Query()] = "ipw",
    site: Annotated[Line | None, Query()] = None,
) -> FindingsOut:
    """Get the report's numbers. Those of its sentences, computed now, about the champion."""
    return current_findings(session, context, CohortQuery(partition, weighting, site=site))


@router.get("/v1/report-targets", operation_id="get_report_targets", dependencies=_VIEWING)
def get_report_targets(session: ReadSession, response: Response) -> TargetsOut:
    """Get the report's targets. The ETag is the value for ``If-Match``."""
    targets = current_targets(session)
    response.headers["ETag"] = f'"{targets.version}"'
    return targets


@router.put(
    "/v1/report-targets",
    operation_id="set_report_targets",
    responses=list_problem_responses(BadRequest, Conflict, PreconditionFailed, PreconditionRequired),
)
def set_report_targets(body: TargetsIn, revision: Revision, call: _ManagingWrite, response: Response) -> TargetsOut:
    """Set the report's targets. With a reason; earlier versions are kept."""
    targets = set_targets(call.session, call.context.keys.audit, call.principal, body, revision)
    response.headers["ETag"] = f'"{targets.version}"'
    return targets
