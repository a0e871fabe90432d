"""Base of all tables: metadata with named constraints, identifiers and UTC times."""

import os
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

from sqlalchemy import Connection, DateTime, Dialect, Engine, LargeBinary, MetaData, RowMapping, String, Text, Uuid
from sqlalchemy.engine.interfaces import ExecutionContext
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.types import TypeDecorator
from uuid_utils import compat

from ml.messages import from_text, to_text

#: A row: values by the names of its columns.
Row: TypeAlias = Mapping[str, Any] | RowMapping


_NAMES = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


def new_id() -> uuid.UUID:
    """New identifier (UUIDv7), which sorts by the time it was made."""
    return compat.uuid7()


#: Gives the time, in UTC.
Clock: TypeAlias = Callable[[], datetime]
#: Execution option of an engine: the clock of its database.
CLOCK = "clock"


def utc_now() -> datetime:
    """Return the time by the machine's clock, in UTC."""
    return datetime.now(UTC)


def time_of(session: Session) -> datetime:
    """Return the time by the clock of a session's database, in UTC."""
    return _time_at(session.get_bind())


def time_of_row(insertion: ExecutionContext) -> datetime:
    """Return the time at which a row is inserted: the default of columns."""
    return _time_at(insertion.engine)


def _time_at(bind: Engine | Connection) -> datetime:
    clock: Clock = bind.get_execution_options().get(CLOCK, utc_now)
    return clock()


class UtcDateTime(TypeDecorator[datetime]):
    """Time in UTC that comes back with its zone, on SQLite too."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Store UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("times must carry a zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give the zone back."""
        return None if value is None else value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class MessageLine(TypeDecorator[str]):
    """Text of a limited length that may be a message, which comes back with its code and values."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Store code and values."""
        return None if value is None else to_text(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        """Give the message back."""
        return None if value is None else from_text(value)


class MessageText(MessageLine):
    """The same of any length."""

    impl = Text
    cache_ok = True


class BaseTable(DeclarativeBase):
    """Base of every table."""

    metadata = MetaData(naming_convention=_NAMES)


class IdentifiedRow:
    """A row with an identifier and the time it was made."""

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True, default=new_id)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=time_of_row)


def new_digest_key() -> bytes:
    """A random key of 32 bytes."""
    return os.urandom(32)


class ForgettableRow:
    """Row about a patient; its digests use a key that is deleted with the row."""

    digest_key: Mapped[bytes] = mapped_column(LargeBinary(32), default=new_digest_key)
