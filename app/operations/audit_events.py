"""Audit events as the API and the pages show them."""

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.platform.values import Out
from app.tables import AuditEvent, Remark

# labels that the worker has seen to be final: its object is no identifier, and nobody was asked why
_OF_MANY = "label.final"


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


def page_of_events(
    session: Session,
    *,
    cursor: int | None = None,
    limit: int = 100,
    object_id: str | None = None,
    actor: str | None = None,
    action: str | None = None,
) -> AuditEventsOut:
    """Audit events, newest first.

    Args:
        session: for reading.
        cursor: only events with a smaller number than this.
        limit: how many events at most.
        object_id: only events of this object.
        actor: only events of this person or program.
        action: only events of this kind.
    """
    statement = select(AuditEvent).order_by(AuditEvent.sequence.desc()).limit(limit + 1)
    if cursor is not None:
        statement = statement.where(AuditEvent.sequence < cursor)
    for column, value in ((AuditEvent.object, object_id), (AuditEvent.actor, actor), (AuditEvent.action, action)):
        if value is not None:
            statement = statement.where(column == value)
    rows = list(session.execute(statement).scalars())
    names = AuditEventOut.model_fields
    shown = rows[:limit]
    reasons = reasons_of(session, shown)
    items = [
        AuditEventOut(**{name: getattr(row, name) for name in names} | {"reason": reasons.get(row.sequence)})
        for row in shown
    ]
    return AuditEventsOut(items=items, next_cursor=str(items[-1].sequence) if len(rows) > limit else None)


def reasons_of(session: Session, events: Sequence[AuditEvent]) -> dict[int, str]:
    """Why each event was, by its number; those of labels stand next to the label, and go with an erased patient.

    Args:
        session: for reading.
        events: at most some thousands.
    """
    of_label = [event for event in events if event.action.startswith("label.") and event.action != _OF_MANY]
    labels = {uuid.UUID(event.object): event.sequence for event in of_label}
    rows = session.execute(select(Remark.id, Remark.reason).where(Remark.id.in_(labels))).all() if labels else []
    said = {event.sequence: event.reason for event in events} | {labels[row[0]]: row[1] for row in rows}
    return {sequence: reason for sequence, reason in said.items() if reason is not None}
