"""HTTP routes of policies."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from app.accounts.service import GuardedRoute, RequireScope
from app.context import Call, writing_call
from app.database.engine import ReadSession
from app.database.idempotency import Idempotent, KeyMissing
from app.http.errors import Conflict, list_problem_responses
from app.triage import service
from app.triage.schemas import PoliciesOut, PolicyIn, PolicyOut

router = APIRouter(tags=["policies"], responses=list_problem_responses(), route_class=GuardedRoute)
_ManagingWrite = Annotated[Call, writing_call("manage")]


@router.get("/v1/policies", operation_id="list_policies", dependencies=[Depends(RequireScope("metrics:read"))])
def list_policies(session: ReadSession) -> PoliciesOut:
    """List reading policies. Newest first; the first one is in force."""
    return service.list_policies(session)


@router.post(
    "/v1/policies",
    operation_id="add_policy",
    status_code=201,
    response_model=PolicyOut,
    responses=list_problem_responses(KeyMissing, Conflict),
)
def add_policy(body: PolicyIn, once: Idempotent, call: _ManagingWrite) -> Response:
    """Change the reading policy. Cells planned earlier keep their random number."""
    return once(
        call.session, body, lambda: service.add_policy(call.session, call.context.keys.audit, call.principal, body)
    )
