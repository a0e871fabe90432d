"""A running service on a fresh database: SQLite, and PostgreSQL where a test is marked ``both_databases``."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import SecretStr

from app.main import attach, create_app
from app.platform.database import Database
from app.platform.migrate import upgrade
from app.releases.adding import add_release
from app.settings import Settings
from tests.support.postgres import PostgresServer
from tests.support.service import Service, cell_png, collect
from tests.support.snapshots import assert_snapshots_tell_all, write_snapshots


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite database to copy."""
    path = tmp_path_factory.mktemp("template") / "empty.db"
    database = Database(f"sqlite:///{path}")
    upgrade(database.engine)
    with database.engine.connect() as connection:
        connection.exec_driver_sql("ROLLBACK")
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.exec_driver_sql("BEGIN")
    database.engine.dispose()
    return path


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> str:
    """Name of a migrated PostgreSQL database to copy."""
    name = postgres.create()
    database = Database(postgres.url(name))
    upgrade(database.engine)
    database.engine.dispose()
    return name


def _database(request: pytest.FixtureRequest, kind: str, folder: Path) -> str:
    """URL of a fresh migrated database of this kind."""
    if kind == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), folder / "service.db")
        return f"sqlite:///{folder / 'service.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(server.create(request.getfixturevalue("postgres_template")))


def _settings(folder: Path, url: str) -> Settings:
    return Settings(
        home=folder / "home",
        database_url=url,
        allowed_hosts=["testserver"],
        min_free_bytes=0,
        # the same coins and partitions in every run
        secret_key=SecretStr("the same coins and partitions in every run"),
    )


#: Applications that no service uses now: to build one takes longer than most tests.
_IDLE: list[FastAPI] = []


@contextmanager
def _running(settings: Settings, release: Path) -> Iterator[Service]:
    """A service with a release, an admin, a viewer, two annotators and an outside system, each with a key."""
    settings.home.mkdir()
    app = _IDLE.pop() if _IDLE else create_app(settings)
    attach(app, settings)
    context = app.state.context
    with context.database.write() as session:
        add_release(session, context.secret, release, settings.releases_folder)
    with TestClient(app, raise_server_exceptions=False) as client:
        running = Service(client, context)
        running.add_people()
        yield running
    _IDLE.append(app)


@pytest.fixture
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a fresh migrated database."""
    return _database(request, getattr(request, "param", "sqlite"), tmp_path)


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    """Settings of a fresh service."""
    return _settings(tmp_path, database_url)


@pytest.fixture
def service(settings: Settings, tiny_release: Path) -> Iterator[Service]:
    """A fresh service for one test.

    Whatever a test does, an evaluation from the last of the snapshots that were made on the way equals one from all
    rows.
    """
    with _running(settings, tiny_release) as running:
        running.before_change = lambda: write_snapshots(running.context)
        yield running
        assert_snapshots_tell_all(running.context)


@pytest.fixture(scope="module")
def shared_service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_release: Path
) -> Iterator[Service]:
    """A service for all tests of a module that do not mind what the others stored."""
    folder = tmp_path_factory.mktemp("shared")
    url = _database(request, getattr(request, "param", "sqlite"), folder)
    with _running(_settings(folder, url), tiny_release) as running:
        yield running
        assert_snapshots_tell_all(running.context)


@pytest.fixture(scope="session")
def populated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_release: Path
) -> Iterator[Service]:
    """A service with 24 cases of 8 patients, which none, one, two or three outside annotators have read: to look at.

    Requests that would change something are refused by the fixture.
    """
    folder = tmp_path_factory.mktemp("populated")
    with _running(_settings(folder, _database(request, "sqlite", folder)), tiny_release) as running:
        collect(running, [cell_png(number) for number in range(24)], patients=True)
        with running.read_only():
            yield running
        assert_snapshots_tell_all(running.context)
