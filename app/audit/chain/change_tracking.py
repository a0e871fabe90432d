"""Tracks the covered rows that a transaction writes, for the digests of its audit events.

A session notes the rows of each flush, and those of each INSERT, UPDATE and DELETE that it executes: it adds RETURNING
to the statement. A statement outside a session is not noted.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from sqlalchemy import Delete, Insert, Result, Update, event, inspect, select, tuple_, update
from sqlalchemy import Table as SqlTable
from sqlalchemy.orm import ORMExecuteState, Session, UOWTransaction

from app.audit.chain.coverage import COVERED, TableCoverage
from app.audit.chain.keys import DerivedKey
from app.audit.chain.row_digests import Leaves, key_names, row_digest, row_key
from app.database.tables import BaseTable
from app.database.tables.base import Row

_WRITTEN = "covered rows that were written"
# execution option: columns that an UPDATE sets, with their values
_SET_COLUMNS = "set_columns"


class _DeletedRow:
    """Marker of a row that was deleted."""


class _StaleRow:
    """Marker of a row that was changed without a lock."""


_GONE, _CHANGED = _DeletedRow(), _StaleRow()
_Written: TypeAlias = "dict[tuple[str, str], tuple[tuple[object, ...], Row | BaseTable | _DeletedRow | _StaleRow]]"


class RecordedSession(Session):
    """A session that remembers which covered rows it has written."""


def update_columns(table: type[BaseTable], **values: Any) -> Update:
    """Make an UPDATE that names its columns to the session: without covered ones nothing is noted."""
    statement = update(table).values(**values)
    return statement.execution_options(**{_SET_COLUMNS: values}, synchronize_session=False)


@event.listens_for(RecordedSession, "do_orm_execute")
def _note_statement(state: ORMExecuteState) -> Result[Any] | None:
    """Let a statement that writes a covered table return the rows that it writes, and note them."""
    statement = state.statement
    if not isinstance(statement, Insert | Update | Delete):
        return None
    table = statement.entity_description["table"]
    coverage = COVERED.get(table.name)
    if coverage is None or _sets_nothing_covered(coverage, state.execution_options.get(_SET_COLUMNS)):
        return None
    columns = table.primary_key.columns if isinstance(statement, Delete) else table.columns
    n_own = len(statement.exported_columns)
    written = state.invoke_statement(statement=statement.returning(*columns)).freeze()
    for values in written():
        row = dict(zip(columns.keys(), values[n_own:], strict=True))
        if isinstance(statement, Delete):
            _note_row(state.session, table, row, _GONE)
        elif coverage.covers(row):
            _note_row(state.session, table, row, row)
    return written().columns(*range(n_own)) if n_own else written()


def _sets_nothing_covered(coverage: TableCoverage, values: Row | None) -> bool:
    return values is not None and all(coverage.is_free_value(name, value) for name, value in values.items())


def _get_written_rows(session: Session) -> _Written:
    written: _Written = session.info.setdefault(_WRITTEN, {})
    return written


def _note_row(session: Session, table: SqlTable, row: Row, content: Row | BaseTable | _DeletedRow | _StaleRow) -> None:
    primary = tuple([row[name] for name in key_names(table)])
    _get_written_rows(session)[table.name, row_key(table, row)] = (primary, content)


@event.listens_for(RecordedSession, "after_flush")
def _note_flushed(session: Session, _flush: UOWTransaction) -> None:
    for entity, row, table in _list_covered_rows(session.new):
        if COVERED[table.name].covers(row):
            _note_row(session, table, row, entity)
    for entity, row, table in _list_covered_rows(session.dirty):
        if _has_covered_change(entity, table) and COVERED[table.name].covers(row):
            present = _get_written_rows(session).get((table.name, row_key(table, row)))
            is_own = present is not None and isinstance(present[1], BaseTable)
            _note_row(session, table, row, entity if is_own else _CHANGED)
    for _, row, table in _list_covered_rows(session.deleted):
        _note_row(session, table, row, _GONE)


def _list_covered_rows(entities: Iterable[object]) -> list[tuple[BaseTable, Row, SqlTable]]:
    """List the entities of covered tables, each with its columns and its table."""
    tables = [(entity, entity.__table__) for entity in entities if isinstance(entity, BaseTable)]
    return [
        (entity, _columns_of(entity), table)
        for entity, table in tables
        if isinstance(table, SqlTable) and table.name in COVERED
    ]


def _has_covered_change(entity: BaseTable, table: SqlTable) -> bool:
    """Whether a covered column is about to become another one."""
    coverage, attributes = COVERED[table.name], inspect(entity).attrs
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
