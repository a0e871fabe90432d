"""HTTP routes of the audit."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from app.accounts.permissions import GuardedRoute, Policy
from app.audit.events import AuditEventsOut, page_of_events
from app.database.engine import Reader
from app.http.errors import responses
from app.http.models import Line

router = APIRouter(tags=["audit"], dependencies=[Depends(Policy("manage"))], route_class=GuardedRoute)


@router.get("/v1/audit-events", operation_id="list_audit_events", responses=responses())
def list_audit_events(
    session: Reader,
    cursor: Annotated[int | None, Query(ge=1, le=2**63 - 1, description="`next_cursor` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    object_id: Annotated[Line | None, Query(description="Events of one object.")] = None,
    actor: Annotated[Line | None, Query()] = None,
    action: Annotated[Line | None, Query()] = None,
) -> AuditEventsOut:
    """Audit events, newest first."""
    return page_of_events(session, cursor=cursor, limit=limit, object_id=object_id, actor=actor, action=action)
