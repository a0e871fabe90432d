"""What rows left behind in the files of the database when they were deleted or changed, and how it is overwritten.

A deleted row stays readable in its file until something else takes its place. SQLite overwrites it at once
(``secure_delete``), but pages that were split keep copies, and the write-ahead log its own; PostgreSQL only marks it.
"""

from sqlalchemy import Connection, Engine, NullPool, create_engine, make_url, text
from sqlalchemy.exc import OperationalError

from app.database.engine import sqlite_engine
from app.database.tables import Case, CaseTwin, IdempotencyRecord, ImportRow, NetworkOutput, ReadRequest, Remark

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


def overwrite(url: str) -> str | None:
    """Write the tables anew, so that the files contain nothing but the rows that there are; no transaction may be open.

    Args:
        url: SQLAlchemy URL, on PostgreSQL of the role that owns the tables.

    Returns:
        None, or why it could not be done now.
    """
    if make_url(url).get_backend_name() == "sqlite":
        return _sqlite(url)
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        return _postgres(connection)


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


def _postgres(connection: Connection) -> str | None:
    if not connection.execute(text(_OWNED), {"tables": list(ERASED_FROM)}).scalar_one():
        return f"the role {connection.engine.url.username} does not own the tables; set DATABASE_OWNER_URL"
    number = connection.execute(text("SELECT CAST(CAST(pg_current_xact_id() AS xid) AS text)")).scalar_one()
    if connection.execute(text(_OLDER), {"number": number}).scalar_one():
        return "a transaction that began earlier may still read what was erased"
    quote = connection.dialect.identifier_preparer.quote
    try:
        connection.execute(text(f"SET lock_timeout = {_LOCK_MS}"))
        for table in ERASED_FROM:
            connection.execute(text(f"VACUUM (FULL, ANALYZE) {quote(table)}"))
    except OperationalError as exc:
        return f"the database is in use ({str(exc.orig).splitlines()[0]})"
    return None
