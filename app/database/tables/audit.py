"""Tables of audit events, keys, erasures and idempotent answers."""

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, Integer, Sequence, String, Text, Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from app.database.tables.base import BaseTable, UtcDateTime, time_of_row

#: A counter of events: a number of 64 bits, which on SQLite is the row's own.
_Stamp = BigInteger().with_variant(Integer, "sqlite")
_WAITING = text("sequence IS NULL")
#: Stamps on PostgreSQL; on SQLite, where one writes at a time, a stamp is the number in the chain.
STAMPS = Sequence("audit_events_stamp_seq")


class AuditEvent(BaseTable):
    """Audit event; ``sequence`` and ``digest`` are its place in the chain."""

    # On SQLite an event gets its place as it is written. On PostgreSQL many writers write at once, and an event waits
    # for the sealer (``app.audit.linking``); until then it has none. ``stamp`` is drawn when the event is written,
    # after the rows that it reports, so in its order everything comes after what it rests on.

    __tablename__ = "audit_events"
    # what waits for the sealer: few, and asked for several times per second
    __table_args__ = (Index("ix_audit_events_waiting", "stamp", sqlite_where=_WAITING, postgresql_where=_WAITING),)

    stamp: Mapped[int] = mapped_column(_Stamp, STAMPS, primary_key=True, autoincrement=False)
    sequence: Mapped[int | None] = mapped_column(Integer, unique=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    actor: Mapped[str] = mapped_column(String(100))
    action: Mapped[str] = mapped_column(String(50))
    object: Mapped[str] = mapped_column(String(100), index=True)
    details: Mapped[dict[str, Any]] = mapped_column(JSON)
    reason: Mapped[str | None] = mapped_column(Text)
    request_id: Mapped[str | None] = mapped_column(String(100))
    digest: Mapped[str | None] = mapped_column(String(64))
    # digests of the rows that were written (row_digests.Leaves), of which ``digest`` covers the root. Of a
    # batch they are many: read only where they are asked for
    row_digests: Mapped[dict[str, dict[str, str | None]]] = mapped_column(JSON, deferred=True)
    # of the event by itself, which ``digest``, its link, covers; Ed25519 of «event event_sha256», of «sequence:digest»
    event_sha256: Mapped[str] = mapped_column(String(64), deferred=True)
    signature: Mapped[str] = mapped_column(String(128), deferred=True)
    link_signature: Mapped[str | None] = mapped_column(String(128), deferred=True)

    @property
    def number(self) -> str:
        """What sentences call the event: its number in the chain, else its stamp."""
        return f"with stamp {self.stamp}" if self.sequence is None else str(self.sequence)


class AuditHead(BaseTable):
    """Last link of the chain, one row, locked by each linking process."""

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

    # An event is linked only after its commit, or in it; so whoever has read all cases after they read the number of
    # the last link finds here, gapless, what has changed since: in events with a greater number, and in those without
    # one.

    __tablename__ = "case_changes"

    stamp: Mapped[int] = mapped_column(_Stamp, ForeignKey("audit_events.stamp"), primary_key=True)
    case_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("cases.id"), primary_key=True)


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
    # which case the body shows, so that the answer goes when the patient is erased
    case_id: Mapped[uuid.UUID | None] = mapped_column(index=True)


class Erasure(BaseTable):
    """Erased patient: the cases and import rows that became tombstones, without identity."""

    __tablename__ = "erasures"

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=time_of_row)
    cases: Mapped[list[str]] = mapped_column(JSON)
    # «job/row»
    import_rows: Mapped[list[str]] = mapped_column(JSON)
    # when the files of the database had forgotten the patient too
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
