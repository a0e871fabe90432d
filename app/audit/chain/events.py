"""Audit events: described by what writes, linked and signed at the end of its transaction.

The digest of an event is SHA-256 of the digest before it and of the event's canonical JSON, with its number and the
root over the digests of the rows that its transaction wrote; number and digest are signed (Ed25519).

A transaction locks the head of the chain as its last statement but the event itself, and keeps it until the commit:
events commit in the order of their numbers, without a deadlock, and a reader that sees event N sees all before it.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from asgi_correlation_id import correlation_id
from sqlalchemy import ColumnElement, bindparam, insert, select, update
from sqlalchemy import event as listening
from sqlalchemy.orm import Session, SessionTransaction

from app.audit.chain import covered_rows
from app.audit.chain.keys import AuditKeys
from app.audit.chain.verify_proof import BASELINE, CASE_CHANGES, GENESIS, ROTATION, event_digest, merkle_root
from app.database.tables import AuditEvent, AuditHead, CaseChange, time_of
from app.database.tables.base import Row
from app.http.errors import ServiceUnavailable

_DESCRIBED = "events that this session has described"
_CHUNK = 200


class KeyRotated(ServiceUnavailable):
    """Another process has rotated the key; this one must be started again with the new ring."""


@dataclass(frozen=True)
class _DescribedEvent:
    """What a transaction does, before it has a place in the chain."""

    # of the ring whose newest key signs
    keys: AuditKeys
    # columns of the event but for number, rows, digest and signature
    columns: Row
    # whose evaluation it changes
    cases: Sequence[uuid.UUID]
    rows: covered_rows.Leaves
    # with which it goes when that is rolled back
    transaction: SessionTransaction


@dataclass(frozen=True)
class ChainHead:
    """End of the chain: the newest event, and how many keys the installation has."""

    sequence: int
    digest: str
    n_keys: int


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
    leaves: covered_rows.Leaves | None = None,
) -> None:
    """Describe what the transaction does; ``Database.write`` links it to the chain before the commit."""
    columns = {
        "created_at": time_of(session),
        "actor": actor,
        "action": action,
        "object": str(object_id),
        "details": details or {},
        "reason": reason,
        "request_id": correlation_id.get(),
    }
    rows = dict(leaves or {})
    if cases:
        rows[CASE_CHANGES] = {"": covered_rows.cases_digest(cases)}
    transaction = session.get_nested_transaction() or session.get_transaction() or session.begin()
    session.info.setdefault(_DESCRIBED, []).append(_DescribedEvent(keys, columns, cases, rows, transaction))


def described_cases(session: Session) -> set[uuid.UUID]:
    """Cases that the events of this transaction name."""
    return {case_id for event in session.info.get(_DESCRIBED, ()) for case_id in event.cases}


@listening.listens_for(covered_rows.RecordedSession, "after_soft_rollback")
def _forget_rolled_back(session: Session, rolled_back: SessionTransaction) -> None:
    described: list[_DescribedEvent] = session.info.pop(_DESCRIBED, [])
    session.info[_DESCRIBED] = [event for event in described if not _is_within(event.transaction, rolled_back)]


def _is_within(inner: SessionTransaction | None, outer: SessionTransaction) -> bool:
    while inner is not None and inner is not outer:
        inner = inner.parent
    return inner is outer


def link_described_events(session: Session, keys: AuditKeys | None) -> None:
    """Link the events of a transaction, the last one with the digests of all rows that it wrote."""
    # Rows that nothing described get an event by ``keys``, which are those of the database.
    session.flush()
    described: list[_DescribedEvent] = session.info.get(_DESCRIBED, [])
    keys = described[0].keys if described else keys
    leaves = {} if keys is None else covered_rows.take_leaves(session, keys.rows)
    if keys is None or not (leaves or described):
        return
    if not described:
        counts = {table: len(rows) for table, rows in sorted(leaves.items())}
        record_event(session, keys, actor="service", action="rows.write", object_id=min(leaves), details=counts)
    described = session.info.pop(_DESCRIBED)
    described[-1] = replace(described[-1], rows=leaves | described[-1].rows)
    roots = [merkle_root(event.rows) for event in described]
    head = lock_head(session)
    if head.n_keys != len(keys.signers):
        raise KeyRotated("the key was rotated after this process started; restart it with the current key ring")
    for event, root in zip(described, roots, strict=True):
        head = _link_event(session, head, event, root)
    values = {"sequence": head.sequence, "digest": head.digest, "n_keys": head.n_keys}
    session.connection().execute(_MOVE_HEAD, values)


_LOCKED_HEAD = select(AuditHead.sequence, AuditHead.digest, AuditHead.n_keys).where(AuditHead.id == 1).with_for_update()
_MOVE_HEAD = (
    update(AuditHead)
    .where(AuditHead.id == 1)
    .values({name: bindparam(name) for name in ("sequence", "digest", "n_keys")})
)
_LINK, _NAME_CASES = insert(AuditEvent), insert(CaseChange)


def lock_head(session: Session) -> ChainHead:
    """Lock the end of the chain until the commit; nobody else links meanwhile."""
    return ChainHead(*session.execute(_LOCKED_HEAD).one())


def _link_event(session: Session, head: ChainHead, event: _DescribedEvent, root: str) -> ChainHead:
    """Store an event after the locked end of the chain; gives the end after it."""
    columns = {**event.columns, "sequence": head.sequence + 1}
    document = columns | {"created_at": columns["created_at"].isoformat()}
    n_keys = head.n_keys + (columns["action"] == ROTATION)
    after = ChainHead(head.sequence + 1, event_digest(head.digest, document, root), n_keys)
    signature = event.keys.sign(f"{after.sequence}:{after.digest}")
    stored = columns | {"row_digests": event.rows, "digest": after.digest, "signature": signature}
    session.connection().execute(_LINK, stored)
    if event.cases:
        changes = [{"sequence": after.sequence, "case_id": case_id} for case_id in {*event.cases}]
        session.connection().execute(_NAME_CASES, changes)
    return after


def write_baseline(session: Session, keys: AuditKeys) -> None:
    """Vouch for every covered row of a database without events."""
    leaves: covered_rows.Leaves = {}
    for table in covered_rows.covered_tables():
        for row in session.connection().execute(select(table)).mappings():
            if covered_rows.COVERED[table.name].covers(row):
                leaves.setdefault(table.name, {})[covered_rows.row_key(table, row)] = covered_rows.row_digest(
                    keys.rows, table, row
                )
    record_event(session, keys, actor="service", action=BASELINE, object_id="rows", leaves=leaves)


def read_head(session: Session) -> tuple[int, str]:
    """Number and digest of the newest event; 0 and ``GENESIS`` before the first."""
    head = session.execute(select(AuditHead)).scalar_one()
    return head.sequence, head.digest


def count_keys(session: Session) -> int:
    """Number of keys of the installation: one, plus one for each rotation."""
    return session.execute(select(AuditHead.n_keys)).scalar_one()


def read_head_text(session: Session) -> str:
    """Read the head from the events, not from the table of the head."""
    newest = select(AuditEvent.sequence, AuditEvent.digest).order_by(AuditEvent.sequence.desc()).limit(1)
    row = session.execute(newest).one_or_none()
    return f"0:{GENESIS}" if row is None else f"{row[0]}:{row[1]}"


def contains_head(session: Session, sequence: int, digest: str) -> bool:
    """Whether the chain contains this event; False after an older backup was restored."""
    if sequence == 0:
        return digest == GENESIS
    statement = select(AuditEvent.digest).where(AuditEvent.sequence == sequence)
    return session.execute(statement).scalar_one_or_none() == digest


def last_change(session: Session) -> str:
    """Digest of the newest event that changed what is evaluated of any case; ``GENESIS`` before the first."""
    newest = select(AuditEvent.digest).join(CaseChange, CaseChange.sequence == AuditEvent.sequence)
    ordered = newest.order_by(CaseChange.sequence.desc()).limit(1)
    return session.execute(ordered).scalar_one_or_none() or GENESIS


def changed_cases(session: Session, after: int) -> list[uuid.UUID]:
    """Cases that events later than one have changed."""
    changed = select(CaseChange.case_id).where(CaseChange.sequence > after).distinct()
    return list(session.execute(changed).scalars())


def read_events(session: Session, *criteria: ColumnElement[bool]) -> Iterator[Row]:
    """Every event with all its columns, in order; number and digest alone of one that cannot be read."""
    numbered = select(AuditEvent.sequence, AuditEvent.digest).where(*criteria)
    numbered = numbered.order_by(AuditEvent.sequence).limit(_CHUNK)
    rows = session.execute(numbered).all()
    while rows:
        try:
            yield from _read_range(session, rows[0][0], rows[-1][0], criteria)
        except _UNREADABLE:
            for sequence, digest in rows:
                try:
                    yield from _read_range(session, sequence, sequence, criteria)
                except _UNREADABLE:
                    yield {"sequence": sequence, "digest": digest}
        rows = session.execute(numbered.where(AuditEvent.sequence > rows[-1][0])).all()


#: What a value raises that is not of its column's type, as SQLite can store it.
_UNREADABLE = (AttributeError, LookupError, TypeError, ValueError)


def _read_range(session: Session, first: int, last: int, criteria: Sequence[ColumnElement[bool]]) -> Sequence[Row]:
    statement = select(*AuditEvent.__table__.columns).where(AuditEvent.sequence.between(first, last), *criteria)
    return session.execute(statement.order_by(AuditEvent.sequence)).mappings().all()
