"""Audit events: recording, signing, linking and checking them.

An event stands for itself: its digest is SHA-256 of its canonical JSON, in which the root over the digests of the rows
that it wrote stands for them, and the digest is signed (Ed25519). It depends on no other event. The linker gives it its
number and its link, SHA-256(previous link ‖ digest), and signs that, so that an event can be linked later than written:
on SQLite, where one writes at a time, in the same transaction, on PostgreSQL by the sealer (``app.audit.linking``).
So a changed, removed or reordered event breaks the chain, nobody without the key can write it anew, and a row that is
not as an event wrote it is found.
"""

import hashlib
import hmac
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from asgi_correlation_id import correlation_id
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from sqlalchemy import ColumnElement, bindparam, null, or_, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.audit.chain.change_tracking import name_cases, take_leaves
from app.audit.chain.detached_rows import prepare_insert
from app.audit.chain.keys import AuditKeys, EventSigner
from app.audit.chain.row_digests import Json, Leaves, cases_digest, encode_canonical_json, merkle_root
from app.database.sql.advisory_locks import AdvisoryLock, acquire_lock
from app.database.sql.compiled_statements import PreparedStatement
from app.database.tables import STAMPS, AuditEvent, AuditHead, CaseChange, time_of
from app.database.tables.base import Row
from app.http.errors import ServiceUnavailable


def is_signed(public: str, text: str, signature: str | None) -> bool:
    """Whether a signature of a text was made with the key of which this is the public one."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(bytes.fromhex(signature or ""), text.encode())
    except (InvalidSignature, ValueError):
        return False
    return True


GENESIS = "0" * 64
#: In the digests of an event: the digest of the cases that it changed.
CASE_CHANGES = "case_changes"
#: In place of its number, which an event does not know.
OWN = ""
#: Action of an event after which the next key of the ring signs.
ROTATION = "key.rotate"
_CHUNK = 200


class KeyRotated(ServiceUnavailable):
    """Another process has rotated the key; this one must be started again with the new ring."""


def build_event_document(event: AuditEvent) -> dict[str, Json]:
    """Document of an event that its digest covers, without its rows."""
    return {
        "created_at": event.created_at.isoformat(),
        "actor": event.actor,
        "action": event.action,
        "object": event.object,
        "details": event.details,
        "reason": event.reason,
        "request_id": event.request_id,
    }


def compute_event_digest(event: AuditEvent) -> str:
    """Digest of an event: its content, its rows and its stamp."""
    root = merkle_root(event.row_digests or {})  # nothing in an event that somebody has changed
    covered: dict[str, Json] = build_event_document(event) | {"rows": root, "stamp": event.stamp}
    return hashlib.sha256(encode_canonical_json(covered)).hexdigest()


def sign_event(event: AuditEvent, signer: EventSigner) -> None:
    """Give an event its digest and its signature."""
    event.event_sha256 = compute_event_digest(event)
    event.signature = signer.sign(event_text(event))


def link_event(event: AuditEvent, sequence: int, previous: str, signer: EventSigner) -> None:
    """Link an event to the chain."""
    event.sequence = sequence
    event.digest = hashlib.sha256(f"{previous}{event.event_sha256}".encode()).hexdigest()
    event.link_signature = signer.sign(head_text(event))


def is_authentic_link(public: str, previous: str, event: AuditEvent) -> bool:
    """Whether an event is as it was written and linked after the previous one, while this public key was in force."""
    return (
        is_authentic_event(public, event)
        and event.digest == hashlib.sha256(f"{previous}{event.event_sha256}".encode()).hexdigest()
        and is_signed(public, head_text(event), event.link_signature)
    )


def is_authentic_event(public: str, event: AuditEvent) -> bool:
    """Whether an event is as it was written while this public key was in force, wherever it stands in the chain."""
    return event.event_sha256 == compute_event_digest(event) and is_signed(public, event_text(event), event.signature)


def is_as_signed_by(signer: EventSigner, event: AuditEvent) -> bool:
    """Whether an event that waits is as it was written by whoever has this key, which signs it once more to see."""
    # The same text has one Ed25519 signature by one key, and to sign costs a third of what checking a signature does.
    signature = event.signature or ""
    return event.event_sha256 == compute_event_digest(event) and hmac.compare_digest(
        signer.sign(event_text(event)), signature
    )


def is_linked_later(session: Session) -> bool:
    """Whether events of this database wait for the sealer."""
    return session.get_bind().dialect.name == "postgresql"


def event_text(event: AuditEvent) -> str:
    """Text of an event that is signed."""
    return f"event {event.event_sha256}"


def head_text(event: AuditEvent) -> str:
    """Text of a head: number and digest, signed with the link and kept outside."""
    return f"{event.sequence}:{event.digest}"


def record_event(
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
    """Write an event, and on SQLite link it; call it after everything that it reports."""
    # It carries the digests of all covered rows that the session has written since its last event. These rows are
    # locked until the commit, and its stamp is drawn afterwards, so events about one row are in the order of its
    # versions.
    acquire_lock(session, AdvisoryLock.KEY, shared=True)  # the key is not rotated until the commit
    session.flush()
    rows = take_leaves(session, keys.rows) | (leaves or {})
    if cases:
        rows[CASE_CHANGES] = {OWN: cases_digest(cases)}
    stamp, before = _next_place(session, keys)
    event_fields = {
        "actor": actor,
        "action": action,
        "object": str(object_id),
        "details": details or {},
        "reason": reason,
    }
    of_request = {"created_at": time_of(session), "request_id": correlation_id.get()}
    event = event_from_row(dict.fromkeys(_COLUMNS) | event_fields | of_request | {"stamp": stamp, "row_digests": rows})
    sign_event(event, keys.signers[-1])
    if before is not None:
        link_event(event, stamp, before, keys.signers[-1])
        _MOVE.change(session, {"number": stamp, "link": event.digest})
    # past the unit of work, which would cost more than the statement: nobody changes an event
    prepare_insert(AuditEvent, _COLUMNS).change(session, vars(event))
    if cases:
        name_cases(session, event.stamp, cases)
    return event


_COLUMNS = tuple(column.key for column in AuditEvent.__table__.columns)
# where one writes at a time; an entity of the row that the session may have is not told
_MOVE = PreparedStatement(
    update(AuditHead).where(AuditHead.id == 1).values(sequence=bindparam("number"), digest=bindparam("link"))
)
_HEAD = PreparedStatement(select(AuditHead.n_keys, AuditHead.sequence + 1, AuditHead.digest))
_STAMP = PreparedStatement(select(AuditHead.n_keys, STAMPS.next_value(), null()))


def _next_place(session: Session, keys: AuditKeys) -> tuple[int, str | None]:
    """The next stamp, drawn once the rows that an event reports are written and locked, and the link before it."""
    ((number, stamp, before),) = (_STAMP if is_linked_later(session) else _HEAD).all(session)
    require_current_ring(number, keys)
    return int(stamp), before


def lock_head(session: Session, keys: AuditKeys, *, wait: bool = True) -> AuditHead | None:
    """Lock the chain's head until the commit."""
    locked = select(AuditHead).where(AuditHead.id == 1).with_for_update(skip_locked=not wait)
    head = session.execute(locked.execution_options(populate_existing=True)).scalar_one_or_none()
    if head is not None:
        require_current_ring(head.n_keys, keys)
    return head


def require_current_ring(n_keys: int, keys: AuditKeys) -> None:
    """Refuse to write with a ring that is not the installation's."""
    if n_keys != len(keys.signers):
        raise KeyRotated("the key was rotated since this process started; start it again with the current key ring")


def append_event(head: AuditHead, event: AuditEvent, keys: AuditKeys) -> None:
    """Link an event to the end of the chain, whose head is locked."""
    link_event(event, head.sequence + 1, head.digest, keys.signers[-1])
    head.sequence, head.digest = head.sequence + 1, str(event.digest)


def record_unreported_rows(session: Session, keys: AuditKeys) -> None:
    """Record an event for covered rows that no event carries yet."""
    session.flush()
    rows = take_leaves(session, keys.rows)
    if rows:
        counts = {table: len(keys) for table, keys in sorted(rows.items())}
        record_event(
            session, keys, actor="service", action="rows.write", object_id=min(rows), details=counts, leaves=rows
        )


def read_head(session: Session) -> tuple[int, str]:
    """Number and digest of the newest event; 0 and ``GENESIS`` before the first."""
    head = session.execute(select(AuditHead)).scalar_one()
    return head.sequence, head.digest


def count_keys(session: Session) -> int:
    """Number of keys of the installation: one, plus one for each rotation."""
    return session.execute(select(AuditHead.n_keys)).scalar_one()


def read_head_text(session: Session) -> str:
    """Read the head from the events, not from the table of the head."""
    columns = select(AuditEvent.sequence, AuditEvent.digest)
    linked = columns.where(AuditEvent.sequence.is_not(None))
    row = session.execute(linked.order_by(AuditEvent.sequence.desc()).limit(1)).one_or_none()
    return f"0:{GENESIS}" if row is None else f"{row[0]}:{row[1]}"


def contains_head(session: Session, sequence: int, digest: str) -> bool:
    """Whether the chain contains this event; False after an older backup was restored."""
    if sequence == 0:
        return digest == GENESIS
    statement = select(AuditEvent.digest).where(AuditEvent.sequence == sequence)
    return session.execute(statement).scalar_one_or_none() == digest


def waiting_digests(session: Session, limit: int) -> dict[int, str]:
    """Digests of events that wait to be linked, by their stamps, of the oldest ``limit``: on SQLite none."""
    waiting = select(AuditEvent.stamp, AuditEvent.event_sha256).where(AuditEvent.sequence.is_(None))
    rows = session.execute(waiting.order_by(AuditEvent.stamp).limit(limit))
    return {stamp: str(digest) for stamp, digest in rows}


def digests_at(session: Session, stamps: list[int]) -> dict[int, str]:
    """Digests of the events with these stamps, linked or not, as far as the session sees them."""
    if not stamps:
        return {}
    rows = session.execute(select(AuditEvent.stamp, AuditEvent.event_sha256).where(AuditEvent.stamp.in_(stamps)))
    return {stamp: str(digest) for stamp, digest in rows}


def last_change(session: Session) -> str:
    """Link of the newest event that changed what is evaluated of any case; ``GENESIS`` before the first."""
    # What waits for the sealer is not asked: between two that wait, one that commits late may come to stand, and the
    # newest would be the same although something has changed. Whoever reads this first and the cases afterwards has at
    # least everything up to it, and sees another link as soon as there is more.
    changed = select(CaseChange.stamp).where(CaseChange.stamp == AuditEvent.stamp).exists()
    newest = select(AuditEvent.digest).where(AuditEvent.sequence.is_not(None), changed)
    digest = session.execute(newest.order_by(AuditEvent.sequence.desc()).limit(1)).scalar_one_or_none()
    return GENESIS if digest is None else digest


def changed_cases(session: Session, after: int) -> list[uuid.UUID]:
    """Cases that events later than one have changed, and those that wait to be linked: they will be later."""
    changed = select(CaseChange.case_id).join(AuditEvent, AuditEvent.stamp == CaseChange.stamp)
    later = or_(AuditEvent.sequence > after, AuditEvent.sequence.is_(None))
    return list(session.execute(changed.where(later).distinct()).scalars())


def read_linked_events(session: Session, after: int = 0, limit: int | None = None) -> Iterator[AuditEvent]:
    """Every linked event with all its columns, in order."""
    yield from _select_events(session, AuditEvent.sequence > after, AuditEvent.sequence, limit)


def read_waiting_events(session: Session) -> Iterator[AuditEvent]:
    """Every event that waits to be linked, in the order in which it will be, if no other one commits meanwhile."""
    yield from _select_events(session, AuditEvent.sequence.is_(None), AuditEvent.stamp, None)


def read_all_events(session: Session) -> Iterator[AuditEvent]:
    """The chain, then what waits to be linked to it."""
    yield from read_linked_events(session)
    yield from read_waiting_events(session)


def _select_events(
    session: Session, which: ColumnElement[bool], order: InstrumentedAttribute[Any], limit: int | None
) -> Iterator[AuditEvent]:
    statement = select(*AuditEvent.__table__.columns).where(which).order_by(order).limit(limit)
    with session.execute(statement.execution_options(yield_per=_CHUNK)) as rows:
        yield from map(event_from_row, rows.mappings())


def event_from_row(row: Row) -> AuditEvent:
    """Make an event from its columns, without the cost of setting each attribute."""
    event = AuditEvent()
    vars(event).update(row)
    return event


def rotation_text(before: str, head: str, public: str) -> str:
    """Text that a new key signs at its rotation."""
    return f"key {public} follows key {before} after {head}"


def _is_valid_rotation(event: AuditEvent, previous: str, before: str, keys: Sequence[EventSigner]) -> bool:
    """Whether a rotation event names the next key of the ring and has its signature."""
    text = rotation_text(before, f"{(event.sequence or 0) - 1}:{previous}", event.details["public_key"])
    is_next_key = bool(keys) and keys[0].public == event.details["public_key"]
    return is_next_key and is_signed(keys[0].public, text, event.details["signature"])


def verify_chain(session: Session, keys: AuditKeys) -> tuple[int, list[str]]:
    """Check the chain and what waits; each event must be signed by the key that was in force when it was written."""
    previous, expected, n_signers = GENESIS, 1, 1
    faults: list[str] = []
    for event in read_linked_events(session):
        if event.sequence != expected:
            faults.append(f"audit event {expected} is missing")
            expected = event.sequence or expected
        public = keys.signers[n_signers - 1].public
        if not is_authentic_link(public, previous, event):
            faults.append(f"audit event {event.sequence} was changed, or one before it was removed")
        elif event.action == ROTATION and _is_valid_rotation(event, previous, public, keys.signers[n_signers:]):
            n_signers += 1
        elif event.action == ROTATION:
            faults.append(f"audit event {event.sequence} rotates to a key that is not the next one of the ring")
        previous, expected = str(event.digest), expected + 1
    faults += _check_waiting_events(session, keys.signers[n_signers - 1].public)
    return expected - 1, faults + _check_chain_head(session, keys, (expected - 1, previous, n_signers))


def _check_waiting_events(session: Session, public: str) -> Iterator[str]:
    """Check events without a place in the chain, of which there must be none where each is linked at once."""
    for event in read_waiting_events(session):
        if not is_linked_later(session):
            yield f"audit event {event.number} has no place in the chain"
        elif not is_authentic_event(public, event):
            yield f"audit event {event.number}, which waits to be linked, was changed"


def _check_chain_head(session: Session, keys: AuditKeys, end: tuple[int, str, int]) -> list[str]:
    """Compare number, digest and number of keys at the end of the chain with its head and with the ring."""
    heads = [
        (head.id, head.sequence, head.digest, head.n_keys) for head in session.execute(select(AuditHead)).scalars()
    ]
    faults = []
    if heads != [(1, *end)]:
        head_numbers = ", ".join(str(sequence) for _, sequence, _, _ in heads) or "nothing"
        faults.append(f"the audit chain ends at {end[0]}, its head says {head_numbers}")
    if end[2] != len(keys.signers):
        faults.append(f"the audit chain knows {end[2]} keys, the key ring has {len(keys.signers)}")
    return faults
