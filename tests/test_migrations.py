"""Migrations make what the tables say, on both databases, and can be undone."""

from pathlib import Path

import pytest
from sqlalchemy import inspect

from app.database import Database
from app.migrate import check, downgrade, require_head, upgrade
from tests.support.postgres import PostgresServer


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return Database(f"sqlite:///{tmp_path / 'empty.db'}")
    server: PostgresServer = request.getfixturevalue("postgres")
    return Database(server.url(server.create()))


def test_up_check_down_up(empty: Database) -> None:
    with pytest.raises(ValueError, match="db upgrade"):
        require_head(empty.engine)
    upgrade(empty.engine)
    check(empty.engine)
    require_head(empty.engine)
    tables = set(inspect(empty.engine).get_table_names())
    downgrade(empty.engine, "base")
    assert set(inspect(empty.engine).get_table_names()) == {"alembic_version"}
    upgrade(empty.engine)
    assert set(inspect(empty.engine).get_table_names()) == tables
    upgrade(empty.engine)  # again changes nothing
    empty.engine.dispose()
