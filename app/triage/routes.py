"""HTTP routes of policies."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from app.accounts.permissions import GuardedRoute, Policy
from app.context import Parts
from app.database.engine import Reader, Writer
from app.database.idempotency import Idempotent
from app.http.errors import Conflict, KeyMissing, responses
from app.http.principal import Principal
from app.triage import service
from app.triage.schemas import PoliciesOut, PolicyIn, PolicyOut

router = APIRouter(tags=["policies"], route_class=GuardedRoute)


@router.get(
    "/v1/policies", operation_id="list_policies", responses=responses(), dependencies=[Depends(Policy("metrics:read"))]
)
def list_policies(session: Reader) -> PoliciesOut:
    """Every version of the reading policy, newest first; the first one is in force."""
    return service.list_policies(session)


@router.post(
    "/v1/policies",
    operation_id="add_policy",
    status_code=201,
    response_model=PolicyOut,
    responses=responses(KeyMissing, Conflict),
)
def add_policy(
    body: PolicyIn,
    context: Parts,
    principal: Annotated[Principal, Depends(Policy("manage"))],
    once: Idempotent,
    session: Writer,
) -> Response:
    """Change the policy by a new version; cases planned before keep their coin."""
    return once(session, body, lambda: service.add_policy(session, context.keys.audit, principal, body))
