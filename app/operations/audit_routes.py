"""HTTP routes of the audit."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from sqlalchemy import select

from app.auth.policy import Policy
from app.platform.database import Reader
from app.platform.errors import responses
from app.platform.values import Line, Out
from app.tables import AuditEvent

router = APIRouter(tags=["audit"], dependencies=[Depends(Policy("manage"))])


class AuditEventOut(Out):
    """Who did what to which object; ``digest`` chains it to the event before."""

    sequence: int
    created_at: datetime
    actor: str
    action: str
    object: str
    details: dict[str, Any]
    reason: str | None
    request_id: str | None
    digest: str


class AuditEventsOut(Out):
    """Audit events, newest first; ``next_cursor`` leads to older ones."""

    items: list[AuditEventOut]
    next_cursor: str | None


@router.get("/v1/audit-events", responses=responses())
def list_audit_events(
    session: Reader,
    cursor: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="`next_cursor` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    object_id: Annotated[Line | None, Query(description="Events of one object.")] = None,
    actor: Annotated[Line | None, Query()] = None,
    action: Annotated[Line | None, Query()] = None,
) -> AuditEventsOut:
    """Audit events, newest first."""
    statement = select(AuditEvent).order_by(AuditEvent.sequence.desc()).limit(limit + 1)
    if cursor is not None:
        statement = statement.where(AuditEvent.sequence < cursor)
    for column, value in ((AuditEvent.object, object_id), (AuditEvent.actor, actor), (AuditEvent.action, action)):
        if value is not None:
            statement = statement.where(column == value)
    rows = list(session.execute(statement).scalars())
    names = AuditEventOut.model_fields
    items = [AuditEventOut(**{name: getattr(row, name) for name in names}) for row in rows[:limit]]
    return AuditEventsOut(items=items, next_cursor=str(items[-1].sequence) if len(rows) > limit else None)
