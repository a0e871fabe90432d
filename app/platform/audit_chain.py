"""Append-only, hash-chained, signed audit events, written in the transaction of what they report.

Each digest is SHA-256(previous digest ‖ canonical JSON of the event), in which the root over the digests of the rows
that the event wrote stands for them; each digest is signed (Ed25519). So a changed, removed or reordered event breaks
the chain, nobody without the key can write it anew, and a row that is not as an event wrote it is found. Events from
before there were digests of rows have HMAC-SHA256(key, …) instead and no signature.
"""

import hashlib
import hmac
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from asgi_correlation_id import correlation_id
from sqlalchemy import Select, func, insert, inspect, select
from sqlalchemy.orm import Session, undefer

from app.platform import signing
from app.platform.errors import Unavailable
from app.platform.keys import AuditKeys, DerivedKey, Signer
from app.platform.row_digests import Json, Leaves, canonical, cases_digest, merkle_root
from app.platform.written_rows import note_cases, take_leaves
from app.tables import AuditEvent, AuditHead, CaseChange, now

GENESIS = "0" * 64
#: In the digests of an event: its number, and the digest of the cases that it changed.
CASE_CHANGES = "case_changes"
#: Action of an event after which the next key of the ring signs.
ROTATION = "key.rotate"
_CHUNK = 500


def document_of(event: AuditEvent) -> dict[str, Json]:
    """What the digest of an event covers, without its rows."""
    return {
        "sequence": event.sequence,
        "created_at": event.created_at.isoformat(),
        "actor": event.actor,
        "action": event.action,
        "object": event.object,
        "details": event.details,
        "reason": event.reason,
        "request_id": event.request_id,
    }


def digest_of(previous: str, event: AuditEvent) -> str:
    """Digest of an event after the previous one's."""
    document = document_of(event) | {"rows": merkle_root(event.row_digests or {})}
    return hashlib.sha256(previous.encode() + canonical(document)).hexdigest()


def keyed_digest(links: DerivedKey, previous: str, event: AuditEvent) -> str:
    """Digest of an event from before events carried the digests of rows."""
    return links.digest(previous.encode() + canonical(document_of(event))).hex()


def _is_authentic(keys: AuditKeys, public: str, previous: str, event: AuditEvent) -> bool:
    """Whether an event was written with this public key in force after the previous one, and is as it was written."""
    if event.row_digests is None:
        return hmac.compare_digest(event.digest, keyed_digest(keys.links, previous, event))
    return event.digest == digest_of(previous, event) and signing.is_signed(public, head_text(event), event.signature)


def head_text(event: AuditEvent) -> str:
    """The head that an event was: what is signed, printed and kept outside."""
    return f"{event.sequence}:{event.digest}"


def record(
    session: Session,
    keys: AuditKeys,
    *,
    actor: str,
    action: str,
    object_id: object,
    details: dict[str, Any] | None = None,
    reason: str | None = None,
    cases: Sequence[uuid.UUID] = (),
    leaves: Leaves | None = None,
) -> AuditEvent:
    """Append an event to the chain; call it last, because the chain stays locked until the commit.

    It carries the digests of all covered rows that the session has written since its last event.

    Args:
        session: of what the event reports.
        keys: of the audit.
        actor: who.
        action: what was done.
        object_id: to what.
        details: JSON values.
        reason: why, where somebody was asked.
        cases: of which it changed what is evaluated: every such change must be named here, or evaluations by
            snapshot do not see it.
        leaves: digests of further rows, which the event vouches for.

    Raises:
        Unavailable: another process has rotated the key; nothing is written.
    """
    head = session.execute(select(AuditHead).where(AuditHead.id == 1).with_for_update()).scalar_one()
    if head.n_keys != len(keys.signers):
        raise Unavailable("the key was rotated since this process started; start it again with the current key ring")
    session.flush()
    rows = take_leaves(session, keys.rows) | (leaves or {})
    if cases:
        rows[CASE_CHANGES] = {str(head.sequence + 1): cases_digest(cases)}
    event = AuditEvent(
        sequence=head.sequence + 1,
        created_at=now(),
        actor=actor,
        action=action,
        object=str(object_id),
        details=details or {},
        reason=reason,
        request_id=correlation_id.get(),
        row_digests=rows,
    )
    event.digest = digest_of(head.digest, event)
    event.signature = keys.sign(head_text(event))
    session.add(event)
    head.sequence, head.digest = event.sequence, event.digest
    session.flush()
    if cases:
        note_cases(session, cases)
        session.execute(insert(CaseChange), [{"sequence": event.sequence, "case_id": case_id} for case_id in cases])
    return event


def record_rest(session: Session, keys: AuditKeys) -> None:
    """Append an event for covered rows that no event carries yet, if there are any."""
    session.flush()
    rows = take_leaves(session, keys.rows)
    if rows:
        counts = {table: len(keys) for table, keys in sorted(rows.items())}
        record(session, keys, actor="service", action="rows.write", object_id=min(rows), details=counts, leaves=rows)


def head_of(session: Session) -> tuple[int, str]:
    """Number and digest of the newest event; 0 and ``GENESIS`` before the first."""
    head = session.execute(select(AuditHead)).scalar_one()
    return head.sequence, head.digest


def n_keys(session: Session) -> int:
    """How many keys the installation has: one, and one more after each rotation."""
    return session.execute(select(AuditHead.n_keys)).scalar_one()


def newest(session: Session) -> str:
    """The head by the events themselves, whatever the table of the head says."""
    columns = select(AuditEvent.sequence, AuditEvent.digest)
    row = session.execute(columns.order_by(AuditEvent.sequence.desc()).limit(1)).one_or_none()
    return f"0:{GENESIS}" if row is None else f"{row[0]}:{row[1]}"


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


def confirmed(session: Session, keys: AuditKeys, limit: int) -> tuple[int, int]:
    """How many of the oldest events there are, at most ``limit``, and how many of them were written with the first key.

    The database may be of an older schema.
    """
    previous, n_events, n_confirmed = GENESIS, 0, 0
    columns = {column["name"] for column in inspect(session.connection()).get_columns(AuditEvent.__tablename__)}
    events = _whole_events() if "signature" in columns else select(AuditEvent).order_by(AuditEvent.sequence)
    for event in session.execute(events.limit(limit)).scalars():
        n_events += 1
        if "signature" in columns and event.signature is not None:
            n_confirmed += signing.is_signed(keys.signers[0].public, head_text(event), event.signature)
        else:
            n_confirmed += hmac.compare_digest(event.digest, keyed_digest(keys.links, previous, event))
        previous = event.digest
    return n_events, n_confirmed


def _whole_events() -> Select[AuditEvent]:
    columns = undefer(AuditEvent.row_digests), undefer(AuditEvent.signature)
    return select(AuditEvent).options(*columns).order_by(AuditEvent.sequence)


def events(session: Session) -> Iterator[AuditEvent]:
    """Every event with the digests of its rows, in order."""
    for event in session.execute(_whole_events().execution_options(yield_per=_CHUNK)).scalars():
        yield event
        session.expunge(event)


def rotation_text(before: str, head: str, public: str) -> str:
    """What a new key signs at its rotation: which key and which head it follows.

    Args:
        before: public key until then.
        head: the newest event, number and digest, before the one of the rotation.
        public: the new public key.
    """
    return f"key {public} follows key {before} after {head}"


def _follows(event: AuditEvent, previous: str, before: str, keys: Sequence[Signer]) -> bool:
    """Whether an event of a rotation names the next key of the ring, and bears its signature."""
    text = rotation_text(before, f"{event.sequence - 1}:{previous}", event.details["public_key"])
    known = bool(keys) and keys[0].public == event.details["public_key"]
    return known and signing.is_signed(keys[0].public, text, event.details["signature"])


def verify(session: Session, keys: AuditKeys) -> tuple[int, list[str]]:
    """Check the whole chain; each event must be signed by the key that was in force when it was written.

    Returns:
        Number of events, and a sentence for each fault found.
    """
    previous, expected, faults, begun, n_signers = GENESIS, 1, [], False, 1
    for event in events(session):
        if event.sequence != expected:
            faults.append(f"audit event {expected} is missing")
            expected = event.sequence
        public = keys.signers[n_signers - 1].public
        if not _is_authentic(keys, public, previous, event):
            faults.append(f"audit event {event.sequence} was changed, or one before it was removed")
        elif event.action == ROTATION and _follows(event, previous, public, keys.signers[n_signers:]):
            n_signers += 1
        elif event.action == ROTATION:
            faults.append(f"audit event {event.sequence} rotates to a key that is not the next one of the ring")
        if begun and event.row_digests is None:
            faults.append(f"audit event {event.sequence} has no digests of rows, although earlier ones have")
        begun = begun or event.row_digests is not None
        previous, expected = event.digest, expected + 1
    return expected - 1, faults + _wrong_head(session, keys, (expected - 1, previous, n_signers))


def _wrong_head(session: Session, keys: AuditKeys, end: tuple[int, str, int]) -> list[str]:
    """Compare number, digest and number of keys at the end of the chain with its head and with the ring."""
    heads = [
        (head.id, head.sequence, head.digest, head.n_keys) for head in session.execute(select(AuditHead)).scalars()
    ]
    faults = []
    if heads != [(1, *end)]:
        said = ", ".join(str(sequence) for _, sequence, _, _ in heads) or "nothing"
        faults.append(f"the audit chain ends at {end[0]}, its head says {said}")
    if end[2] != len(keys.signers):
        faults.append(f"the audit chain knows {end[2]} keys, the key ring has {len(keys.signers)}")
    return faults
