"""What rows left behind in the files of the database when they were deleted or changed, and how it is overwritten.

A deleted row stays readable in its file until something else takes its place. SQLite overwrites it at once
(``secure_delete``), but pages that were split keep copies, and the write-ahead log its own; PostgreSQL only marks it.
"""

from sqlalchemy import Connection, Engine, NullPool, create_engine, inspect, make_url, text
from sqlalchemy.exc import OperationalError

from app.platform.database import sqlite_engine
from app.tables import (
    AuditEvent,
    Case,
    CaseTwin,
    IdempotencyRecord,
    ImportRow,
    Job,
    Label,
    NetworkOutput,
    Read,
    ReadRequest,
    Remark,
)

#: Tables whose rows are deleted or changed when a patient is erased.
ERASED_FROM = tuple(
    table.__tablename__ for table in (Case, CaseTwin, IdempotencyRecord, ImportRow, NetworkOutput, ReadRequest, Remark)
)
_OWNED = (
    "SELECT count(*) = 0 FROM pg_class WHERE relname = ANY(:tables) AND relnamespace = current_schema()::regnamespace "
    "AND NOT pg_has_role(current_user, relowner, 'USAGE')"
)
# transactions that may still read what was deleted before the number was taken: it would be copied
_OLDER = (
    "SELECT count(*) FROM (SELECT backend_xmin AS oldest FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid() UNION ALL "
    "SELECT transaction FROM pg_prepared_xacts WHERE database = current_database() UNION ALL "
    "SELECT xmin FROM pg_replication_slots) AS readers WHERE age(oldest) > age(CAST(:number AS xid))"
)
_LOCK_MS = 2000
_SQLITE_SECONDS = 1.0


def overwrite(url: str, tables: tuple[str, ...] = ERASED_FROM, *, statistics: bool = False) -> str | None:
    """Write the tables anew, so that the files contain nothing but the rows that there are; no transaction may be open.

    Args:
        url: SQLAlchemy URL, on PostgreSQL of the role that owns the tables.
        tables: which; SQLite writes all of them.
        statistics: whether to write the planner's statistics anew too; whoever owns the tables and not the database
            gets a warning of the server for that, and they stay.

    Returns:
        None, or why it could not be done now.
    """
    if make_url(url).get_backend_name() == "sqlite":
        return _sqlite(url)
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        return _postgres(connection, tables, ["pg_catalog.pg_statistic"] if statistics else [])


def text_is_to_move(engine: Engine) -> bool:
    """Whether free text still stands in labels and reads, of an older schema."""
    schema = inspect(engine)
    return schema.has_table(Label.__tablename__) and not schema.has_table(Remark.__tablename__)


def overwrite_moved(url: str) -> str | None:
    """Write the tables anew from which free text has moved, or whose rows have forgotten something.

    Args:
        url: SQLAlchemy URL, on PostgreSQL of the role that owns the tables.

    Returns:
        None, or why it could not be done.
    """
    moved = (table.__tablename__ for table in (AuditEvent, Job, Label, Read))
    return overwrite(url, (*ERASED_FROM, *moved), statistics=True)


def _sqlite(url: str) -> str | None:
    engine: Engine = sqlite_engine(url, busy_seconds=_SQLITE_SECONDS, poolclass=NullPool)
    with engine.connect() as connection:
        try:
            for statement in ("PRAGMA wal_checkpoint(TRUNCATE)", "VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"):
                row = connection.exec_driver_sql(statement)
                if statement != "VACUUM" and row.scalar_one():
                    return "somebody reads the database, so that its write-ahead log stays"
        except OperationalError as exc:
            return f"the database is in use ({exc.orig})"
    return None


def _postgres(connection: Connection, tables: tuple[str, ...], catalogues: list[str]) -> str | None:
    if not connection.execute(text(_OWNED), {"tables": list(tables)}).scalar_one():
        return f"the role {connection.engine.url.username} does not own the tables; set DATABASE_OWNER_URL"
    number = connection.execute(text("SELECT CAST(CAST(pg_current_xact_id() AS xid) AS text)")).scalar_one()
    if connection.execute(text(_OLDER), {"number": number}).scalar_one():
        return "a transaction that began earlier may still read what was erased"
    quote = connection.dialect.identifier_preparer.quote
    try:
        connection.execute(text(f"SET lock_timeout = {_LOCK_MS}"))
        for table in tables:
            connection.execute(text(f"VACUUM (FULL, ANALYZE) {quote(table)}"))
        for catalogue in catalogues:
            connection.execute(text(f"VACUUM (FULL) {catalogue}"))
    except OperationalError as exc:
        return f"the database is in use ({str(exc.orig).splitlines()[0]})"
    return None
