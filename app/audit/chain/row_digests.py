"""Row digests: canonical JSON of the covered columns.

Whoever has the events and the rows can compute them without a key; of private columns, which name a person or open a
door, only an HMAC enters.
"""

import hashlib
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from typing import TypeAlias
from uuid import UUID

from sqlalchemy import Float
from sqlalchemy import Table as SqlTable

from app.audit.chain.coverage import COVERED, TableCoverage
from app.audit.chain.keys import DerivedKey
from app.audit.chain.verify_proof import digest_json, encode_canonical_json
from app.database.tables import BaseTable
from app.database.tables.base import Row

#: JSON values.
Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"
#: Table → key of the row → digest, None where the row was deleted.
Leaves = dict[str, dict[str, str | None]]


# what JSON gives back as it was
_PLAIN_TYPES = frozenset({str, int, float, bool})


@cache
def key_names(table: SqlTable) -> tuple[str, ...]:
    """Names of the columns of a table's primary key."""
    return tuple(column.name for column in table.primary_key.columns)


@cache
def _list_column_kinds(table: SqlTable) -> tuple[tuple[str, bool], ...]:
    """Names of a table's columns, and whether each holds numbers that need not be whole."""
    return tuple((column.name, isinstance(column.type, Float)) for column in table.columns)


def row_key(table: SqlTable, row: Row) -> str:
    """Primary key of a row as text."""
    return "/".join([str(row[name]) for name in key_names(table)])


def build_row_document(
    private: DerivedKey, table: SqlTable, row: Row, coverage: TableCoverage | None = None
) -> dict[str, Json]:
    """Return the covered columns as JSON values, private ones as HMAC, without null or false."""
    coverage = coverage or COVERED[table.name]
    of_row = None if coverage.key is None else row[coverage.key]
    own = private if of_row is None else DerivedKey(of_row, b"")
    document: dict[str, Json] = {}
    for name, is_float in _list_column_kinds(table):
        value = row[name]
        if value is None or value is False or name in coverage.free or name == coverage.key:
            continue
        alike = coverage.alike.get(name)
        plain = float(value) if is_float else _to_json_value(value if alike is None else alike(value))
        if name in coverage.private:
            named = encode_canonical_json([table.name, row_key(table, row), name, plain])
            plain = own.digest(named).hex()
        document[name] = plain
    return document


def _to_json_value(value: object) -> Json:
    """A column's value as JSON; the same before it was stored and after it was read."""
    if type(value) in _PLAIN_TYPES:  # not a kind of them, such as a name of an enumeration
        return value  # type: ignore[return-value]
    if isinstance(value, list) and all(type(item) is float for item in value):
        return value
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    plain: Json = json.loads(json.dumps(value))
    return plain


def row_digest(private: DerivedKey, table: SqlTable, row: Row, coverage: TableCoverage | None = None) -> str:
    """SHA-256 of a row: its table and its covered columns."""
    return digest_json([table.name, build_row_document(private, table, row, coverage)])


def cases_digest(case_ids: Iterable[UUID]) -> str:
    """SHA-256 of the cases whose evaluation an event changed."""
    return digest_json(sorted(map(str, case_ids)))


def covered_tables() -> list[SqlTable]:
    """Tables whose rows are covered, each after those that it refers to."""
    return [table for table in BaseTable.metadata.sorted_tables if table.name in COVERED]
