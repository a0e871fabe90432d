"""HTTP routes of metrics and agreement."""

import uuid
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query

from app.accounts.permissions import GuardedRoute, Policy
from app.context import Parts
from app.database.engine import Reader
from app.http.errors import NotFound, responses
from app.http.models import Line, Moment
from app.metrics import service
from app.metrics.annotator_drift import ReadersDriftOut, reader_drift
from app.metrics.cohort import Question
from app.metrics.schemas import AgreementOut, ComparisonOut, MetricsOut
from app.metrics.secondary_statistics import compare

router = APIRouter(tags=["evaluations"], route_class=GuardedRoute)
_VIEWING = [Depends(Policy("metrics:read"))]


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


@router.get("/v1/metrics", operation_id="get_metrics", responses=responses(NotFound), dependencies=_VIEWING)
def get_metrics(
    context: Parts,
    session: Reader,
    question: Annotated[Question, Depends(_question)],
    release: Annotated[uuid.UUID | None, Query(description="The champion where left out.")] = None,
    group_by: Annotated[Literal["site", "month"] | None, Query(description="Headline metrics of each group.")] = None,
) -> MetricsOut:
    """Metrics recomputed now: prior predictions against blind planned labels, clustered by patient."""
    return service.metrics(session, context, release, question, group_by)


@router.get(
    "/v1/reader-drift", operation_id="get_reader_drift", responses=responses(), dependencies=[Depends(Policy("manage"))]
)
def get_reader_drift(context: Parts, session: Reader) -> ReadersDriftOut:
    """Whether annotators answer less as foreseen than they did, by week, until last Monday."""
    return ReadersDriftOut(items=reader_drift(session, context.settings.home))


@router.get(
    "/v1/releases/{release_id}/comparison",
    operation_id="get_comparison",
    responses=responses(NotFound),
    dependencies=_VIEWING,
)
def get_comparison(
    release_id: uuid.UUID, context: Parts, session: Reader, question: Annotated[Question, Depends(_question)]
) -> ComparisonOut:
    """A release compared with the champion on the cases that both predicted, with the interval of each difference."""
    return compare(session, context, release_id, question)


@router.get(
    "/v1/agreement",
    operation_id="get_agreement",
    responses=responses(),
    response_model_exclude_unset=True,
    dependencies=_VIEWING,
)
def get_agreement(
    context: Parts,
    session: Reader,
    question: Annotated[Question, Depends(_question)],
    group_by: Annotated[Literal["annotator", "class", "site"] | None, Query(description="Only this grouping.")] = None,
) -> AgreementOut:
    """Agreement between annotators over blind planned labels, with intervals and tests of their independence."""
    return service.agreement(session, context.settings.home, question, group_by)
