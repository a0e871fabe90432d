"""Condition on the texts of a JSON object, on SQLite and PostgreSQL."""

from typing import Any

from sqlalchemy import ColumnElement, exists
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction


class _JsonTexts(GenericFunction[Any]):
    """The names and texts of a JSON object, as rows."""

    name, inherit_cache = "json_each_text", True


@compiles(_JsonTexts, "sqlite")
def _compile_for_sqlite(function: _JsonTexts, compiler: SQLCompiler, **options: Any) -> str:
    return f"json_each{compiler.function_argspec(function, **options)}"


def has_text(column: InstrumentedAttribute[dict[str, str]], name: str, text: str) -> ColumnElement[bool]:
    """Condition on a row: the object in a column has a text under this name."""
    # not by a path: SQLite compares the names in one with those in the JSON text as they are escaped there
    pairs = _JsonTexts(column).table_valued("key", "value")
    return exists().select_from(pairs).where(pairs.c.key == name, pairs.c.value == text)
