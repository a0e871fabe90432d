"""HTTP routes of releases, aliases and recalibration."""

import uuid
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Response

from app.accounts.people import confirm_password
from app.accounts.permissions import GuardedRoute, Policy
from app.context import Parts
from app.database.engine import Reader, Writer
from app.database.idempotency import Idempotent
from app.database.revisions import Revision
from app.http.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    KeyMissing,
    NotFound,
    PreconditionFailed,
    PreconditionRequired,
    responses,
)
from app.http.principal import Principal
from app.jobs.schemas import JobOut
from app.releases import service
from app.releases.schemas import AliasesOut, AliasIn, AliasOut, RecalibrationIn, ReleaseDetailOut, ReleasesOut

router = APIRouter(tags=["releases"], route_class=GuardedRoute)
_Viewing = Depends(Policy("metrics:read"))
_Managing = Annotated[Principal, Depends(Policy("manage"))]


@router.get("/v1/releases", operation_id="list_releases", responses=responses(), dependencies=[_Viewing])
def list_releases(session: Reader) -> ReleasesOut:
    """Every release, newest first."""
    return service.list_releases(session)


@router.get(
    "/v1/releases/{release_id}", operation_id="get_release", responses=responses(NotFound), dependencies=[_Viewing]
)
def get_release(release_id: uuid.UUID, session: Reader) -> ReleaseDetailOut:
    """A release with its card."""
    return service.detail(session, release_id)


@router.get("/v1/aliases", operation_id="list_aliases", responses=responses(), dependencies=[_Viewing])
def list_aliases(session: Reader) -> AliasesOut:
    """Which releases are champion and challenger; the revision is what If-Match wants."""
    return service.aliases_out(session)


@router.put(
    "/v1/aliases/{name}",
    operation_id="move_alias",
    responses=responses(BadRequest, Conflict, Forbidden, NotFound, PreconditionFailed, PreconditionRequired),
)
def move_alias(
    name: Literal["champion", "challenger"],
    body: AliasIn,
    context: Parts,
    principal: _Managing,
    revision: Revision,
    session: Writer,
    response: Response,
) -> AliasOut:
    """Promote a release, or roll back to an earlier one, with a reason."""
    confirm_password(session, principal, body.password)
    alias = service.move_alias(
        session,
        context,
        principal.name,
        name,
        body.release,
        body.reason,
        revision,
        despite_gate=body.despite_gate,
    )
    response.headers["ETag"] = f'"{alias.revision}"'
    return service.alias_out(alias)


@router.post(
    "/v1/releases/{release_id}/judgements",
    operation_id="judge_release",
    status_code=202,
    response_model=JobOut,
    responses=responses(Conflict, KeyMissing, NotFound),
)
def judge_release(
    release_id: uuid.UUID,
    context: Parts,
    principal: _Managing,
    once: Idempotent,
    session: Writer,
) -> Response:
    """Judge a release that was trained elsewhere against the champion, in a job; one attempt on that champion."""
    return once(session, None, lambda: service.ask_judgement(session, context, principal, release_id))


@router.post(
    "/v1/recalibrations",
    operation_id="recalibrate",
    status_code=202,
    response_model=JobOut,
    responses=responses(KeyMissing),
)
def recalibrate(
    body: RecalibrationIn,
    context: Parts,
    principal: _Managing,
    once: Idempotent,
    session: Writer,
) -> Response:
    """Fit a candidate on the labels collected so far and judge it against the champion, in a job."""
    return once(session, body, lambda: service.ask_recalibration(session, context, principal, body))
