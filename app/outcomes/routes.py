"""HTTP routes of outcomes and assignments."""

import uuid
from typing import Annotated

from fastapi import APIRouter, Query, Response

from app.accounts.service import GuardedRoute
from app.cases.service import OutcomeOut, RequestOut
from app.context import Call, writing_call
from app.database.idempotency import Idempotent, KeyMissing
from app.http.errors import Conflict, NotFound, list_problem_responses
from app.http.models import Reason
from app.outcomes import service
from app.outcomes.schemas import AssignmentIn, OutcomeIn
from app.outcomes.service import AlreadySettled

router = APIRouter(tags=["cases"], route_class=GuardedRoute)
_ManagingWrite = Annotated[Call, writing_call("manage")]


@router.post(
    "/v1/cases/{case_id}/outcome",
    operation_id="settle_case",
    status_code=201,
    response_model=OutcomeOut,
    responses=list_problem_responses(KeyMissing, NotFound, Conflict, AlreadySettled),
)
def settle_case(case_id: uuid.UUID, body: OutcomeIn, once: Idempotent, call: _ManagingWrite) -> Response:
    """Settle a cell. As a class, as split or by rule; its open adjudications are withdrawn."""
    keys = call.context.keys.audit
    return once(call.session, body, lambda: service.settle_case(call.session, keys, call.principal, case_id, body))


@router.delete(
    "/v1/cases/{case_id}/outcome",
    operation_id="reopen_case",
    status_code=204,
    responses=list_problem_responses(NotFound, Conflict),
)
def reopen_case(case_id: uuid.UUID, reason: Annotated[Reason, Query()], call: _ManagingWrite) -> None:
    """Reopen a settled cell. Its outcome stays in the history."""
    service.reopen_case(call.session, call.context.keys.audit, call.principal, case_id, reason)


@router.post(
    "/v1/cases/{case_id}/assignments",
    operation_id="assign_read",
    status_code=201,
    response_model=RequestOut,
    responses=list_problem_responses(KeyMissing, NotFound, Conflict, AlreadySettled),
)
def assign_read(case_id: uuid.UUID, body: AssignmentIn, once: Idempotent, call: _ManagingWrite) -> Response:
    """Assign a read. An annotator is asked for the next open read, or an adjudication if none is open."""
    keys = call.context.keys.audit
    return once(call.session, body, lambda: service.assign_read(call.session, keys, call.principal, case_id, body))
