"""HTTP routes of metrics and agreement."""

import uuid
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Header, Query, Response
from fastapi.responses import JSONResponse

from app.auth.policy import GuardedRoute, Policy
from app.context import Parts
from app.evaluations import frozen, service
from app.evaluations.cohort import Question
from app.evaluations.comparison import compare
from app.evaluations.reader_drift import reader_drift
from app.evaluations.reader_drift_schemas import ReadersDriftOut
from app.evaluations.schemas import (
    AgreementOut,
    ComparisonOut,
    EvaluationIn,
    EvaluationOut,
    EvaluationsOut,
    MetricsOut,
)
from app.evaluations.targets import TargetsIn, TargetsOut, current_targets, set_targets
from app.platform.database import Reader, Writer
from app.platform.errors import (
    BadRequest,
    Conflict,
    KeyMissing,
    NotFound,
    PreconditionFailed,
    PreconditionRequired,
    responses,
)
from app.platform.idempotency import Idempotent
from app.platform.principal import Principal
from app.platform.revisions import Revision
from app.platform.values import Line, Moment

router = APIRouter(tags=["evaluations"], route_class=GuardedRoute)
_VIEWING = [Depends(Policy("metrics:read"))]
#: For a report, which must open offline and carries its own style.
_REPORT_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


def _question(
    partition: Annotated[Literal["all", "evaluation", "calibration"], Query()] = "evaluation",
    weighting: Annotated[
        Literal["ipw", "none"],
        Query(
            description="`ipw`: cases whose planned reads have closed, weighted by inverse selection probabilities; "
            "`none`: all cases as they are, for comparison."
        ),
    ] = "ipw",
    since: Annotated[Moment | None, Query(description="Cases stored at this time or later.")] = None,
    until: Annotated[Moment | None, Query(description="Cases stored before this time.")] = None,
    site: Annotated[Line | None, Query(description="Cases of one site.")] = None,
) -> Question:
    return Question(partition, weighting, since, until, site)


@router.get("/v1/metrics", responses=responses(NotFound), dependencies=_VIEWING)
def get_metrics(
    context: Parts,
    session: Reader,
    question: Annotated[Question, Depends(_question)],
    release: Annotated[uuid.UUID | None, Query(description="The champion where left out.")] = None,
    group_by: Annotated[Literal["site", "month"] | None, Query(description="Headline metrics of each group.")] = None,
) -> MetricsOut:
    """Metrics recomputed now: prior predictions against blind planned labels, clustered by patient."""
    return service.metrics(session, context, release, question, group_by)


@router.get("/v1/reader-drift", responses=responses(), dependencies=[Depends(Policy("manage"))])
def get_reader_drift(context: Parts, session: Reader) -> ReadersDriftOut:
    """Whether annotators answer less as foreseen than they did, by week, until last Monday."""
    return ReadersDriftOut(items=reader_drift(session, context.settings.home))


@router.get("/v1/releases/{release_id}/comparison", responses=responses(NotFound), dependencies=_VIEWING)
def get_comparison(
    release_id: uuid.UUID, context: Parts, session: Reader, question: Annotated[Question, Depends(_question)]
) -> ComparisonOut:
    """A release compared with the champion on the cases that both predicted, with the interval of each difference."""
    return compare(session, context, release_id, question)


@router.get("/v1/agreement", responses=responses(), response_model_exclude_unset=True, dependencies=_VIEWING)
def get_agreement(
    context: Parts,
    session: Reader,
    question: Annotated[Question, Depends(_question)],
    group_by: Annotated[Literal["annotator", "class", "site"] | None, Query(description="Only this grouping.")] = None,
) -> AgreementOut:
    """Agreement between annotators over blind planned labels, with intervals and tests of their independence."""
    return service.agreement(session, context.settings.home, question, group_by)


@router.post(
    "/v1/evaluations", status_code=202, response_model=EvaluationOut, responses=responses(KeyMissing, NotFound)
)
def freeze_evaluation(
    body: EvaluationIn,
    context: Parts,
    principal: Annotated[Principal, Depends(Policy("manage"))],
    once: Idempotent,
    session: Writer,
) -> Response:
    """Freeze current labels and predictions, and evaluate them in a job."""
    return once(session, body, lambda: frozen.ask(session, context, principal, body))


@router.get("/v1/evaluations", responses=responses(), dependencies=_VIEWING)
def list_evaluations(session: Reader) -> EvaluationsOut:
    """Frozen evaluations, newest first, without their documents."""
    return frozen.list_evaluations(session)


@router.get(
    "/v1/evaluations/{evaluation_id}",
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
            data = frozen.report_file(session, context, evaluation_id, name)
            disposition = f'inline; filename="evaluation-{evaluation_id}{name[6:]}"'
            headers = _REPORT_HEADERS | {"Content-Disposition": disposition}
            return Response(data, media_type=f"{kind}; charset=utf-8", headers=headers)
    return JSONResponse(frozen.show(session, evaluation_id).model_dump(mode="json"))


@router.get("/v1/report-targets", responses=responses(), dependencies=_VIEWING)
def get_report_targets(session: Reader, response: Response) -> TargetsOut:
    """The laboratory's own targets, beside which the report puts its first sentences."""
    targets = current_targets(session)
    response.headers["ETag"] = f'"{targets.version}"'
    return targets


@router.put("/v1/report-targets", responses=responses(BadRequest, Conflict, PreconditionFailed, PreconditionRequired))
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
