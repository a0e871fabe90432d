"""HTTP routes of metrics and agreement."""

import uuid
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query

from app.accounts.service import GuardedRoute, RequireScope
from app.context import AppContext
from app.database.engine import ReadSession
from app.http.errors import NotFound, list_problem_responses
from app.http.models import Line, Moment
from app.metrics import service
from app.metrics.annotator_drift import ReadersDriftOut, reader_drift
from app.metrics.cohort import CohortQuery
from app.metrics.schemas import AgreementOut, ComparisonOut, MetricsOut
from app.metrics.secondary_statistics import compare_with_champion

router = APIRouter(tags=["evaluations"], responses=list_problem_responses(), route_class=GuardedRoute)
_VIEWING = [Depends(RequireScope("metrics:read"))]


def _parse_cohort_query(
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
) -> CohortQuery:
    return CohortQuery(partition, weighting, since, until, site)


@router.get(
    "/v1/metrics", operation_id="get_metrics", responses=list_problem_responses(NotFound), dependencies=_VIEWING
)
def get_metrics(
    context: AppContext,
    session: ReadSession,
    question: Annotated[CohortQuery, Depends(_parse_cohort_query)],
    release: Annotated[uuid.UUID | None, Query(description="The champion where left out.")] = None,
    group_by: Annotated[Literal["site", "month"] | None, Query(description="Headline metrics of each group.")] = None,
) -> MetricsOut:
    """Metrics recomputed now: prior predictions against blind planned labels, clustered by patient."""
    return service.compute_metrics(session, context, release, question, group_by)


@router.get("/v1/reader-drift", operation_id="get_reader_drift", dependencies=[Depends(RequireScope("manage"))])
def get_reader_drift(context: AppContext, session: ReadSession) -> ReadersDriftOut:
    """Annotator drift by week, until last Monday."""
    return ReadersDriftOut(items=reader_drift(session, context.settings.home))


@router.get(
    "/v1/releases/{release_id}/comparison",
    operation_id="get_comparison",
    responses=list_problem_responses(NotFound),
    dependencies=_VIEWING,
)
def get_comparison(
    release_id: uuid.UUID,
    context: AppContext,
    session: ReadSession,
    question: Annotated[CohortQuery, Depends(_parse_cohort_query)],
) -> ComparisonOut:
    """A release compared with the champion on the cases that both predicted, with the interval of each difference."""
    return compare_with_champion(session, context, release_id, question)


@router.get("/v1/agreement", operation_id="get_agreement", response_model_exclude_unset=True, dependencies=_VIEWING)
def get_agreement(
    context: AppContext,
    session: ReadSession,
    question: Annotated[CohortQuery, Depends(_parse_cohort_query)],
    group_by: Annotated[Literal["annotator", "class", "site"] | None, Query(description="Only this grouping.")] = None,
) -> AgreementOut:
    """Agreement between annotators over blind planned labels, with intervals and tests of their independence."""
    return service.compute_agreement(session, context.settings.home, question, group_by)
