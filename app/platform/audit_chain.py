"""Append-only, hash-chained audit events, written in the transaction of what they report.

Each digest is HMAC-SHA256(key, previous digest ‖ canonical JSON of the event): a changed, removed or
reordered event breaks the chain, and the head in a table of its own shows a cut tail.
"""

import hashlib
import hmac
import json
import uuid
from collections.abc import Sequence
from typing import Any

from asgi_correlation_id import correlation_id
from sqlalchemy import func, insert, select
from sqlalchemy.orm import Session

from app.tables import AuditEvent, AuditHead, CaseChange, now

GENESIS = "0" * 64


def _digest(key: bytes, previous: str, event: AuditEvent) -> str:
    document = {
        "sequence": event.sequence,
        "created_at": event.created_at.isoformat(),
        "actor": event.actor,
        "action": event.action,
        "object": event.object,
        "details": event.details,
        "reason": event.reason,
        "request_id": event.request_id,
    }
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hmac.new(key, previous.encode() + canonical.encode(), hashlib.sha256).hexdigest()


def record(
    session: Session,
    key: bytes,
    *,
    actor: str,
    action: str,
    object_id: object,
    details: dict[str, Any] | None = None,
    reason: str | None = None,
    cases: Sequence[uuid.UUID] = (),
) -> AuditEvent:
    """Append an event to the chain; call it last, because the chain stays locked until the commit.

    Args:
        session: of what the event reports.
        key: of the chain.
        actor: who.
        action: what was done.
        object_id: to what.
        details: JSON values.
        reason: why, where somebody was asked.
        cases: of which it changed what is evaluated: every such change must be named here, or evaluations by
            snapshot do not see it.
    """
    head = session.execute(select(AuditHead).where(AuditHead.id == 1).with_for_update()).scalar_one()
    event = AuditEvent(
        sequence=head.sequence + 1,
        created_at=now(),
        actor=actor,
        action=action,
        object=str(object_id),
        details=details or {},
        reason=reason,
        request_id=correlation_id.get(),
    )
    event.digest = _digest(key, head.digest, event)
    session.add(event)
    head.sequence, head.digest = event.sequence, event.digest
    session.flush()
    if cases:
        session.execute(insert(CaseChange), [{"sequence": event.sequence, "case_id": case_id} for case_id in cases])
    return event


def head_of(session: Session) -> tuple[int, str]:
    """Number and digest of the newest event; 0 and ``GENESIS`` before the first."""
    head = session.execute(select(AuditHead)).scalar_one()
    return head.sequence, head.digest


def holds(session: Session, sequence: int, digest: str) -> bool:
    """Whether the chain went through this event: not so after an older backup was restored."""
    if sequence == 0:
        return digest == GENESIS
    statement = select(AuditEvent.digest).where(AuditEvent.sequence == sequence)
    return session.execute(statement).scalar_one_or_none() == digest


def last_change(session: Session) -> str:
    """Digest of the newest event that changed what is evaluated of any case; ``GENESIS`` before the first."""
    newest = select(func.max(CaseChange.sequence)).scalar_subquery()
    digest = session.execute(select(AuditEvent.digest).where(AuditEvent.sequence == newest)).scalar_one_or_none()
    return GENESIS if digest is None else digest


def changed_cases(session: Session, after: int) -> list[uuid.UUID]:
    """Cases that events later than one have changed."""
    statement = select(CaseChange.case_id).where(CaseChange.sequence > after).distinct()
    return list(session.execute(statement).scalars())


def confirmed(session: Session, key: bytes, limit: int) -> tuple[int, int]:
    """How many of the oldest events there are, at most ``limit``, and how many of them were written with this key."""
    previous, n_events, n_confirmed = GENESIS, 0, 0
    for event in session.execute(select(AuditEvent).order_by(AuditEvent.sequence).limit(limit)).scalars():
        n_events += 1
        n_confirmed += hmac.compare_digest(event.digest, _digest(key, previous, event))
        previous = event.digest
    return n_events, n_confirmed


def verify(session: Session, key: bytes) -> tuple[int, list[str]]:
    """Check the whole chain.

    Returns:
        Number of events, and a sentence for each fault found.
    """
    previous, expected, faults = GENESIS, 1, []
    for event in session.execute(select(AuditEvent).order_by(AuditEvent.sequence)).scalars().yield_per(1000):
        if event.sequence != expected:
            faults.append(f"audit event {expected} is missing")
            expected = event.sequence
        if not hmac.compare_digest(event.digest, _digest(key, previous, event)):
            faults.append(f"audit event {event.sequence} was changed, or one before it was removed")
        previous, expected = event.digest, expected + 1
    head = session.execute(select(AuditHead)).scalar_one()
    if (head.sequence, head.digest) != (expected - 1, previous):
        faults.append(f"the audit chain ends at {expected - 1}, its head says {head.sequence}")
    return expected - 1, faults
