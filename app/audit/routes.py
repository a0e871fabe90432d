"""HTTP routes of the audit, and of the changes that it has recorded."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from app.accounts.service import GuardedRoute, RequireScope
from app.audit import changes
from app.audit.events import AuditEventsOut, list_audit_event_page
from app.context import Call, reading_call
from app.database.engine import ReadSession
from app.http.errors import list_problem_responses
from app.http.models import Line

router = APIRouter(route_class=GuardedRoute)


@router.get(
    "/v1/changes",
    operation_id="list_changes",
    tags=["cases"],
    responses=list_problem_responses(changes.CursorLost),
)
def list_changes(
    call: Annotated[Call, reading_call("cases:read")],
    after: Annotated[str | None, Query(max_length=100)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> changes.ChangesOut:
    """List what has changed. Oldest first, identifiers only; poll with the last ``next_cursor`` as ``after``."""
    with_releases = "metrics:read" in call.principal.scopes
    return changes.list_changes(call.session, after, limit, with_releases=with_releases)


@router.get(
    "/v1/audit-events",
    operation_id="list_audit_events",
    tags=["audit"],
    responses=list_problem_responses(),
    dependencies=[Depends(RequireScope("manage"))],
)
def list_audit_events(
    session: ReadSession,
    cursor: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    object_id: Annotated[Line | None, Query()] = None,
    actor: Annotated[Line | None, Query()] = None,
    action: Annotated[Line | None, Query()] = None,
) -> AuditEventsOut:
    """List audit events. Newest first."""
    return list_audit_event_page(session, cursor=cursor, limit=limit, object_id=object_id, actor=actor, action=action)
