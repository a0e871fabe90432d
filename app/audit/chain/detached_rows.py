"""Detached rows: reads and single-row statements outside the unit of work.

A unit of work loads an entity for four times the price of its columns, and writes one for ten times the price of the
statement that it sends. What every lease and label does is written out here instead: a row is selected by its columns,
and what adds or changes one says which columns. A plain row belongs to no session: to set an attribute of it, or to ask
for a relationship that was not given, is an error.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import Column, CursorResult, Executable, bindparam, insert
from sqlalchemy import Table as SqlTable
from sqlalchemy.orm import Session
from sqlalchemy.orm.exc import StaleDataError

from app.audit.chain.change_tracking import update_columns
from app.database.sql.compiled_statements import PreparedStatement
from app.database.tables import BaseTable
from app.database.tables.base import Row

_Mapped = TypeVar("_Mapped", bound=BaseTable)


def execute_past_session(session: Session, statement: Executable, values: Row | None = None) -> CursorResult[Any]:
    """Execute a statement outside the unit of work, after pending changes."""
    if session.autoflush:
        session.flush()
    return session.connection().execute(statement, values)  # type: ignore[arg-type]  # a mapping, as it takes


def table_of(table: type[BaseTable]) -> SqlTable:
    """The table of a mapped class."""
    rows = table.__table__
    if not isinstance(rows, SqlTable):
        raise TypeError(f"{table.__name__} is not one table")
    return rows


@cache
def list_columns(table: type[BaseTable]) -> tuple[Column[Any], ...]:
    """Columns of a table in the order in which ``build_detached_row`` takes them."""
    return tuple(table_of(table).columns)


@cache
def _list_column_names(table: type[BaseTable]) -> tuple[str, ...]:
    return tuple(column.name for column in list_columns(table))


def build_detached_row(table: type[_Mapped], values: Sequence[Any]) -> _Mapped:
    """A row by the values of all its columns."""
    return _fill_detached_row(table, dict(zip(_list_column_names(table), values, strict=True)))


def _fill_detached_row(table: type[_Mapped], values: Row) -> _Mapped:
    row = table.__new__(table)
    vars(row).update(values)
    return row


class JoinedRows:
    """Columns of several tables in one statement, and the rows of its result."""

    def __init__(self, *tables: type[BaseTable]) -> None:
        self.columns: list[Any] = [column for table in tables for column in list_columns(table)]
        self._slices: list[tuple[type[BaseTable], slice, int]] = []
        start = 0
        for table in tables:
            end = start + len(list_columns(table))
            key = next(place for place, column in enumerate(list_columns(table)) if column.primary_key)
            self._slices.append((table, slice(start, end), start + key))
            start = end
        #: where further columns of the statement begin
        self.end = start

    def rows(self, found: Sequence[Any]) -> list[Any]:
        """A row per table; None where an outer join found none."""
        return [
            None if found[key] is None else build_detached_row(table, found[place])
            for table, place, key in self._slices
        ]


@cache
def _list_column_defaults(table: type[BaseTable]) -> tuple[tuple[str, Callable[[Any], object]], ...]:
    """List the columns with a default, and the function that makes it."""
    defaults: list[tuple[str, Callable[[Any], object]]] = []
    for column in list_columns(table):
        default: Any = column.default
        if default is not None:
            defaults.append((column.name, default.arg if default.is_callable else _make_constant_default(default.arg)))
    return tuple(defaults)


def _make_constant_default(value: object) -> Callable[[Any], object]:
    return lambda _: value


@cache
def prepare_insert(table: type[BaseTable], names: tuple[str, ...]) -> PreparedStatement:
    """Prepare the statement that inserts a row."""
    given = table_of(table).columns
    return PreparedStatement(
        insert(table_of(table)).values({name: bindparam(name, type_=given[name].type) for name in names})
    )


def insert_row(session: Session, table: type[_Mapped], **values: object) -> _Mapped:
    """Add a row at once, with the defaults of its columns, and note it for the audit."""
    connection = session.connection()
    for name, make in _list_column_defaults(table):
        if name not in values:
            values[name] = make(connection)
    session.execute(insert(table).values(**values))
    row = dict.fromkeys(_list_column_names(table)) | values
    return _fill_detached_row(table, row)


def insert_new_row(session: Session, row: _Mapped) -> _Mapped:
    """Add an object that no session has at once."""
    values = {name: value for name, value in vars(row).items() if name in _list_column_names(type(row))}
    return insert_row(session, type(row), **values)


def change_row(session: Session, row: _Mapped, **values: object) -> _Mapped:
    """Change columns of a row that this session has locked and read since, and note it for the audit."""
    table, before = type(row), vars(row)
    keys = table_of(table).primary_key.columns
    which = [key == before[key.name] for key in keys]
    if session.execute(update_columns(table, **values).where(*which).returning(*keys)).first() is None:
        raise StaleDataError(f"a row of {table.__tablename__} to be changed is gone")
    return _fill_detached_row(table, before | values)
