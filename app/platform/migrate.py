"""Bringing a database to the current schema."""

from collections.abc import Callable
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, inspect

import migrations
from app.platform import durable


def alembic_config() -> Config:
    """Alembic's configuration, wherever the package is installed."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("file_template", "%%(year)d%%(month).2d%%(day).2d_%%(slug)s")
    config.set_main_option("path_separator", "os")
    return config


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Run the migrations that this database lacks; first those of DBOS, on which the service's build.

    Raises:
        ValueError: the schema is newer than this program.
    """
    _require_known(engine)
    durable.create_tables(engine.url.render_as_string(hide_password=False))
    _run(engine, lambda config: command.upgrade(config, revision))


def downgrade(engine: Engine, revision: str) -> None:
    """Undo migrations down to a revision."""
    _run(engine, lambda config: command.downgrade(config, revision))


def check(engine: Engine) -> None:
    """Compare the tables with the migrations; raises Alembic's error where they differ."""
    _run(engine, command.check)


def require_head(engine: Engine) -> None:
    """Refuse a database that lacks migrations.

    Raises:
        ValueError: the schema is not the current one.
    """
    current, head = revisions(engine)
    if current != head:
        state = "has no tables yet" if current is None else f"is at revision {current}, not {head}"
        raise ValueError(f"the database {state}; run `secondread db upgrade` first")


def revisions(engine: Engine) -> tuple[str | None, str | None]:
    """Revision of a database, None for an empty one, and that of this program.

    Raises:
        ValueError: this program does not know that of the database.
    """
    return _require_known(engine), ScriptDirectory.from_config(alembic_config()).get_current_head()


def _require_known(engine: Engine) -> str | None:
    """Revision of a database, None for an empty one.

    Raises:
        ValueError: this program does not know it.
    """
    with engine.connect() as connection:
        current = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()}
    if current is not None and current not in known:
        raise ValueError(
            f"the database is at revision {current}, newer than this program: install the version that upgraded it"
        )
    return current


def create_if_new(engine: Engine) -> None:
    """Make the tables of a new SQLite database; any other database must have the current schema already.

    Raises:
        ValueError: the schema is older than this code, or a PostgreSQL database is still empty.
    """
    if engine.dialect.name == "sqlite" and not inspect(engine).has_table("alembic_version"):
        upgrade(engine)
    require_head(engine)


def _run(engine: Engine, work: Callable[[Config], None]) -> None:
    config = alembic_config()
    with engine.execution_options(sqlite_begin="BEGIN IMMEDIATE").connect() as connection:
        config.attributes["connection"] = connection
        work(config)
        connection.commit()
