"""Rows past the unit of work: objects of the mapped classes that are read and never set, and statements on one row.

A unit of work loads an entity for four times the price of its columns, and writes one for ten times the price of the
statement that it sends. What every lease and label does is written out here instead: a row is selected by its columns,
and what adds or changes one says which columns. A plain row belongs to no session: to set an attribute of it, or to ask
for a relationship that was not given, is an error.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import Column, CursorResult, Executable, bindparam, insert, update
from sqlalchemy import Table as SqlTable
from sqlalchemy.orm import Session
from sqlalchemy.orm.exc import StaleDataError

from app.audit.chain.change_tracking import note_change, note_new
from app.audit.chain.coverage import Row
from app.database.sql.compiled_statements import Prepared
from app.database.tables import Table

_Mapped = TypeVar("_Mapped", bound=Table)
# of a parameter that says which row: names of columns are those of values
_WHICH = "which_"


def run(session: Session, statement: Executable, values: Row | None = None) -> CursorResult[Any]:
    """Execute a statement past the unit of work, after whatever is pending there.

    Args:
        session: of the request.
        statement: whose columns are wanted as they are.
        values: of its parameters.
    """
    if session.autoflush:
        session.flush()
    return session.connection().execute(statement, values)  # type: ignore[arg-type]  # a mapping, as it takes


def table_of(table: type[Table]) -> SqlTable:
    """The table of a mapped class.

    Raises:
        TypeError: it is mapped to something else.
    """
    rows = table.__table__
    if not isinstance(rows, SqlTable):
        raise TypeError(f"{table.__name__} is not one table")
    return rows


@cache
def columns(table: type[Table]) -> tuple[Column[Any], ...]:
    """Columns of a table in the order in which ``plain_row`` takes them."""
    return tuple(table_of(table).columns)


@cache
def _names(table: type[Table]) -> tuple[str, ...]:
    return tuple(column.name for column in columns(table))


def plain_row(table: type[_Mapped], values: Sequence[Any]) -> _Mapped:
    """A row by the values of all its columns."""
    return _plain(table, dict(zip(_names(table), values, strict=True)))


def _plain(table: type[_Mapped], values: Row) -> _Mapped:
    row = table.__new__(table)
    vars(row).update(values)
    return row


class Joined:
    """Columns of several tables in one statement, and the rows in what it gives.

    Args:
        tables: one after the other.
    """

    def __init__(self, *tables: type[Table]) -> None:
        self.columns: list[Any] = [column for table in tables for column in columns(table)]
        self._slices: list[tuple[type[Table], slice, int]] = []
        start = 0
        for table in tables:
            end = start + len(columns(table))
            key = next(place for place, column in enumerate(columns(table)) if column.primary_key)
            self._slices.append((table, slice(start, end), start + key))
            start = end
        #: where further columns of the statement begin
        self.end = start

    def rows(self, found: Sequence[Any]) -> list[Any]:
        """A row per table; None where an outer join found none."""
        return [None if found[key] is None else plain_row(table, found[place]) for table, place, key in self._slices]


@cache
def _defaults(table: type[Table]) -> tuple[tuple[str, Callable[[Any], object]], ...]:
    """Columns that get a value where none is given, and what makes it."""
    made: list[tuple[str, Callable[[Any], object]]] = []
    for column in columns(table):
        default: Any = column.default
        if default is not None:
            made.append((column.name, default.arg if default.is_callable else _constant(default.arg)))
    return tuple(made)


def _constant(value: object) -> Callable[[Any], object]:
    return lambda _: value


@cache
def insertion(table: type[Table], names: tuple[str, ...]) -> Prepared:
    """The statement that inserts a row.

    Args:
        table: of the row.
        names: of the columns that are given; the others have no default that is not the database's.
    """
    given = table_of(table).columns
    return Prepared(insert(table_of(table)).values({name: bindparam(name, type_=given[name].type) for name in names}))


def insert_row(session: Session, table: type[_Mapped], **values: object) -> _Mapped:
    """Add a row at once, with the defaults of its columns, and note it for the audit.

    Args:
        session: writing session; whatever the row refers to is stored.
        table: of the row.
        values: by column.

    Returns:
        The row as it is stored.
    """
    connection = session.connection()
    for name, make in _defaults(table):
        if name not in values:
            values[name] = make(connection)
    insertion(table, tuple(values)).change(session, values)
    row = dict.fromkeys(_names(table)) | values
    note_new(session, table, row)
    return _plain(table, row)


def insert_new_row(session: Session, row: _Mapped) -> _Mapped:
    """Add an object that no session has at once.

    Args:
        session: writing session.
        row: new; what it does not say gets the defaults of its columns.

    Returns:
        The row as it is stored.
    """
    said = {name: value for name, value in vars(row).items() if name in _names(type(row))}
    return insert_row(session, type(row), **said)


@cache
def _change(table: type[Table], names: tuple[str, ...]) -> Prepared:
    rows = table_of(table)
    statement = update(rows).values({name: bindparam(name, type_=rows.columns[name].type) for name in names})
    for key in rows.primary_key.columns:
        statement = statement.where(key == bindparam(_WHICH + key.name, type_=key.type))
    return Prepared(statement)


def change_row(session: Session, row: _Mapped, **values: object) -> _Mapped:
    """Change columns of a row that this session has locked and read since, and note it for the audit.

    Args:
        session: writing session.
        row: as it is stored.
        values: by column.

    Returns:
        The row as it is stored now; the former one stays as it was.

    Raises:
        StaleDataError: there is no such row any more.
    """
    table, before = type(row), vars(row)
    which = {_WHICH + key.name: before[key.name] for key in table_of(table).primary_key.columns}
    if _change(table, tuple(values)).change(session, which | values) != 1:
        raise StaleDataError(f"a row of {table.__tablename__} to be changed is gone")
    after = before | values
    note_change(session, table, before, after)
    return _plain(table, after)
