"""A running service on a fresh database: SQLite, and PostgreSQL where a test is marked ``both_databases``."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from app.main import create_app
from app.platform.database import Database
from app.platform.migrate import upgrade
from app.releases.adding import add_release
from app.settings import Settings
from tests.support.postgres import PostgresServer
from tests.support.service import Service
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


@pytest.fixture
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a fresh migrated database."""
    if getattr(request, "param", "sqlite") == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "service.db")
        return f"sqlite:///{tmp_path / 'service.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(server.create(request.getfixturevalue("postgres_template")))


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    """Settings of a fresh service."""
    return Settings(
        home=tmp_path / "home",
        database_url=database_url,
        allowed_hosts=["testserver"],
        min_free_bytes=0,
        # the same coins and partitions in every run
        secret_key=SecretStr("the same coins and partitions in every run"),
    )


@pytest.fixture
def service(settings: Settings, tiny_release: Path) -> Iterator[Service]:
    """A service with a release, an admin, a viewer, two annotators and an outside system, each with a key.

    Whatever a test does, an evaluation from the last of the snapshots that were made on the way equals one from all
    rows.
    """
    settings.home.mkdir()
    app = create_app(settings)
    context = app.state.context
    with context.database.write() as session:
        add_release(session, context.secret, tiny_release, settings.releases_folder)
    with TestClient(app, raise_server_exceptions=False) as client:
        running = Service(client, context)
        running.add_people()
        running.before_change = lambda: write_snapshots(context)
        yield running
        assert_snapshots_tell_all(context)
