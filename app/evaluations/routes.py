"""HTTP routes of metrics."""

import uuid
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query

from app.auth.policy import Policy
from app.database import Reader
from app.errors import NotFound, responses
from app.evaluations import service
from app.evaluations.schemas import MetricsOut
from app.schemas import Moment

router = APIRouter(tags=["evaluations"], dependencies=[Depends(Policy("metrics:read"))])


@router.get("/v1/metrics", responses=responses(NotFound))
def get_metrics(
    session: Reader,
    release: Annotated[uuid.UUID | None, Query(description="The champion where left out.")] = None,
    partition: Annotated[Literal["all", "evaluation", "calibration"], Query()] = "all",
    since: Annotated[Moment | None, Query(description="Cases stored at this time or later.")] = None,
    until: Annotated[Moment | None, Query(description="Cases stored before this time.")] = None,
) -> MetricsOut:
    """Metrics recomputed now: prior predictions against blind planned labels, clustered by patient."""
    return service.metrics(session, release, partition, since, until)
