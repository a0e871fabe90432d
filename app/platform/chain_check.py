"""Checking the audit chain: each event by itself, its place, the keys in force, and what waits for a place."""

from collections.abc import Iterator, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.database.tables import AuditEvent, AuditHead
from app.platform import audit_chain, signing
from app.platform.keys import AuditKeys, Signer


def _follows(event: AuditEvent, previous: str, before: str, keys: Sequence[Signer]) -> bool:
    """Whether an event of a rotation names the next key of the ring, and bears its signature."""
    text = audit_chain.rotation_text(before, f"{(event.sequence or 0) - 1}:{previous}", event.details["public_key"])
    known = bool(keys) and keys[0].public == event.details["public_key"]
    return known and signing.is_signed(keys[0].public, text, event.details["signature"])


def verify(session: Session, keys: AuditKeys) -> tuple[int, list[str]]:
    """Check the chain and what waits; each event must be signed by the key that was in force when it was written.

    Returns:
        Number of events in the chain, and a sentence for each fault found.
    """
    previous, expected, n_signers = audit_chain.GENESIS, 1, 1
    faults: list[str] = []
    for event in audit_chain.events(session):
        if event.sequence != expected:
            faults.append(f"audit event {expected} is missing")
            expected = event.sequence or expected
        public = keys.signers[n_signers - 1].public
        if not audit_chain.is_authentic(public, previous, event):
            faults.append(f"audit event {event.sequence} was changed, or one before it was removed")
        elif event.action == audit_chain.ROTATION and _follows(event, previous, public, keys.signers[n_signers:]):
            n_signers += 1
        elif event.action == audit_chain.ROTATION:
            faults.append(f"audit event {event.sequence} rotates to a key that is not the next one of the ring")
        previous, expected = str(event.digest), expected + 1
    faults += _wrong_waiting(session, keys.signers[n_signers - 1].public)
    return expected - 1, faults + _wrong_head(session, keys, (expected - 1, previous, n_signers))


def _wrong_waiting(session: Session, public: str) -> Iterator[str]:
    """Check events without a place in the chain, of which there must be none where each is linked at once."""
    for event in audit_chain.waiting_events(session):
        if not audit_chain.is_linked_later(session):
            yield f"audit event {event.number} has no place in the chain"
        elif not audit_chain.is_whole(public, event):
            yield f"audit event {event.number}, which waits to be linked, was changed"


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
