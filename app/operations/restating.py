"""What a migration makes of rows that events vouch for: an event with their new digests, signed with the key.

A row that was not as its event said before the migration is not vouched for after it: it stays named.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import inspect
from sqlalchemy.orm import Session

from app.operations.proven import expected_rows
from app.platform import baseline
from app.platform.database import Database
from app.platform.keys import AuditKeys
from app.platform.migrate import revisions
from app.tables import AuditEvent

ACTION = "rows.migrate"
_Digests = dict[tuple[str, str], str]


@contextmanager
def restated(owner: Database, database: Database, keys: AuditKeys) -> Iterator[None]:
    """Migrate in this block; covered rows that a migration changes, adds or removes get an event.

    Args:
        owner: the database by the role that owns its tables.
        database: the same by the service's role, which writes the event.
        keys: of the audit.
    """
    before, wanted = revisions(owner.engine)
    known = None
    if before != wanted:
        with owner.read_moment() as session:
            known = _known(session, keys)
    yield
    if known is None:
        return
    stored, wrong = known
    with database.write() as session:
        now = {(table, key): digest for table, key, digest in baseline.stored_digests(session, keys.rows)}
        changed = [(*row, now.get(row)) for row in stored.keys() | now.keys() if now.get(row) != stored.get(row)]
        rows = sorted((row for row in changed if row[:2] not in wrong), key=lambda row: row[:2])
        if rows:
            details: dict[str, int | str] = {"from": str(before), "to": str(wanted)}
            baseline.record_digests(session, keys, ACTION, details, rows)


def _known(session: Session, keys: AuditKeys) -> tuple[_Digests, set[tuple[str, str]]] | None:
    """Digests of all covered rows, and those that are not as their event says; None where nothing is covered yet."""
    schema = inspect(session.connection())
    events = AuditEvent.__tablename__
    if not schema.has_table(events) or "signature" not in {column["name"] for column in schema.get_columns(events)}:
        return None
    if not baseline.is_there(session):
        return None
    stored = {(table, key): digest for table, key, digest in baseline.stored_digests(session, keys.rows)}
    rows = expected_rows(session).rows
    said = {(table, key): digest for table, keys in rows.items() for key, (_, digest) in keys.items()}
    return stored, {row for row in stored.keys() | said.keys() if stored.get(row) != said.get(row)}
