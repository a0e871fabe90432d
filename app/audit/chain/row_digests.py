"""Digests of rows: canonical JSON of the covered columns, and one root (Merkle) for all rows of an event.

Whoever has the events and the rows can compute them without a key; of private columns, which name a person or open a
door, only an HMAC enters.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import TypeAlias
from uuid import UUID

from sqlalchemy import Float
from sqlalchemy import Table as SqlTable

from app.audit.chain.coverage import COVERED, Coverage, Row
from app.audit.chain.keys import DerivedKey
from app.database.tables import Table

#: JSON values.
Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"
#: Table → key of the row → digest, None where the row was deleted.
Leaves = dict[str, dict[str, str | None]]


# what JSON gives back as it was
_PLAIN_TYPES = frozenset({str, int, float, bool})
# made once: `json.dumps` makes another for every value
_canonical_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode


def canonical(value: Json) -> bytes:
    """JSON that is the same for the same value: sorted names, no spaces, ASCII."""
    return _canonical_json(value).encode()


@cache
def key_names(table: SqlTable) -> tuple[str, ...]:
    """Names of the columns of a table's primary key."""
    return tuple(column.name for column in table.primary_key.columns)


@cache
def _names(table: SqlTable) -> tuple[tuple[str, bool], ...]:
    """Names of a table's columns, and whether each holds numbers that need not be whole."""
    return tuple((column.name, isinstance(column.type, Float)) for column in table.columns)


def row_key(table: SqlTable, row: Row) -> str:
    """Primary key of a row as text."""
    return "/".join([str(row[name]) for name in key_names(table)])


def shown_row(private: DerivedKey, table: SqlTable, row: Row, coverage: Coverage | None = None) -> dict[str, Json]:
    """Covered columns of a row as JSON values, private ones as their HMAC; those that are null or false are left out.

    Args:
        private: key of private columns of rows without a key of their own.
        table: of the row.
        row: values by column.
        coverage: how its rows are covered; as ``COVERED`` says where left out.
    """
    coverage = coverage or COVERED[table.name]
    of_row = None if coverage.key is None else row[coverage.key]
    own = private if of_row is None else DerivedKey(of_row, b"")
    shown: dict[str, Json] = {}
    for name, is_float in _names(table):
        value = row[name]
        if value is None or value is False or name in coverage.free or name == coverage.key:
            continue
        alike = coverage.alike.get(name)
        plain = float(value) if is_float else _plain(value if alike is None else alike(value))
        if name in coverage.private:
            named = canonical([table.name, row_key(table, row), name, plain])
            plain = own.digest(named).hex()
        shown[name] = plain
    return shown


def _plain(value: object) -> Json:
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


def row_digest(private: DerivedKey, table: SqlTable, row: Row, coverage: Coverage | None = None) -> str:
    """SHA-256 of a row: its table and its covered columns."""
    return hashlib.sha256(canonical([table.name, shown_row(private, table, row, coverage)])).hexdigest()


def cases_digest(case_ids: Iterable[UUID]) -> str:
    """SHA-256 of the cases whose evaluation an event changed."""
    return hashlib.sha256(canonical([*sorted(map(str, case_ids))])).hexdigest()


def merkle_root(leaves: Mapping[str, Mapping[str, str | None]]) -> str:
    """Root of the tree over the digests of an event, in the order of tables and keys; the last odd node moves up."""
    level = [
        hashlib.sha256(b"\0" + canonical([table, key, digest])).digest()
        for table, rows in sorted(leaves.items())
        for key, digest in sorted(rows.items())
    ]
    while len(level) > 1:
        pairs = [
            hashlib.sha256(b"\1" + level[place] + level[place + 1]).digest() for place in range(0, len(level) - 1, 2)
        ]
        level = pairs + level[len(level) & ~1 :]
    return level[0].hex() if level else hashlib.sha256(b"").hexdigest()


def covered_tables() -> list[SqlTable]:
    """Tables whose rows are covered, each after those that it refers to."""
    return [table for table in Table.metadata.sorted_tables if table.name in COVERED]
