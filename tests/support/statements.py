"""Counting what the service asks of its database."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from app.database.engine import Database


@contextmanager
def counted(database: Database) -> Iterator[list[str]]:
    """Statements that are sent while the block runs; ``BEGIN``, which only SQLite sends as one, is not counted."""
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if not statement.startswith("BEGIN"):
            statements.append(statement)

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(database.engine, "before_cursor_execute", note)
