"""What only the tests of faults have."""

from collections.abc import Iterator

import pytest

from tests.support.postgres import PostgresServer


@pytest.fixture
def own_postgres(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A PostgreSQL that a test may stop or freeze."""
    server = PostgresServer(postgres.binaries)
    yield server
    server.stop()
