"""Migrations make what the tables say, on both databases, and can be undone."""

from pathlib import Path

import pytest
from sqlalchemy import inspect, text

import migrations
from app.database.engine import Database
from app.database.migration import (
    alembic_config,
    check_schema,
    downgrade_schema,
    require_current_schema,
    upgrade_schema,
)
from app.worker import BEAT
from tests.security.test_one_key import contents
from tests.support.postgres import PostgresServer
from tests.support.process import Installation


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return Database(f"sqlite:///{tmp_path / 'empty.db'}")
    server: PostgresServer = request.getfixturevalue("postgres")
    return Database(server.url(server.create()))


def test_the_start_asks_for_the_newest_migration() -> None:
    from alembic.script import ScriptDirectory

    assert ScriptDirectory.from_config(alembic_config()).get_heads() == [migrations.HEAD]


def test_up_check_down_up(empty: Database) -> None:
    with pytest.raises(ValueError, match="db upgrade"):
        require_current_schema(empty.engine)
    upgrade_schema(empty.engine)
    check_schema(empty.engine)
    require_current_schema(empty.engine)
    tables = set(inspect(empty.engine).get_table_names())
    downgrade_schema(empty.engine, "base")
    assert set(inspect(empty.engine).get_table_names()) == {"alembic_version"}
    upgrade_schema(empty.engine)
    assert set(inspect(empty.engine).get_table_names()) == tables
    upgrade_schema(empty.engine)  # again changes nothing
    empty.engine.dispose()


#: Every way to open a database.
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("db", "upgrade"),
    ("db", "verify"),
    ("db", "rotate-key", "--reason", "a test"),
    ("user", "list"),
    ("demo",),
    ("serve",),
    ("worker",),
)


def test_a_database_of_a_development_version_is_refused_and_stays_as_it_is(empty: Database, tmp_path: Path) -> None:
    made = Installation(tmp_path / "home", empty.engine.url.render_as_string(hide_password=False))
    made.run("db", "upgrade")
    with empty.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '0038'"))
    before = everything(empty, tmp_path)
    for arguments in COMMANDS:
        done = made.run(*arguments, check=False)
        line = "was made by a development version: export it, start a new HOME"
        assert (done.returncode, line in done.stderr, done.stderr.count("\n")) == (1, True, 1), (arguments, done.stderr)
        assert everything(empty, tmp_path) == before, arguments


def everything(database: Database, folder: Path) -> tuple[object, dict[str, bytes]]:
    """Every row, and every file but the sign of life of a worker, once the database is closed."""
    rows = contents(database)
    database.engine.dispose()
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != BEAT]
    return rows, {str(path.relative_to(folder)): path.read_bytes() for path in paths}
