"""Audit events as the API and the pages show them."""

import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import Session

from app.database.tables import Account, ApiKey, AuditEvent, Case, CaseChange, Read, ReleaseRow, Remark
from app.http.models import ResponseModel

# many labels, that the worker has seen to be final or that came at once: the object is no identifier, without a reason
_OF_MANY = ("label.final", "label.batch")


class AuditEventOut(ResponseModel):
    """An action on an object."""

    sequence: int
    created_at: datetime
    actor: str
    action: str
    object: str
    details: dict[str, Any]
    reason: str | None
    request_id: str | None
    digest: str


class AuditEventsOut(ResponseModel):
    """A page of audit events."""

    items: list[AuditEventOut]
    next_cursor: str | None


@dataclass(frozen=True)
class DayRange:
    """Days of UTC, the first and the last; None without a bound."""

    since: date | None = None
    until: date | None = None


EVER = DayRange()


def _start_of_utc_day(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _match_name(session: Session, name: str) -> ColumnElement[bool]:
    objects, cases = {name}, set(session.execute(select(Case.id).where(Case.external_id == name)).scalars())
    with suppress(ValueError):
        cases.add(uuid.UUID(name))
    accounts = session.execute(select(Account.id).where(Account.name == name)).scalars().all()
    objects |= {str(account) for account in accounts}
    for statement in (
        select(ApiKey.id).where(ApiKey.account_id.in_(accounts)),
        select(ReleaseRow.id).where(ReleaseRow.name == name),
        select(Read.id).where(Read.case_id.in_(cases)),
    ):
        objects |= {str(row_id) for row_id in session.execute(statement).scalars()}
    objects |= {str(case_id) for case_id in cases}
    changed = select(CaseChange.sequence).where(CaseChange.case_id.in_(cases))
    return or_(AuditEvent.object.in_(objects), AuditEvent.sequence.in_(changed))


def list_audit_event_page(
    session: Session,
    *,
    cursor: int | None = None,
    limit: int = 100,
    object_id: str | None = None,
    actor: str | None = None,
    action: str | None = None,
    days: DayRange = EVER,
    about: str | None = None,
) -> AuditEventsOut:
    """Audit events, newest first."""
    statement = select(AuditEvent).order_by(AuditEvent.sequence.desc()).limit(limit + 1)
    if cursor is not None:
        statement = statement.where(AuditEvent.sequence < cursor)
    for column, value in ((AuditEvent.object, object_id), (AuditEvent.actor, actor), (AuditEvent.action, action)):
        if value is not None:
            statement = statement.where(column == value)
    if days.since is not None:
        statement = statement.where(AuditEvent.created_at >= _start_of_utc_day(days.since))
    if days.until is not None:
        statement = statement.where(AuditEvent.created_at < _start_of_utc_day(days.until) + timedelta(days=1))
    if about is not None:
        statement = statement.where(_match_name(session, about))
    rows = list(session.execute(statement).scalars())
    names = AuditEventOut.model_fields
    page_rows = rows[:limit]
    reasons = read_event_reasons(session, page_rows)
    items = [
        AuditEventOut(**{name: getattr(row, name) for name in names} | {"reason": reasons.get(row.sequence)})
        for row in page_rows
    ]
    return AuditEventsOut(items=items, next_cursor=str(items[-1].sequence) if len(rows) > limit else None)


def count_audit_events(session: Session, actions: Sequence[str], since: datetime) -> int:
    """Number of events of some actions since a moment."""
    counted = select(func.count()).where(AuditEvent.action.in_(actions), AuditEvent.created_at >= since)
    return session.execute(counted).scalar_one()


def read_event_reasons(session: Session, events: Sequence[AuditEvent]) -> dict[int, str]:
    """Reason of each event, by its number."""
    with_remark = [
        one for one in events if one.action.startswith(("label.", "outcome.")) and one.action not in _OF_MANY
    ]
    remarks = {uuid.UUID(event.object): event.sequence for event in with_remark}
    rows = session.execute(select(Remark.id, Remark.reason).where(Remark.id.in_(remarks))).all() if remarks else []
    reasons = {event.sequence: event.reason for event in events} | {remarks[row[0]]: row[1] for row in rows}
    return {sequence: reason for sequence, reason in reasons.items() if reason is not None}
