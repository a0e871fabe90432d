"""Tracks the covered rows that a transaction writes, for the digests of its audit events.

What goes through the ORM is noticed by itself; statements that change covered rows past it return them and say so.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias
from uuid import UUID

from sqlalchemy import Table as SqlTable
from sqlalchemy import bindparam, event, insert, inspect, select, text, tuple_
from sqlalchemy.orm import Session, UOWTransaction

from app.audit.chain.coverage import COVERED
from app.audit.chain.keys import DerivedKey
from app.audit.chain.row_digests import Leaves, key_names, row_digest, row_key
from app.database.sql.compiled_statements import PreparedStatement
from app.database.tables import BaseTable, CaseChange
from app.database.tables.base import Row

_WRITTEN = "covered rows that were written"
_CASES = "cases that events of this session name"
# made once: every request that writes records
_CHANGE = insert(CaseChange)
_ONE_CHANGE = PreparedStatement(_CHANGE.values(stamp=bindparam("stamp"), case_id=bindparam("case_id")))
_CHANGES = PreparedStatement(
    text("INSERT INTO case_changes (stamp, case_id) SELECT :stamp, unnest(CAST(:cases AS uuid[]))")
)
# changed only by whoever has locked the row and read it afterwards, so that what the session knows is what is stored
_LOCKED = {"cases", "reads", "read_requests", "repeats"}


class _DeletedRow:
    """Marker of a row that was deleted."""


class _StaleRow:
    """Marker of a row that was changed without a lock."""


_GONE, _CHANGED = _DeletedRow(), _StaleRow()
_Written: TypeAlias = "dict[tuple[str, str], tuple[tuple[object, ...], Row | BaseTable | _DeletedRow | _StaleRow]]"


class RecordedSession(Session):
    """A session that remembers which covered rows it has written."""


def _get_written_rows(session: Session) -> _Written:
    written: _Written = session.info.setdefault(_WRITTEN, {})
    return written


def _note_row(session: Session, table: SqlTable, row: Row, content: Row | BaseTable | _DeletedRow | _StaleRow) -> None:
    primary = tuple([row[name] for name in key_names(table)])
    _get_written_rows(session)[table.name, row_key(table, row)] = (primary, content)


def note_rows(session: Session, table: type[BaseTable], rows: Iterable[Row]) -> None:
    """Remember rows that a statement inserted or changed past the ORM."""
    for row in rows:
        _note_row(session, _table_of(table), row, row)


def note_new(session: Session, table: type[BaseTable], row: Row) -> None:
    """Remember a row that a statement inserted past the ORM, where it is one that must have an event."""
    coverage = COVERED.get(table.__tablename__)
    if coverage is not None and coverage.covers(row):
        _note_row(session, _table_of(table), row, row)


def note_change(session: Session, table: type[BaseTable], before: Row, after: Row) -> None:
    """Remember a row that a statement changed past the ORM, unless nothing that is covered became another value."""
    rows = _table_of(table)
    coverage = COVERED.get(rows.name)
    if coverage is None or not coverage.covers(after):
        return
    for column in rows.columns:
        name = column.name
        if before[name] == after[name] or name in coverage.free:
            continue
        alike = coverage.alike.get(name)
        if alike is None or alike(before[name]) != alike(after[name]):
            _note_row(session, rows, after, after if rows.name in _LOCKED else _CHANGED)
            return


def note_deleted(session: Session, table: type[BaseTable], rows: Iterable[Row]) -> None:
    """Remember rows that a statement deleted past the ORM, by the columns of their primary key."""
    for row in rows:
        _note_row(session, _table_of(table), row, _GONE)


def _table_of(table: type[BaseTable]) -> SqlTable:
    rows = table.__table__
    if not isinstance(rows, SqlTable):
        raise TypeError(f"{table.__name__} is not one table")
    return rows


@event.listens_for(RecordedSession, "after_flush")
def _note_flushed(session: Session, _flush: UOWTransaction) -> None:
    for row in session.new:
        table = _get_covered_table(row)
        if table is not None and COVERED[table.name].covers(vars(row)):
            _note_row(session, table, vars(row), row)
    for row in session.dirty:
        table = _get_covered_table(row)
        if table is not None and _has_covered_change(row, table) and COVERED[table.name].covers(vars(row)):
            present = _get_written_rows(session).get((table.name, row_key(table, vars(row))))
            own = table.name in _LOCKED or (present is not None and isinstance(present[1], BaseTable))
            _note_row(session, table, vars(row), row if own else _CHANGED)
    for row in session.deleted:
        table = _get_covered_table(row)
        if table is not None:
            _note_row(session, table, vars(row), _GONE)


def _get_covered_table(row: object) -> SqlTable | None:
    table = getattr(row, "__table__", None)
    return table if isinstance(table, SqlTable) and table.name in COVERED else None


def _has_covered_change(row: BaseTable, table: SqlTable) -> bool:
    """Whether a covered column is about to become another one."""
    coverage, attributes = COVERED[table.name], inspect(row).attrs
    for column in table.columns:
        history = attributes[column.name].history
        if column.name in coverage.free or not history.has_changes():
            continue
        alike = coverage.alike.get(column.name)
        if alike is None or [*map(alike, history.added)] != [*map(alike, history.deleted)]:
            return True
    return False


@event.listens_for(RecordedSession, "after_soft_rollback")
def _forget_rolled_back(session: Session, _transaction: object) -> None:
    session.info.pop(_WRITTEN, None)
    session.info.pop(_CASES, None)


def name_cases(session: Session, stamp: int, case_ids: Sequence[UUID]) -> None:
    """Write down, and remember, the cases that an event of this session names."""
    session.info.setdefault(_CASES, set()).update(case_ids)
    if session.get_bind().dialect.name == "postgresql":  # one parameter: an execution for each costs more than its row
        _CHANGES.change(session, {"stamp": stamp, "cases": [*case_ids]})
    elif len(case_ids) == 1:
        _ONE_CHANGE.change(session, {"stamp": stamp, "case_id": case_ids[0]})
    else:
        session.connection().execute(_CHANGE, [{"stamp": stamp, "case_id": case_id} for case_id in case_ids])


def noted_cases(session: Session) -> set[UUID]:
    """Cases that the events of this session name."""
    return set(session.info.get(_CASES, ()))


def take_leaves(session: Session, private: DerivedKey) -> Leaves:
    """Digests of the covered rows that were written since the last call; what is pending must have been flushed."""
    written: _Written = session.info.pop(_WRITTEN, {})
    leaves: Leaves = {}
    unknown: dict[str, list[tuple[object, ...]]] = {}
    for (name, key), (primary, content) in written.items():
        if isinstance(content, _StaleRow):
            unknown.setdefault(name, []).append(primary)
        elif isinstance(content, _DeletedRow):
            leaves.setdefault(name, {})[key] = None
        else:
            row = _columns_of(content) if isinstance(content, BaseTable) else content
            leaves.setdefault(name, {})[key] = row_digest(private, BaseTable.metadata.tables[name], row)
    for name, keys in unknown.items():
        table = BaseTable.metadata.tables[name]
        for row in _read_stored_rows(session, table, keys):
            leaves.setdefault(name, {})[row_key(table, row)] = row_digest(private, table, row)
    return leaves


def _columns_of(row: BaseTable) -> Row:
    return {column.name: getattr(row, column.name) for column in row.__table__.columns}


def _read_stored_rows(session: Session, table: SqlTable, keys: Sequence[tuple[object, ...]]) -> Sequence[Row]:
    statement = select(table).where(tuple_(*table.primary_key.columns).in_(keys))
    return session.execute(statement).mappings().all()
