"""What is append-only stays as it was written, whatever a connection or the role of the service tries."""

import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from fastapi.testclient import TestClient
from psycopg import sql
from pydantic import SecretStr
from sqlalchemy import PrimaryKeyConstraint, UniqueConstraint, select, text
from sqlalchemy import Table as SqlTable
from sqlalchemy.exc import DBAPIError

from app.audit.verify import verify_all
from app.cases.blindness import record_exposure
from app.cli import serving
from app.context import ServiceContext, build_context
from app.database.engine import Database
from app.database.migration import owns_tables
from app.database.tables import APPEND_ONLY, Annotator, BaseTable, CasePrediction, Erasure, Exposure
from app.main import create_app
from app.maintenance.backup import write_backup
from app.maintenance.erasure import erase_patient_everywhere
from app.settings import Settings
from tests.support.command import run_here
from tests.support.jobs import work_off
from tests.support.postgres import PostgresServer
from tests.support.service import (
    KEY,
    Service,
    add_people,
    fill_knowledge,
    fill_practice,
    fill_references,
    fill_repeats,
    fill_signature,
    fill_targets,
    put_release,
)

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
    service.settle(case["id"])
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
        fill_knowledge(session)
        fill_signature(session)
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


@pytest.mark.sqlite_only
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


@pytest.mark.sqlite_only
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


@dataclass(frozen=True)
class Roles:
    """A new database with a role that owns it and one for the service."""

    server: PostgresServer
    database: str
    owner: str
    service: str

    def url(self, role: str) -> str:
        return self.server.url(self.database).replace("postgres@", f"{quote(role)}@")

    def settings(self, home: Path, *, separate: bool = True) -> Settings:
        owner = self.url(self.owner) if separate else None
        return Settings(
            home=home,
            database_url=self.url(self.service if separate else self.owner),
            database_owner_url=owner,
            secret_key=SecretStr(KEY),
            min_free_bytes=0,
            allowed_hosts=["testserver"],
        )


@pytest.fixture
def roles(postgres: PostgresServer) -> Roles:
    return make_roles(postgres)


def make_roles(postgres: PostgresServer) -> Roles:
    tag = uuid.uuid4().hex[:8]
    made = Roles(postgres, f"two_{tag}", f"owner {tag}", f"service-{tag}")  # names that need quotes
    with psycopg.connect(postgres.url("postgres").replace("+psycopg", ""), autocommit=True) as connection:
        for role in (made.owner, made.service):
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
        names = (sql.Identifier(made.database), sql.Identifier(made.owner))
        connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(*names))
    return made


def _context(settings: Settings) -> ServiceContext:
    context = build_context(settings)
    serving._upgrade_database(context)
    return context


@pytest.mark.slow
@pytest.mark.ci
def test_the_services_role_serves_and_cannot_take_a_trigger_off(
    roles: Roles, tiny_release: Path, tmp_path: Path
) -> None:
    settings = roles.settings(tmp_path / "home")
    context = _context(settings)
    assert not owns_tables(context.database.engine)
    with context.database.write() as session:
        put_release(session, context.keys.audit, tiny_release, settings.releases_folder)
    keys = add_people(context)
    app = create_app(settings)
    with TestClient(app) as client:
        service = Service(client, app.state.context, keys)
        case = service.add_case(patient="p")
        service.outside_label(case["id"], "reader", "blast")
        assert service.post("admin", "/v1/evaluations", json={}).status_code == 202
        assert work_off(context) == 1
        with context.database.read() as session:
            assert verify_all(session, context).faults == []
    _refused(context.database)
    _erase(context)
    assert write_backup(context, tmp_path / "backup")["n_files"] > 5
    context.database.engine.dispose()


def _erase(context: ServiceContext) -> None:
    """Only their owner writes tables anew: `db upgrade` ends an erasure of the service."""
    serving_only = build_context(context.settings.model_copy(update={"database_owner_url": None}))
    report = erase_patient_everywhere(serving_only, "lead", "p", "asked")
    assert report.cases == 1
    assert "does not own the tables; set DATABASE_OWNER_URL" in str(report.unfinished)
    serving._upgrade_database(context)
    with context.database.read() as session:
        assert session.execute(select(Erasure.finished_at)).scalar_one() is not None
    serving_only.database.engine.dispose()


def _refused(database: Database) -> None:
    """What only an owner may do, one statement per transaction."""
    statements = ["CREATE TABLE public.mine (x int)", "UPDATE alembic_version SET version_num = '0001'"]
    for table in APPEND_ONLY:
        statements += [
            f"ALTER TABLE {table} DISABLE TRIGGER USER",
            f"DROP TRIGGER {table}_append_only ON {table}",
            f"DROP FUNCTION {table}_append_only() CASCADE",
            f"DROP TABLE {table} CASCADE",
            f"TRUNCATE {table} CASCADE",
            f"UPDATE {table} SET created_at = created_at" if table != "case_changes" else "DELETE FROM case_changes",
        ]
    statements.append("SET session_replication_role = replica")
    for statement in statements:
        with database.write() as session, pytest.raises(DBAPIError, match=r"must be owner|permission denied"):
            session.execute(text(statement))


def test_one_role_for_both_is_allowed_and_warned_about(
    roles: Roles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context = _context(roles.settings(tmp_path / "home", separate=False))
    assert f"the role {roles.owner} of DATABASE_URL owns the tables" in capsys.readouterr().err
    assert owns_tables(context.database.engine)
    context.database.engine.dispose()


def test_tables_of_the_services_role_are_not_migrated_by_another_one(roles: Roles, tmp_path: Path) -> None:
    turned = Roles(roles.server, roles.database, roles.service, roles.owner)  # the first one to upgrade owns them
    _context(roles.settings(tmp_path / "home", separate=False)).database.engine.dispose()
    context = build_context(turned.settings(tmp_path / "home"))
    with pytest.raises(ValueError, match=f'REASSIGN OWNED BY "{roles.owner}" TO "{roles.service}"'):
        serving._upgrade_database(context)
    context.database.engine.dispose()


@pytest.mark.slow
def test_a_backup_comes_back_to_the_owner(
    roles: Roles, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = _context(roles.settings(tmp_path / "home"))
    write_backup(context, tmp_path / "backup")
    context.database.engine.dispose()
    elsewhere = make_roles(postgres)
    settings = elsewhere.settings(tmp_path / "elsewhere")
    monkeypatch.setenv("SECONDREAD_HOME", str(settings.home))
    monkeypatch.setenv("SECONDREAD_DATABASE_URL", str(settings.database_url))
    monkeypatch.setenv("SECONDREAD_DATABASE_OWNER_URL", str(settings.database_owner_url))
    monkeypatch.setenv("SECONDREAD_SECRET_KEY", KEY)
    done = run_here("db", "restore", "--without-list", tmp_path / "backup")
    assert done.returncode == 0, done.stderr
    again = _context(settings)
    with again.database.read() as session:
        assert verify_all(session, again).restores != []
    _refused(again.database)
    again.database.engine.dispose()
