"""A running service on a fresh database: SQLite, and PostgreSQL where a test is marked ``both_databases``."""

import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import SecretStr

from app.audit.installation import claim_database
from app.audit.verify import check_audit
from app.context import build_context
from app.database.engine import Database
from app.database.migration import upgrade_schema
from app.settings import Settings
from tests.support.homes import process, two_processes
from tests.support.postgres import PostgresServer
from tests.support.process import METRICS_TOKEN
from tests.support.service import KEY, Service, add_people, cell_png, collect, put_release, show_at_once
from tests.support.snapshots import assert_snapshots_tell_all, write_snapshots


@dataclass(frozen=True)
class Template:
    """What a service begins with, made once: a database to copy, a HOME to copy, and everybody's keys."""

    database: str
    home: Path
    keys: dict[str, str]


@pytest.fixture(scope="session")
def sqlite_empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite database to copy."""
    path = tmp_path_factory.mktemp("template") / "empty.db"
    database = Database(f"sqlite:///{path}")
    upgrade_schema(database.engine)
    database.engine.dispose()
    return _in_one_file(path)


def _in_one_file(path: Path) -> Path:
    """Bring what stands in the write-ahead log into the database, which then can be copied."""
    database = Database(f"sqlite:///{path}")
    with database.engine.connect() as connection:
        connection.exec_driver_sql("ROLLBACK")
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.exec_driver_sql("BEGIN")
    database.engine.dispose()
    return path


@pytest.fixture(scope="session")
def postgres_empty(postgres: PostgresServer) -> str:
    """Name of a migrated PostgreSQL database to copy."""
    name = postgres.create()
    database = Database(postgres.url(name))
    upgrade_schema(database.engine)
    database.engine.dispose()
    return name


def _fill(folder: Path, url: str, release: Path) -> dict[str, str]:
    """Add a release, an admin, a viewer, two annotators and an outside system; gives a key for each."""
    settings = _settings(folder, url)
    settings.home.mkdir()
    context = build_context(settings)
    show_at_once(context.database)  # before the rows are covered
    claim_database(context.database, context.keys.audit)
    with context.database.write() as session:
        put_release(session, context.keys.audit, release, settings.releases_folder)
    keys = add_people(context)
    context.database.engine.dispose()
    return keys


@pytest.fixture(scope="session")
def sqlite_served(sqlite_empty: Path, tiny_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Template:
    """A service on SQLite before its first case."""
    folder = tmp_path_factory.mktemp("served")
    path = folder / "service.db"
    shutil.copy(sqlite_empty, path)
    keys = _fill(folder, f"sqlite:///{path}", tiny_release)
    return Template(str(_in_one_file(path)), folder / "home", keys)


@pytest.fixture(scope="session")
def postgres_served(
    postgres: PostgresServer, postgres_empty: str, tiny_release: Path, tmp_path_factory: pytest.TempPathFactory
) -> Template:
    """A service on PostgreSQL before its first case."""
    folder = tmp_path_factory.mktemp("served")
    name = postgres.create(postgres_empty)
    return Template(name, folder / "home", _fill(folder, postgres.url(name), tiny_release))


def _database(request: pytest.FixtureRequest, kind: str, folder: Path, template: Template | None) -> str:
    """URL of a fresh database of this kind: migrated, or the copy of a template."""
    if kind == "sqlite":
        shutil.copy(template.database if template else request.getfixturevalue("sqlite_empty"), folder / "service.db")
        return f"sqlite:///{folder / 'service.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(server.create(template.database if template else request.getfixturevalue("postgres_empty")))


def _template(request: pytest.FixtureRequest, kind: str) -> Template:
    template: Template = request.getfixturevalue("sqlite_served" if kind == "sqlite" else "postgres_served")
    return template


def _settings(folder: Path, url: str) -> Settings:
    return Settings(
        home=folder / "home",
        database_url=url,
        allowed_hosts=["testserver"],
        min_free_bytes=0,
        metrics_token=SecretStr(METRICS_TOKEN),
        # the same coins and partitions in every run
        secret_key=SecretStr(KEY),
    )


@contextmanager
def _running(settings: Settings, template: Template) -> Iterator[Service]:
    """A service with a release, an admin, a viewer, two annotators and an outside system, each with a key."""
    shutil.copytree(template.home, settings.home)
    with process(settings, template.keys) as running:
        yield running


@pytest.fixture
def two(
    request: pytest.FixtureRequest, settings: Settings, database_kind: str, bucket: str, tmp_path: Path
) -> Iterator[tuple[Service, Service]]:
    """Two services with empty HOMEs, `one` and `two` of the test's folder, on one database and one bucket."""
    template = _template(request, database_kind)
    with two_processes(settings, bucket, template.home, template.keys, tmp_path) as both:
        yield both


@pytest.fixture
def database_kind(request: pytest.FixtureRequest) -> str:
    """Database of this test: ``sqlite`` or ``postgresql``."""
    return str(getattr(request, "param", "sqlite"))


@pytest.fixture
def database_url(request: pytest.FixtureRequest, database_kind: str, tmp_path: Path) -> str:
    """URL of a fresh database: of the service's, where a test has one, else with tables and nothing in them."""
    served = {"service", "two"} & set(request.fixturenames)
    template = _template(request, database_kind) if served else None
    return _database(request, database_kind, tmp_path, template)


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    """Settings of a fresh service."""
    return _settings(tmp_path, database_url)


@pytest.fixture
def service(request: pytest.FixtureRequest, settings: Settings, database_kind: str) -> Iterator[Service]:
    """A fresh service for one test.

    Whatever a test does, every row is one that an audit event wrote, and an evaluation from the last of the snapshots
    that were made on the way equals one from all rows, unless the test writes past the service: a fifth of the time
    of these tests, so that this is seen in a quarter of them, the same in each run, and in all by ``--all-databases``.
    """
    snapshots = request.config.getoption("all_databases") or zlib.crc32(request.node.nodeid.encode()) % 4 == 0
    with _running(settings, _template(request, database_kind)) as running:
        if snapshots:
            running.before_change = lambda: write_snapshots(running.context)
        yield running
        if snapshots and not running.written_past:
            assert_snapshots_tell_all(running.context)
        assert_every_row_is_proven(running)


def assert_every_row_is_proven(service: Service) -> None:
    """Nothing that the service does may write a covered row without its event."""
    if not service.written_past:
        with service.context.database.read_moment() as session:
            faults = check_audit(session, service.context.keys.audit).faults
        unproven = [fault for fault in faults if ": " in fault]  # of rows: a test may have rotated the key
        assert unproven == [], "a test that writes rows past the service says so by `service.written_past = True`"


@contextmanager
def _shared(request: pytest.FixtureRequest, kind: str, folder: Path) -> Iterator[Service]:
    template = _template(request, kind)
    with _running(_settings(folder, _database(request, kind, folder, template)), template) as running:
        yield running
        assert_snapshots_tell_all(running.context)


@pytest.fixture(scope="module")
def shared_service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service for all tests of a module that do not mind what the others stored."""
    with _shared(request, getattr(request, "param", "sqlite"), tmp_path_factory.mktemp("shared")) as running:
        yield running


@pytest.fixture(scope="session")
def populated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with 24 cases of 8 patients, which none, one, two or three outside annotators have read: to look at.

    Requests that would change something are refused by the fixture.
    """
    with _shared(request, "sqlite", tmp_path_factory.mktemp("populated")) as running:
        collect(running, [cell_png(number) for number in range(24)], patients=True)
        with running.read_only():
            yield running
