"""Tables of audit events, keys, erasures and idempotent answers."""

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, Integer, String, Text, Uuid
from sqlalchemy.orm import Mapped, mapped_column

from app.database.tables.base import BaseTable, UtcDateTime, time_of_row


class AuditEvent(BaseTable):
    """Audit event; ``sequence`` and ``digest`` are its place in the chain."""

    __tablename__ = "audit_events"

    sequence: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    actor: Mapped[str] = mapped_column(String(100))
    action: Mapped[str] = mapped_column(String(50))
    object: Mapped[str] = mapped_column(String(100), index=True)
    details: Mapped[dict[str, Any]] = mapped_column(JSON)
    reason: Mapped[str | None] = mapped_column(Text)
    request_id: Mapped[str | None] = mapped_column(String(100))
    # digests of the rows that were written (covered_rows.Leaves), of which ``digest`` covers the root. Of a
    # batch they are many: read only where they are asked for
    row_digests: Mapped[dict[str, dict[str, str | None]]] = mapped_column(JSON, deferred=True)
    # of the digest before and of this event
    digest: Mapped[str] = mapped_column(String(64))
    # Ed25519 of «sequence:digest»
    signature: Mapped[str] = mapped_column(String(128), deferred=True)


class AuditHead(BaseTable):
    """End of the chain, one row, locked by who writes an event until the commit."""

    __tablename__ = "audit_head"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    sequence: Mapped[int] = mapped_column(Integer)
    digest: Mapped[str] = mapped_column(String(64))
    # of the ring; a process that knows fewer, or more, writes nothing
    n_keys: Mapped[int] = mapped_column(Integer, server_default="1")


class Installation(BaseTable):
    """Keys of coins, partitions and audit chain: one row for each, in order."""

    __tablename__ = "installation"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    # the key cannot be computed from it
    key_check: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=time_of_row)


class CaseChange(BaseTable):
    """Which cases an event changed what is evaluated of: a prediction, a plan, a read's end, a label, an erasure."""

    # Events commit in the order of their numbers, so whoever reads all cases after the number of the newest event
    # finds here, gapless, what has changed since: in events with a greater number.

    __tablename__ = "case_changes"

    sequence: Mapped[int] = mapped_column(ForeignKey("audit_events.sequence"), primary_key=True)
    # no foreign key: to check it would wait for who has locked the case, with the head of the chain in hand
    case_id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True, index=True)


class IdempotencyRecord(BaseTable):
    """The answer that a key got, kept in the transaction that made it true."""

    __tablename__ = "idempotency_records"

    account_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("accounts.id"), primary_key=True)
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    request_sha256: Mapped[str] = mapped_column(String(64))
    status: Mapped[int] = mapped_column(Integer)
    body: Mapped[Any] = mapped_column(JSON)
    # old answers are swept
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=time_of_row, index=True)
    # which case or specimen the body shows, so that the answer goes when the patient is erased
    case_id: Mapped[uuid.UUID | None] = mapped_column(index=True)


class Erasure(BaseTable):
    """Erased patient: the cases, specimens and import rows that became tombstones, without identity."""

    __tablename__ = "erasures"

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=time_of_row)
    # and specimens: an id is of one table only
    cases: Mapped[list[str]] = mapped_column(JSON)
    # «job/row»
    import_rows: Mapped[list[str]] = mapped_column(JSON)
    # when the files of the database had forgotten the patient too
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
