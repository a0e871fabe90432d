"""HTTP routes of the audit."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from app.accounts.service import GuardedRoute, RequireScope
from app.audit.events import AuditEventsOut, list_audit_event_page
from app.database.engine import ReadSession
from app.http.errors import list_problem_responses
from app.http.models import Line

router = APIRouter(tags=["audit"], dependencies=[Depends(RequireScope("manage"))], route_class=GuardedRoute)


@router.get("/v1/audit-events", operation_id="list_audit_events", responses=list_problem_responses())
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
