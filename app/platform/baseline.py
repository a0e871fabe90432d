"""The baseline: digests of all rows that were there before events carried any, written once, with the key."""

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from uuid import UUID

from sqlalchemy import ColumnClause, Integer, column, exists, inspect, null, select
from sqlalchemy.orm import Session

from app.platform import audit_chain
from app.platform.former_rows import as_it_was
from app.platform.keys import AuditKeys, DerivedKey
from app.platform.one_at_a_time import Turn, take_turn
from app.platform.row_digests import Leaves, cases_digest, covered_tables, row_digest, row_key
from app.tables import AuditEvent, CaseChange

ACTION = "rows.baseline"
# digests in one event
_ROWS = 10_000


def is_there(session: Session) -> bool:
    """Whether the database has its baseline."""
    return bool(session.execute(select(exists().where(AuditEvent.action == ACTION))).scalar())


def write_if_missing(session: Session, keys: AuditKeys) -> None:
    """Write the baseline unless there is one.

    Args:
        session: writing session.
        keys: of the audit.
    """
    take_turn(session, Turn.KEY)  # nobody writes an event before the baseline
    if is_there(session):
        return
    details: dict[str, int | str] = {"n_events": audit_chain.head_of(session)[0]}
    record_digests(session, keys, ACTION, details, stored_digests(session, keys.rows))


def record_digests(
    session: Session,
    keys: AuditKeys,
    action: str,
    details: dict[str, int | str],
    digests: Iterable[tuple[str, str, str | None]],
) -> None:
    """Vouch for many rows by one event per 10,000, at least one.

    Args:
        session: writing session.
        keys: of the audit.
        action: of the events.
        details: of the first event.
        digests: table, key and digest of each row, None where it is gone.
    """
    rows = iter(digests)
    while True:
        leaves: Leaves = {}
        for table, row, row_sha256 in islice(rows, _ROWS):
            leaves.setdefault(table, {})[row] = row_sha256
        if not leaves and not details:
            return
        audit_chain.record(
            session, keys, actor="service", action=action, object_id="rows", details=details, leaves=leaves
        )
        details = {}


class Replay:
    """Walks over the chain and sees whether the baseline stands before all other events with digests of rows.

    Attributes:
        has_baseline: whether the baseline was there.
    """

    def __init__(self) -> None:
        self.has_baseline = self._closed = False

    def take(self, event: AuditEvent) -> list[str]:
        """Take the next event; what is wrong with it."""
        if event.row_digests is None or event.action == audit_chain.REWRITE:
            return []
        if event.action != ACTION:
            self._closed = True
            return []
        self.has_baseline = True
        if self._closed:
            return [f"audit event {event.number} is a baseline, although earlier events carry digests already"]
        return []


def stored_digests(session: Session, private: DerivedKey) -> Iterator[tuple[str, str, str]]:
    """Table, key and digest of each covered row; the schema may lack tables, and columns, which then count as null.

    Args:
        session: for reading.
        private: key of private columns.
    """
    schema = inspect(session.connection())
    for current in covered_tables():
        table, coverage = as_it_was(schema, current)
        present = {own["name"] for own in schema.get_columns(table.name)} if schema.has_table(table.name) else set()
        columns = [own if own.name in present else null().label(own.name) for own in table.columns]
        if not present:
            continue
        for row in session.connection().execute(select(*columns).execution_options(yield_per=1000)).mappings():
            if coverage.covers(row):
                yield table.name, row_key(table, row), row_digest(private, table, row, coverage)
    for stamp, cases in case_changes(session):
        yield audit_chain.CASE_CHANGES, str(stamp), cases_digest(cases)


def case_changes(session: Session) -> Iterator[tuple[int, list[UUID]]]:
    """Stamp of each event that names cases, and which; an older schema has the event's number in its place."""
    names = {own["name"] for own in inspect(session.connection()).get_columns(CaseChange.__tablename__)}
    stamp: ColumnClause[int] = column("stamp" if "stamp" in names else "sequence", Integer)
    changes = select(stamp, CaseChange.case_id).select_from(CaseChange).order_by(stamp)
    for number, pairs in groupby(session.execute(changes), key=lambda pair: pair[0]):
        yield number, [case_id for _, case_id in pairs]
