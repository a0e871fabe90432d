"""What is append-only stays as it was written, whatever a connection to the database tries."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import PrimaryKeyConstraint, UniqueConstraint, select, text
from sqlalchemy import Table as SqlTable
from sqlalchemy.exc import DBAPIError

from app.cases.blindness import record_exposure
from app.database.tables import APPEND_ONLY, Annotator, BaseTable, CasePrediction, Exposure
from tests.support.service import Service, fill_practice, fill_references, fill_repeats, fill_targets

Row = dict[str, Any]
# no row has them
FRESH = {"sequence": 10**6, "version": 10**6}

# their first key is the row's hidden number by another name
_BY_ROWID = {"audit_events", "installation"}


@pytest.fixture
def filled(service: Service) -> Service:
    """At least one row in every append-only table."""
    case = service.add_case()
    service.outside_label(case["id"], "reader", "blast")
    with service.context.database.write() as session:
        prediction = session.execute(select(CasePrediction)).scalar_one()
        annotator = session.execute(select(Annotator)).scalars().first()
        assert annotator is not None
        for _ in range(2):  # the second time there is nothing to record
            record_exposure(session, annotator.id, prediction.case_id, prediction.release_id, None)
        assert len(session.execute(select(Exposure)).all()) == 1
        fill_repeats(session)
        fill_practice(session)
        fill_references(session)
        fill_targets(session)
    service.written_past = True  # a repeat without its reads and events
    return service


def unique_keys(table: SqlTable) -> list[list[str]]:
    """Names of the columns of each key."""
    keys = [key for key in table.constraints if isinstance(key, PrimaryKeyConstraint | UniqueConstraint)]
    indexes = [index for index in table.indexes if index.unique]
    return [[column.name for column in key.columns] for key in [*keys, *indexes]]


def same_in(row: Row, key: list[str], others: set[str]) -> Row:
    """A row that has this key in common with another one, and none of its others."""
    fresh = {name: FRESH.get(name, f"{number:032x}") for number, name in enumerate(sorted(others - set(key)), 10)}
    return {name: fresh[name] if name in fresh and row[name] is not None else value for name, value in row.items()}


@pytest.fixture
def intruder(filled: Service) -> Iterator[sqlite3.Connection]:
    """A connection of somebody else's program, with SQLite's defaults."""
    path = filled.context.settings.sqlalchemy_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.row_factory = sqlite3.Row
        yield connection


def dump(connection: sqlite3.Connection, table: str) -> list[Row]:
    return [dict(row) for row in connection.execute(f"SELECT rowid AS _rowid, * FROM {table}")]


@pytest.mark.parametrize("name", APPEND_ONLY)
def test_sqlite_refuses_to_replace_a_row_by_any_of_its_keys(intruder: sqlite3.Connection, name: str) -> None:
    table, before = BaseTable.metadata.tables[name], dump(intruder, name)
    assert before
    keys = unique_keys(table)
    others = {column for key in keys for column in key}
    original = {column: value for column, value in before[0].items() if column != "_rowid"}
    attempts = [same_in(original, key, others) for key in keys if all(original[column] is not None for column in key)]
    hidden = same_in(original, [], others) | {"rowid": before[0]["_rowid"]}
    for row in [*attempts, *([] if name in _BY_ROWID else [hidden])]:
        _refuse_every_way(intruder, name, row)
    assert dump(intruder, name) == before


def _refuse_every_way(connection: sqlite3.Connection, name: str, row: Row) -> None:
    columns, places = ", ".join(row), ", ".join("?" * len(row))
    first = next(column for column in row if column != "rowid")
    for verb, end in (
        ("REPLACE", ""),
        ("INSERT OR REPLACE", ""),
        ("INSERT", f" ON CONFLICT DO UPDATE SET {first} = excluded.{first}"),
        ("INSERT OR IGNORE", ""),
        ("INSERT", ""),
    ):
        statement = f"{verb} INTO {name} ({columns}) VALUES ({places}){end}"
        with pytest.raises(sqlite3.IntegrityError, match=f"{name} is append-only"):
            connection.execute(statement, list(row.values()))


@pytest.mark.parametrize("name", APPEND_ONLY)
def test_sqlite_refuses_to_update_delete_and_rewrite_at_once(intruder: sqlite3.Connection, name: str) -> None:
    before = dump(intruder, name)
    column = next(iter(BaseTable.metadata.tables[name].columns)).name
    for statement in (
        f"UPDATE {name} SET {column} = {column}",
        f"UPDATE OR REPLACE {name} SET {column} = (SELECT max({column}) FROM {name})",
        f"DELETE FROM {name}",
        f"REPLACE INTO {name} SELECT * FROM {name}",
    ):
        with pytest.raises(sqlite3.IntegrityError, match=f"{name} is append-only"):
            intruder.execute(statement)
    assert dump(intruder, name) == before


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_postgresql_refuses_every_way_to_rewrite(filled: Service) -> None:
    engine = filled.context.database.engine
    for name in APPEND_ONLY:
        key = [column.name for column in BaseTable.metadata.tables[name].primary_key]
        with engine.connect() as connection:
            before = connection.execute(text(f"SELECT * FROM {name}")).all()
            assert before
        same = " AND ".join(f"t.{column} = s.{column}" for column in key)
        for statement in (
            f"INSERT INTO {name} SELECT * FROM {name} ON CONFLICT ({', '.join(key)}) DO UPDATE "
            f"SET {key[0]} = excluded.{key[0]}",
            f"MERGE INTO {name} t USING {name} s ON {same} WHEN MATCHED THEN UPDATE SET {key[0]} = s.{key[0]}",
            f"MERGE INTO {name} t USING {name} s ON {same} WHEN MATCHED THEN DELETE",
            f"UPDATE {name} SET {key[0]} = {key[0]}",
            f"DELETE FROM {name}",
            f"TRUNCATE {name} CASCADE",
        ):
            with engine.connect() as connection, pytest.raises(DBAPIError, match="is append-only"):
                connection.execute(text(statement))
        with engine.connect() as connection:
            assert connection.execute(text(f"SELECT * FROM {name}")).all() == before


def test_every_append_only_table_has_its_triggers(service: Service) -> None:
    """Also after migrations that make tables anew, which leaves triggers behind."""
    with service.context.database.read() as session:
        triggers = set(session.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).scalars())
    assert triggers == {f"{table}_no_{verb}" for table in APPEND_ONLY for verb in ("update", "delete", "replace")}
