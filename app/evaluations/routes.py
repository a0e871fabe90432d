"""HTTP routes of metrics and agreement."""

import uuid
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query

from app.auth.policy import Policy
from app.database import Reader
from app.errors import NotFound, responses
from app.evaluations import service
from app.evaluations.cohort import Question
from app.evaluations.queries import read_columns
from app.evaluations.schemas import MetricsOut
from app.schemas import Line, Moment

router = APIRouter(tags=["evaluations"], dependencies=[Depends(Policy("metrics:read"))])


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


@router.get("/v1/metrics", responses=responses(NotFound))
def get_metrics(
    session: Reader,
    question: Annotated[Question, Depends(_question)],
    release: Annotated[uuid.UUID | None, Query(description="The champion where left out.")] = None,
    group_by: Annotated[Literal["site", "month"] | None, Query(description="Headline metrics of each group.")] = None,
) -> MetricsOut:
    """Metrics recomputed now: prior predictions against blind planned labels, clustered by patient."""
    return service.metrics(session, release, question, group_by, read_columns)


@router.get("/v1/agreement", responses=responses())
def get_agreement(
    session: Reader,
    question: Annotated[Question, Depends(_question)],
    group_by: Annotated[Literal["annotator", "class", "site"] | None, Query(description="Only this grouping.")] = None,
) -> dict[str, Any]:
    """Agreement between annotators over blind planned labels, with intervals and tests of their independence."""
    return service.agreement(session, question, group_by)
