"""Compiled statements: compiled once per database, executed without SQLAlchemy's overhead.

To find a compiled statement by its key, to make a context and a result takes several times as long as SQLite takes for
the statement. What is kept here is text, what makes parameters of values, and what makes values of columns; errors, and
whoever listens to statements, are told as SQLAlchemy tells them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, Dialect, Executable
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.types import TypeEngine

from app.database.tables.base import Row

_Processor = Callable[[Any], Any]
_MISSING = object()


class _StatementParameter(NamedTuple):
    """A parameter."""

    name: str
    key: str
    # what it is where no value is given
    default: object
    # gives it as the statement is sent, where no value is given; None: the default stands
    made: Callable[[], object] | None
    # makes what the driver takes of a value
    process: _Processor | None


@dataclass
class _CompiledStatement:
    """A statement for one database."""

    # as the driver takes it
    text: str
    # whether parameters go by their places
    positional: bool
    # in the order of their places
    parameters: tuple[_StatementParameter, ...]
    # types of the columns that it gives
    kinds: tuple[TypeEngine[Any], ...]
    # places of columns, and what makes values of them; None before the driver has said what it gives
    columns: tuple[tuple[int, _Processor], ...] | None = None


class PreparedStatement:
    """A statement that is compiled once."""

    def __init__(self, statement: Executable) -> None:
        self._statement = statement
        self._compiled: dict[str, _CompiledStatement] = {}

    def all(self, session: Session, values: Row | None = None) -> list[Sequence[Any]]:
        """Every row that it gives; what is pending in the session is sent before."""
        rows, columns, _ = self._send(_connection_of(session), values or {})
        return _process_rows(rows, columns)

    def first(self, session: Session, values: Row | None = None) -> Sequence[Any] | None:
        """Its first row; None where there is none."""
        rows = self.all(session, values)
        return rows[0] if rows else None

    def look(self, connection: Connection, values: Row) -> Sequence[Any] | None:
        """Its first row, by a connection without a session; None where there is none."""
        rows, columns, _ = self._send(connection, values)
        return _process_rows(rows[:1], columns)[0] if rows else None

    def change(self, session: Session, values: Row) -> int:
        """Number of rows that it has inserted, changed or deleted."""
        return self._send(_connection_of(session), values)[2]

    def _send(self, connection: Connection, values: Row) -> tuple[list[Any], tuple[tuple[int, _Processor], ...], int]:
        """Rows as the driver gives them, what makes values of their columns, and the number of changed ones."""
        dialect = connection.dialect
        compiled = self._compiled.get(dialect.name) or self._compile(dialect)
        given = _bind_values(compiled, values)
        cursor = connection.connection.cursor()
        try:
            for listener in connection.dispatch.before_cursor_execute:
                listener(connection, cursor, compiled.text, given, None, False)
            cursor.execute(compiled.text, given)
            described = cursor.description
            if described is None:
                return [], (), cursor.rowcount
            if compiled.columns is None:
                compiled.columns = _list_result_processors(compiled.kinds, described, dialect)
            return [*cursor.fetchall()], compiled.columns, cursor.rowcount
        except dialect.loaded_dbapi.Error as error:
            wrapped = _wrap_driver_error(connection, compiled.text, given, error)
            raise wrapped from error
        finally:
            cursor.close()

    def _compile(self, dialect: Dialect) -> _CompiledStatement:
        compiled = self._statement.compile(dialect=dialect)  # type: ignore[attr-defined]
        if not isinstance(compiled, SQLCompiler) or compiled.insert_prefetch or compiled.update_prefetch:
            raise TypeError("such a statement is not prepared")
        required = {bound.key: None for bound in compiled.binds.values() if bound.required}
        expanded = compiled.construct_expanded_state(required)  # lists of values written out
        names = expanded.positiontup if compiled.positional else list(expanded.parameters)
        parameters = []
        for name in names or ():
            bound = compiled.binds.get(name)  # none of a value in a list
            default = _MISSING if bound is not None and bound.required else expanded.parameters[name]
            in_text = compiled.escaped_bind_names.get(name, name)
            if bound is None:
                parameters.append(_StatementParameter(in_text, name, default, None, expanded.processors.get(name)))
            else:
                process = bound.type.dialect_impl(dialect).bind_processor(dialect)
                parameters.append(_StatementParameter(in_text, bound.key, default, bound.callable, process))
        kinds = tuple(column.type for column in compiled._result_columns)
        compiled_statement = _CompiledStatement(expanded.statement, bool(compiled.positional), tuple(parameters), kinds)
        self._compiled[dialect.name] = compiled_statement
        return compiled_statement


def _connection_of(session: Session) -> Connection:
    """Connection of the session, after pending changes were sent."""
    if session.autoflush:
        session.flush()
    return session.connection()


def _process_rows(rows: list[Any], columns: tuple[tuple[int, _Processor], ...]) -> list[Sequence[Any]]:
    """Convert the driver's rows to rows of values."""
    if not columns:
        return rows
    processed: list[Sequence[Any]] = []
    for row in rows:
        cells = [*row]
        for place, process in columns:
            cells[place] = process(cells[place])
        processed.append(cells)
    return processed


def _bind_values(compiled: _CompiledStatement, values: Row) -> Any:
    """Bind values by place or by name, as the driver expects."""
    given = []
    for _, key, default, factory, process in compiled.parameters:
        value = factory() if factory is not None and key not in values else values.get(key, default)
        if value is _MISSING:
            raise KeyError(key)
        given.append(value if process is None else process(value))
    if compiled.positional:
        return given
    return dict(zip([parameter.name for parameter in compiled.parameters], given, strict=True))


def _list_result_processors(
    kinds: Sequence[TypeEngine[Any]], described: Sequence[Sequence[Any]], dialect: Dialect
) -> tuple[tuple[int, _Processor], ...]:
    """List the result processors of columns, by the driver's description."""
    processors = [
        kind.dialect_impl(dialect).result_processor(dialect, column[1])
        for kind, column in zip(kinds, described, strict=True)
    ]
    return tuple((place, process) for place, process in enumerate(processors) if process is not None)


def _wrap_driver_error(connection: Connection, text: str, given: Any, error: BaseException) -> BaseException:
    """Wrap a driver's error in SQLAlchemy's; invalidate a lost connection."""
    dialect = connection.dialect
    gone = dialect.is_disconnect(error, connection.connection.dbapi_connection, None)  # type: ignore[arg-type]
    if gone:
        connection.invalidate(error)
    return DBAPIError.instance(
        text,
        given,
        error,
        dialect.loaded_dbapi.Error,
        hide_parameters=connection.engine.hide_parameters,
        connection_invalidated=gone,
        dialect=dialect,
    )
