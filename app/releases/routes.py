"""HTTP routes of releases and aliases."""

import uuid
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Response

from app.accounts.service import GuardedRoute, RequireScope, confirm_password
from app.context import Call, writing_call
from app.database.engine import ReadSession
from app.database.idempotency import Idempotent, KeyMissing
from app.database.revisions import Revision
from app.http.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    NotFound,
    PreconditionFailed,
    PreconditionRequired,
    list_problem_responses,
)
from app.jobs.service import JobOut
from app.releases import service
from app.releases.schemas import AliasesOut, AliasIn, AliasOut, ReleaseDetailOut, ReleasesOut

router = APIRouter(tags=["releases"], responses=list_problem_responses(), route_class=GuardedRoute)
_Viewing = Depends(RequireScope("metrics:read"))
_ManagingWrite = Annotated[Call, writing_call("manage")]


@router.get("/v1/releases", operation_id="list_releases", dependencies=[_Viewing])
def list_releases(session: ReadSession) -> ReleasesOut:
    """List model releases. Newest first."""
    return service.list_releases(session)


@router.get(
    "/v1/releases/{release_id}",
    operation_id="get_release",
    responses=list_problem_responses(NotFound),
    dependencies=[_Viewing],
)
def get_release(release_id: uuid.UUID, session: ReadSession) -> ReleaseDetailOut:
    """Get a model release. With its card and last promotion check."""
    return service.read_release_detail(session, release_id)


@router.get("/v1/aliases", operation_id="list_aliases", dependencies=[_Viewing])
def list_aliases(session: ReadSession) -> AliasesOut:
    """List aliases. Champion and challenger; the revision is the value for ``If-Match``."""
    return service.aliases_out(session)


@router.put(
    "/v1/aliases/{name}",
    operation_id="move_alias",
    responses=list_problem_responses(
        BadRequest, Conflict, Forbidden, NotFound, PreconditionFailed, PreconditionRequired
    ),
)
def move_alias(
    name: Literal["champion", "challenger"], body: AliasIn, revision: Revision, call: _ManagingWrite, response: Response
) -> AliasOut:
    """Promote a model release. Or roll back to an earlier one, with a reason."""
    confirm_password(call.session, call.principal, body.password)
    alias = service.move_alias(
        call.session,
        call.context,
        call.principal.name,
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
    responses=list_problem_responses(Conflict, KeyMissing, NotFound),
)
def judge_release(release_id: uuid.UUID, once: Idempotent, call: _ManagingWrite) -> Response:
    """Run the promotion check. A job compares a model release with the champion; each run is one attempt."""
    return once(
        call.session, None, lambda: service.request_judgement(call.session, call.context, call.principal, release_id)
    )
