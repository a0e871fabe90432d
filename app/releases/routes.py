"""HTTP routes of releases."""

import uuid

from fastapi import APIRouter, Depends

from app.auth.policy import Policy
from app.database import Reader
from app.errors import NotFound, responses
from app.releases import queries, service
from app.releases.schemas import ReleaseDetailOut, ReleasesOut

router = APIRouter(tags=["releases"], dependencies=[Depends(Policy("metrics:read"))])


@router.get("/v1/releases", responses=responses())
def list_releases(session: Reader) -> ReleasesOut:
    """Every release, newest first."""
    return ReleasesOut(items=[service.describe(session, row) for row in queries.all_releases(session)])


@router.get("/v1/releases/{release_id}", responses=responses(NotFound))
def get_release(release_id: uuid.UUID, session: Reader) -> ReleaseDetailOut:
    """A release with its card."""
    return service.detail(session, release_id)
