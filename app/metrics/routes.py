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
from app.metrics.schemas import AgreementOut, ComparisonOut, MetricsOut, Partition, Weighting
from app.metrics.secondary_statistics import compare_with_champion

router = APIRouter(tags=["evaluations"], responses=list_problem_responses(), route_class=GuardedRoute)
_VIEWING = [Depends(RequireScope("metrics:read"))]


def _parse_cohort_query(
    partition: Annotated[Partition, Query()] = "evaluation",
    weighting: Annotated[Weighting, Query()] = "ipw",
    since: Annotated[Moment | None, Query()] = None,
    until: Annotated[Moment | None, Query()] = None,
    site: Annotated[Line | None, Query()] = None,
) -> CohortQuery:
    return CohortQuery(partition, weighting, since, until, site)


@router.get(
    "/v1/metrics", operation_id="get_metrics", responses=list_problem_responses(NotFound), dependencies=_VIEWING
)
def get_metrics(
    context: AppContext,
    session: ReadSession,
    question: Annotated[CohortQuery, Depends(_parse_cohort_query)],
    release: Annotated[uuid.UUID | None, Query()] = None,
    group_by: Annotated[Literal["site", "month"] | None, Query()] = None,
) -> MetricsOut:
    """Compute the metrics. First predictions against planned blinded labels, clustered by patient."""
    return service.compute_metrics(session, context, release, question, group_by)


@router.get("/v1/reader-drift", operation_id="get_reader_drift", dependencies=[Depends(RequireScope("manage"))])
def get_reader_drift(context: AppContext, session: ReadSession) -> ReadersDriftOut:
    """Get the drift of annotators. By week, until the last Monday."""
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
    """Compare a release with the champion. On the cells that both predicted, with an interval of each difference."""
    return compare_with_champion(session, context, release_id, question)


@router.get("/v1/agreement", operation_id="get_agreement", response_model_exclude_unset=True, dependencies=_VIEWING)
def get_agreement(
    context: AppContext,
    session: ReadSession,
    question: Annotated[CohortQuery, Depends(_parse_cohort_query)],
    group_by: Annotated[Literal["annotator", "class", "site"] | None, Query()] = None,
) -> AgreementOut:
    """Compute inter-rater agreement. Over planned blinded labels, with intervals and tests of independence."""
    return service.compute_agreement(session, context.settings.home, question, group_by)
