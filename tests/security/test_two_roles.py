"""On PostgreSQL a role that owns the tables, and the service's, which owns nothing."""

import uuid
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from fastapi.testclient import TestClient
from psycopg import sql
from pydantic import SecretStr
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from app.audit.verify import verify_all
from app.cli import serving
from app.context import ServiceContext, build_context
from app.database.engine import Database
from app.database.migration import owns_tables
from app.database.tables import APPEND_ONLY, Erasure
from app.main import create_app
from app.maintenance.backup import write_backup
from app.maintenance.erasure import erase_patient_everywhere
from app.settings import Settings
from tests.support.command import run_here
from tests.support.jobs import work_off
from tests.support.postgres import PostgresServer
from tests.support.service import Service, add_people, put_release

KEY = SecretStr("the same coins and partitions in every run")


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
            secret_key=KEY,
            min_free_bytes=0,
            allowed_hosts=["testserver"],
        )


@pytest.fixture
def roles(postgres: PostgresServer) -> Roles:
    return _roles(postgres)


def _roles(postgres: PostgresServer) -> Roles:
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
    elsewhere = _roles(postgres)
    settings = elsewhere.settings(tmp_path / "elsewhere")
    monkeypatch.setenv("SECONDREAD_HOME", str(settings.home))
    monkeypatch.setenv("SECONDREAD_DATABASE_URL", str(settings.database_url))
    monkeypatch.setenv("SECONDREAD_DATABASE_OWNER_URL", str(settings.database_owner_url))
    monkeypatch.setenv("SECONDREAD_SECRET_KEY", KEY.get_secret_value())
    done = run_here("db", "restore", "--without-list", tmp_path / "backup")
    assert done.returncode == 0, done.stderr
    again = _context(settings)
    with again.database.read() as session:
        assert verify_all(session, again).restores != []
    _refused(again.database)
    again.database.engine.dispose()
