"""Append-only, signed audit events, written in the transaction of what they report, and the chain that links them.

An event stands for itself: its digest is SHA-256 of its canonical JSON, in which the root over the digests of the rows
that it wrote stands for them, and the digest is signed (Ed25519). It depends on no other event. The linker gives it its
number and its link, SHA-256(previous link ‖ digest), and signs that, so that an event can be linked later than written.
So a changed, removed or reordered event breaks the chain, nobody without the key can write it anew, and a row that is
not as an event wrote it is found.
"""

import hashlib
import hmac
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from asgi_correlation_id import correlation_id
from sqlalchemy import func, insert, inspect, null, select
from sqlalchemy.orm import Session

from app.platform import signing
from app.platform.errors import Unavailable
from app.platform.keys import AuditKeys, DerivedKey, Signer
from app.platform.row_digests import Json, Leaves, canonical, cases_digest, merkle_root
from app.platform.written_rows import note_cases, take_leaves
from app.tables import AuditEvent, AuditHead, CaseChange, now

GENESIS = "0" * 64
#: In the digests of an event: the digest of the cases that it changed.
CASE_CHANGES = "case_changes"
#: In place of its number, which an event does not know.
OWN = ""
#: Action of an event after which the next key of the ring signs.
ROTATION = "key.rotate"
#: Action of an event that says that the chain was written anew.
REWRITE = "chain.rewrite"
_CHUNK = 500


class KeyRotated(Unavailable):
    """Another process has rotated the key; this one must be started again with the new ring."""


def document_of(event: AuditEvent) -> dict[str, Json]:
    """What the digest of an event covers, without its rows."""
    return {
        "created_at": event.created_at.isoformat(),
        "actor": event.actor,
        "action": event.action,
        "object": event.object,
        "details": event.details,
        "reason": event.reason,
        "request_id": event.request_id,
    }


def digest_of(event: AuditEvent) -> str:
    """Digest of an event: of what it says and of the rows that it wrote, and of nothing else."""
    root = None if event.row_digests is None else merkle_root(event.row_digests)
    return hashlib.sha256(canonical(document_of(event) | {"rows": root})).hexdigest()


def sign_event(event: AuditEvent, signer: Signer) -> None:
    """Give an event its digest and its signature."""
    event.event_sha256 = digest_of(event)
    event.signature = signer.sign(event_text(event))


def link(event: AuditEvent, sequence: int, previous: str, signer: Signer) -> None:
    """Link an event to the chain: the one place that knows what comes before it.

    Args:
        event: with its digest.
        sequence: number of the event.
        previous: link of the event before.
        signer: whose key is in force.
    """
    event.sequence = sequence
    event.digest = hashlib.sha256(f"{previous}{event.event_sha256}".encode()).hexdigest()
    event.link_signature = signer.sign(head_text(event))


def keyed_digest(links: DerivedKey, previous: str, event: AuditEvent) -> str:
    """Link of an event of 0.1.0, which had no digest of its own."""
    return links.digest(previous.encode() + canonical(document_of(event) | {"sequence": event.sequence})).hex()


def is_authentic(public: str, previous: str, event: AuditEvent) -> bool:
    """Whether an event is as it was written and linked after the previous one, while this public key was in force."""
    return (
        event.event_sha256 == digest_of(event)
        and signing.is_signed(public, event_text(event), event.signature)
        and event.digest == hashlib.sha256(f"{previous}{event.event_sha256}".encode()).hexdigest()
        and signing.is_signed(public, head_text(event), event.link_signature)
    )


def event_text(event: AuditEvent) -> str:
    """What is signed of an event."""
    return f"event {event.event_sha256}"


def head_text(event: AuditEvent) -> str:
    """The head that an event was: what is signed of its link, printed and kept outside."""
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
        KeyRotated: another process has rotated the key; nothing is written.
    """
    head = session.execute(select(AuditHead).where(AuditHead.id == 1).with_for_update()).scalar_one()
    if head.n_keys != len(keys.signers):
        raise KeyRotated("the key was rotated since this process started; start it again with the current key ring")
    session.flush()
    rows = take_leaves(session, keys.rows) | (leaves or {})
    if cases:
        rows[CASE_CHANGES] = {OWN: cases_digest(cases)}
    event = AuditEvent(
        created_at=now(),
        actor=actor,
        action=action,
        object=str(object_id),
        details=details or {},
        reason=reason,
        request_id=correlation_id.get(),
        row_digests=rows,
    )
    sign_event(event, keys.signers[-1])
    link(event, head.sequence + 1, head.digest, keys.signers[-1])
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
    for event in events(session, limit=limit):
        n_events += 1
        n_confirmed += is_authentic(keys.signers[0].public, previous, event) or was_authentic(keys, previous, event)
        previous = event.digest
    return n_events, n_confirmed


def was_authentic(keys: AuditKeys, previous: str, event: AuditEvent) -> bool:
    """Whether an event is as a version before digests of events wrote it after the previous one.

    0.1.0 linked by a secret key; early versions of 0.2.0 had one digest and one signature for event and link.
    """
    if event.row_digests is None:
        return hmac.compare_digest(event.digest, keyed_digest(keys.links, previous, event))
    document = document_of(event) | {"sequence": event.sequence, "rows": merkle_root(event.row_digests)}
    right = event.digest == hashlib.sha256(previous.encode() + canonical(document)).hexdigest()
    return right and any(signing.is_signed(key.public, head_text(event), event.signature) for key in keys.signers)


def events(session: Session, after: int = 0, limit: int | None = None) -> Iterator[AuditEvent]:
    """Every event with all its columns, in order; those that an older schema lacks are null.

    Args:
        session: for reading.
        after: number of the event before the first one wanted.
        limit: at most so many.
    """
    present = {column["name"] for column in inspect(session.connection()).get_columns(AuditEvent.__tablename__)}
    columns = AuditEvent.__table__.columns
    wanted = [column if column.name in present else null().label(column.name) for column in columns]
    statement = select(*wanted).where(AuditEvent.sequence > after).order_by(AuditEvent.sequence).limit(limit)
    for row in session.execute(statement.execution_options(yield_per=_CHUNK)).mappings():
        yield AuditEvent(**row)


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
    previous, expected, faults, n_signers = GENESIS, 1, [], 1
    for event in events(session):
        if event.sequence != expected:
            faults.append(f"audit event {expected} is missing")
            expected = event.sequence
        public = keys.signers[n_signers - 1].public
        if not is_authentic(public, previous, event):
            faults.append(f"audit event {event.sequence} was changed, or one before it was removed")
        elif event.action == ROTATION and _follows(event, previous, public, keys.signers[n_signers:]):
            n_signers += 1
        elif event.action == ROTATION:
            faults.append(f"audit event {event.sequence} rotates to a key that is not the next one of the ring")
        elif event.action == REWRITE:
            faults += [f"before the chain was written anew: {fault}" for fault in event.details["faults"]]
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
