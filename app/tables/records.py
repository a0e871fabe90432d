"""Audit events, hash-chained, the key they were made with, who was erased, and remembered answers to requests."""

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, Integer, String, Text, Uuid
from sqlalchemy.orm import Mapped, mapped_column

from app.tables.base import Table, UtcDateTime, now


class AuditEvent(Table):
    """Who did what to which object; ``sequence`` and ``digest`` are its place in the chain."""

    __tablename__ = "audit_events"

    sequence: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    actor: Mapped[str] = mapped_column(String(100))
    action: Mapped[str] = mapped_column(String(50))
    object: Mapped[str] = mapped_column(String(100), index=True)
    details: Mapped[dict[str, Any]] = mapped_column(JSON)
    reason: Mapped[str | None] = mapped_column(Text)
    request_id: Mapped[str | None] = mapped_column(String(100))
    digest: Mapped[str] = mapped_column(String(64))
    # digests of the rows that were written (app.platform.row_digests.Leaves), of which ``digest`` covers the root;
    # None in events from before there were any. Of a batch they are many: read only where they are asked for
    row_digests: Mapped[dict[str, dict[str, str | None]] | None] = mapped_column(JSON(none_as_null=True), deferred=True)
    # of the event by itself, which ``digest``, its link, covers; Ed25519 of «event event_sha256», of «sequence:digest»
    event_sha256: Mapped[str | None] = mapped_column(String(64), deferred=True)
    signature: Mapped[str | None] = mapped_column(String(128), deferred=True)
    link_signature: Mapped[str | None] = mapped_column(String(128), deferred=True)


class AuditHead(Table):
    """The chain's last link, one row, locked by every writer of an event."""

    __tablename__ = "audit_head"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    sequence: Mapped[int] = mapped_column(Integer)
    digest: Mapped[str] = mapped_column(String(64))
    # of the ring; a process that knows fewer, or more, writes nothing
    n_keys: Mapped[int] = mapped_column(Integer, server_default="1")


class Installation(Table):
    """By which keys the coins, the partitions and the audit chain were made: a row for each, in order."""

    __tablename__ = "installation"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    # the key cannot be computed from it
    key_check: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)


class CaseChange(Table):
    """Which cases an event changed what is evaluated of: a prediction, a plan, a read's end, a label, an erasure.

    Events are numbered in the order of their commits, because each writer keeps the chain's head locked until then; so
    whoever has read all cases at one event finds here, gapless, what has changed since.
    """

    __tablename__ = "case_changes"

    sequence: Mapped[int] = mapped_column(ForeignKey("audit_events.sequence"), primary_key=True)
    case_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("cases.id"), primary_key=True)


class IdempotencyRecord(Table):
    """The answer that a key got, kept in the transaction that made it true."""

    __tablename__ = "idempotency_records"

    account_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("accounts.id"), primary_key=True)
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    request_sha256: Mapped[str] = mapped_column(String(64))
    status: Mapped[int] = mapped_column(Integer)
    body: Mapped[Any] = mapped_column(JSON)
    # old answers are swept
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now, index=True)
    # which case the body shows, so that the answer goes when the patient is erased
    case_id: Mapped[uuid.UUID | None] = mapped_column(index=True)


class Erasure(Table):
    """A patient who was erased: which cases and rows of imports became tombstones; never of whom they were."""

    __tablename__ = "erasures"

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    cases: Mapped[list[str]] = mapped_column(JSON)
    # «job/row»
    import_rows: Mapped[list[str]] = mapped_column(JSON)
    # when the files of the database had forgotten the patient too
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
