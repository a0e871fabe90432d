"""What only the tests of faults have."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import missing
from tests.faults.small_disk import SmallDisk
from tests.support.postgres import PostgresServer


@pytest.fixture
def own_postgres(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A PostgreSQL that a test may stop or freeze."""
    server = PostgresServer(postgres.binaries)
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def any_database(request: pytest.FixtureRequest) -> str | None:
    """URL of a fresh database of PostgreSQL; None for SQLite, whose database lies in HOME."""
    if request.param == "sqlite":
        return None
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(server.create())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A file system of 64 MB."""
    try:
        disk = SmallDisk(tmp_path / "small", 64)
    except PermissionError:
        missing("the right to mount a small file system")
    with disk:
        yield disk
