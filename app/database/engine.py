"""Engine, sessions and the only commit; the writer queue and the query plans of SQLite."""

import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from sqlalchemy import (
    Connection,
    Engine,
    GenerativeSelect,
    Insert,
    Pool,
    PrimaryKeyConstraint,
    UniqueConstraint,
    and_,
    bindparam,
    create_engine,
    event,
    exists,
    insert,
    or_,
    select,
    text,
)
from sqlalchemy import Table as SqlTable
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, SessionTransaction

from app.audit.chain import events
from app.audit.chain.covered_rows import MADE_ONCE, RecordedSession
from app.audit.chain.keys import AuditKeys
from app.database.tables import CLOCK, Clock, utc_now
from app.http.errors import ServiceOverloaded, ServiceUnavailable, is_lock_conflict
from app.http.limiter import BUSY_SECONDS, WRITERS, Limiter, LimitPlace
from ml.messages import from_json, to_json


class _KeptPlans(SQLiteCompiler):
    """Makes numbers of rows expressions, whose values SQLite does not ask for while it plans."""

    def limit_clause(self, select: GenerativeSelect, **kw: Any) -> str:
        """``LIMIT`` and ``OFFSET`` of a statement."""
        clause = str(super().limit_clause(select, **kw))  # type: ignore[no-untyped-call]
        return clause.replace(" LIMIT ", " LIMIT +", 1)


def keep_plans(engine: Engine) -> None:
    """Let the statements of an engine for SQLite be prepared once, however many rows they ask for."""
    engine.dialect.statement_compiler = _KeptPlans


# versions in which a write-ahead log can lose a reset and corrupt the database, and those with the fix
_WAL_BUG = ((3, 7, 0), (3, 51, 3))
_WAL_FIXED_BRANCHES = {(3, 50): 7, (3, 44): 6}


def sqlite_module() -> ModuleType:
    """The newest SQLite at hand: the wheel's where it is installed, else Python's own."""
    try:
        from pysqlite3 import dbapi2
    except ImportError:
        return sqlite3
    return dbapi2 if dbapi2.sqlite_version_info > sqlite3.sqlite_version_info else sqlite3


def wal_is_safe(version: tuple[int, ...]) -> bool:
    """Whether this SQLite is free of the WAL-reset bug (fixed in 3.51.3, 3.50.7 and 3.44.6).

    >>> wal_is_safe((3, 40, 1)), wal_is_safe((3, 50, 7)), wal_is_safe((3, 51, 3))
    (False, True, True)
    """
    low, high = _WAL_BUG
    if not low <= version < high:
        return True
    return version[2] >= _WAL_FIXED_BRANCHES.get((version[0], version[1]), 10**6)


_PLACE = "place in the queue of writers"


def sqlite_engine(url: str, *, busy_seconds: float, poolclass: type[Pool] | None = None) -> Engine:
    """Engine for SQLite of the newest library, with the journal mode and the durability that every connection has."""
    module = sqlite_module()
    options = {"timeout": busy_seconds, "check_same_thread": False}
    engine = create_engine(
        url,
        module=module,
        connect_args=options,
        poolclass=poolclass,
        json_serializer=to_json,
        json_deserializer=from_json,
    )
    mode = "WAL" if wal_is_safe(module.sqlite_version_info) else "DELETE"
    busy = f"busy_timeout={round(1000 * busy_seconds)}"

    def prepare(connection: Any, _: Any) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in (busy, f"journal_mode={mode}", "synchronous=FULL", "foreign_keys=ON", "secure_delete=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    event.listen(engine, "connect", prepare)
    keep_plans(engine)
    return engine


#: Of every PostgreSQL transaction, time-outs in milliseconds: what a connection is given does not get past a pooler.
POSTGRES_SETTINGS = {
    "statement_timeout": "5000",
    "lock_timeout": "2000",
    "idle_in_transaction_session_timeout": "10000",
    "synchronous_commit": "on",
    "timezone": "UTC",
}
#: Connections of one process: three processes, with what their job engines have, fit into a default server.
POOL_SIZE, MAX_OVERFLOW = 5, 10


def _begin_postgres(connection: Connection) -> None:
    settings = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in POSTGRES_SETTINGS.items())
    connection.exec_driver_sql(f"SELECT {settings}")


def postgres_engine(url: str) -> Engine:
    """Engine for PostgreSQL, or for a pooler in transaction mode before it."""
    # a prepared statement stays with the server's connection, which a pooler gives to somebody else
    engine = create_engine(
        url,
        pool_size=POOL_SIZE,
        max_overflow=MAX_OVERFLOW,
        pool_pre_ping=True,
        connect_args={"prepare_threshold": None},
        json_serializer=to_json,
        json_deserializer=from_json,
    )
    event.listen(engine, "begin", _begin_postgres)
    return engine


def settings_without_force(session: Session) -> list[str]:
    """Names of settings that a transaction ought to have and does not: none on SQLite."""
    if session.get_bind().dialect.name != "postgresql":
        return []
    rows = session.execute(text("SELECT name, setting FROM pg_settings WHERE name LIKE '%timeout'")).all()
    current_settings = {name: setting for name, setting in rows}
    return [
        name
        for name, value in POSTGRES_SETTINGS.items()
        if name.endswith("timeout") and current_settings[name] != value
    ]


def make_engine(url: str) -> Engine:
    """Engine for SQLite or PostgreSQL, with the settings that durability and fairness need."""
    if url.startswith("sqlite"):
        engine = sqlite_engine(url, busy_seconds=BUSY_SECONDS)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    return postgres_engine(url)


def _begin_sqlite(connection: Connection) -> None:
    """Begin a transaction; one that writes waits for its turn first."""
    options = connection.get_execution_options()
    place: LimitPlace | None = options.get(_PLACE)
    statement = options.get("sqlite_begin", "BEGIN")
    if place is not None:
        try:
            place.take()
        except ServiceOverloaded as exc:
            raise OperationalError(statement, None, sqlite_module().OperationalError("database is locked")) from exc
    connection.exec_driver_sql(statement)


@event.listens_for(RecordedSession, "after_transaction_end")
def _release_write_turn(session: Session, transaction: SessionTransaction) -> None:
    place: LimitPlace | None = session.info.get(_PLACE)
    if place is not None and transaction.parent is None:
        place.give_back()


def insert_if_absent(session: Session, table: type[Any], values: dict[str, Any]) -> bool:
    """Insert a row unless one with its unique values is there; waits for a concurrent insert of the same."""
    non_null_names = frozenset(name for name, value in values.items() if value is not None)
    insertion = _insertion_if_absent(session.get_bind().dialect.name, table.__table__, tuple(values), non_null_names)
    return session.execute(insertion, {f"new_{name}": value for name, value in values.items()}).first() is not None


@cache
def _insertion_if_absent(dialect: str, rows: SqlTable, names: tuple[str, ...], non_null: frozenset[str]) -> Insert:
    """INSERT of the parameters ``new_…`` unless a row with their unique values is there; made once for each use."""
    given = {name: bindparam(f"new_{name}", type_=rows.columns[name].type) for name in names}
    insertion: Insert
    if dialect == "postgresql":
        insertion = postgresql.insert(rows).values(given).on_conflict_do_nothing()
    else:
        # an append-only table's trigger refuses a row that meets another one before DO NOTHING is looked at
        keys = [key for key in _unique_keys(rows) if non_null.issuperset(key)]  # no two NULLs are the same
        same = or_(*(and_(*(rows.columns[name] == given[name] for name in key)) for key in keys))
        absent = select(*given.values()).where(~exists().where(same))
        insertion = sqlite.insert(rows).from_select(names, absent).on_conflict_do_nothing()
    return insertion.returning(*rows.primary_key.columns).execution_options(**{MADE_ONCE: True})


def insert_new(session: Session, table: type[Any], rows: Sequence[Mapping[str, Any]]) -> set[uuid.UUID]:
    """Insert rows that are not stored yet; waits for concurrent inserts."""
    is_postgres = session.get_bind().dialect.name == "postgresql"
    insertion = postgresql.insert(table).on_conflict_do_nothing() if is_postgres else insert(table)
    return set(session.execute(insertion.returning(table.id), rows).scalars())


def _unique_keys(table: SqlTable) -> list[list[str]]:
    keys = [key for key in table.constraints if isinstance(key, PrimaryKeyConstraint | UniqueConstraint)]
    return [[column.name for column in key.columns] for key in keys]


class Database:
    """Sessions on one engine."""

    def __init__(self, url: str, keys: AuditKeys | None = None, *, clock: Clock = utc_now) -> None:
        self.engine, self._keys, self.clock = make_engine(url), keys, clock
        self.engine.update_execution_options(**{CLOCK: clock})
        # None on PostgreSQL, which lets many write at a time
        self.writers = Limiter(WRITERS, wait_seconds=BUSY_SECONDS) if self.engine.dialect.name == "sqlite" else None

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Session whose changes are committed at the end with their audit event, or rolled back on any error."""
        place = None if self.writers is None else LimitPlace(self.writers)
        engine = self.engine.execution_options(**{"sqlite_begin": "BEGIN IMMEDIATE", _PLACE: place})
        try:
            with RecordedSession(engine, expire_on_commit=False, info={_PLACE: place}) as session:
                yield session
                events.link_described_events(session, self._keys)
                session.commit()
        finally:
            if place is not None:
                place.give_back()

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Session for reading; nothing it changes is kept."""
        with Session(self.engine, autoflush=False) as session:
            yield session

    @contextmanager
    def read_moment(self) -> Iterator[Session]:
        """Session for reading that sees the database of one moment, however long it takes."""
        with self.read() as session:
            if self.engine.dialect.name == "postgresql":
                session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
                for timeout in ("statement_timeout", "idle_in_transaction_session_timeout"):
                    session.execute(text(f"SET LOCAL {timeout} = 0"))
            yield session


def get_write_session(request: Request) -> Iterator[Session]:
    """Writing session of a request, committed before the answer goes out."""
    database: Database = request.app.state.database
    with database.write() as session:
        yield session


def get_read_session(request: Request) -> Iterator[Session]:
    """Reading session of a request."""
    database: Database = request.app.state.database
    with database.read() as session:
        yield session


#: With FastAPI's default scope a commit that fails would come after a 200 had been sent.
WriteSession = Annotated[Session, Depends(get_write_session, scope="function")]
ReadSession = Annotated[Session, Depends(get_read_session, scope="function")]


# how long somebody waits for others who have the rows, an erasure say, and how long between two tries
_PATIENCE, _PAUSE = 60.0, 0.2
_Result = TypeVar("_Result")


def write_with_retry(
    database: Database,
    work: Callable[[Session], _Result],
    busy: str,
    say: Callable[[str], object] = lambda _: None,
    *,
    seconds: float | None = None,
) -> _Result:
    """Write in an own transaction, retried while locks are held elsewhere."""
    until = time.monotonic() + (_PATIENCE if seconds is None else seconds)
    while True:
        try:
            with database.write() as session:  # of what it writes its end makes an event
                return work(session)
        except OperationalError as exc:
            if not is_lock_conflict(exc):  # a statement that takes too long is own work, not waiting
                raise
            if time.monotonic() >= until:
                raise ServiceUnavailable("the service is busy; try again shortly") from exc
        say(f"waiting: {busy}")
        time.sleep(_PAUSE)
