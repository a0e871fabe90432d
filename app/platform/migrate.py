"""Bringing a database to the current schema.

Every process asks at its start whether a database has that schema, and few migrate: Alembic is loaded by those.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, inspect, text

import migrations
from app.platform import durable

if TYPE_CHECKING:
    from alembic.config import Config

_VERSION_TABLE = "alembic_version"


def alembic_config() -> "Config":
    """Alembic's configuration, wherever the package is installed."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("file_template", "%%(year)d%%(month).2d%%(day).2d_%%(slug)s")
    config.set_main_option("path_separator", "os")
    return config


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Run the migrations that this database lacks; first those of DBOS, on which the service's build.

    Raises:
        ValueError: a development version made the database.
    """
    from alembic import command

    require_known(engine)
    durable.create_tables(engine.url.render_as_string(hide_password=False))
    _run(engine, lambda config: command.upgrade(config, revision))


def downgrade(engine: Engine, revision: str) -> None:
    """Undo migrations down to a revision."""
    from alembic import command

    _run(engine, lambda config: command.downgrade(config, revision))


def check(engine: Engine) -> None:
    """Compare the tables with the migrations; raises Alembic's error where they differ."""
    from alembic import command

    _run(engine, command.check)


def require_head(engine: Engine) -> None:
    """Refuse a database that lacks migrations.

    Raises:
        ValueError: the schema is not the current one.
    """
    with engine.connect() as connection:
        current = _stored(connection)
    if current == migrations.HEAD:
        return
    require_known(engine)
    state = "has no tables yet" if current is None else f"is at revision {current}, not {migrations.HEAD}"
    raise ValueError(f"the database {state}; run `secondread db upgrade` first")


def _stored(connection: Connection) -> str | None:
    """Revision of a database as Alembic has written it down, None for an empty one."""
    if not inspect(connection).has_table(_VERSION_TABLE):
        return None
    found: str | None = connection.execute(text(f"SELECT version_num FROM {_VERSION_TABLE}")).scalar()  # noqa: S608
    return found


def require_known(engine: Engine) -> None:
    """Refuse a database at a revision that this program does not know; nothing is written.

    Raises:
        ValueError: a development version made it.
    """
    with engine.connect() as connection:
        current = _stored(connection)
    if current is not None:
        require_known_revision(current, "the database")


def require_known_revision(revision: str | None, what: str) -> None:
    """Refuse a revision that this program does not know.

    Args:
        revision: of a database, or of a backup; None where a backup does not name it.
        what: has it.

    Raises:
        ValueError: a development version made it.
    """
    from alembic.script import ScriptDirectory

    known = {script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()}
    if revision not in known:
        raise ValueError(
            f"{what} (revision {revision or 'unknown'}) was made by a development version: export it, start a new HOME"
        )


def create_if_new(engine: Engine) -> None:
    """Make the tables of a new SQLite database; any other database must have the current schema already.

    Raises:
        ValueError: the schema is older than this code, or a PostgreSQL database is still empty.
    """
    if engine.dialect.name == "sqlite" and not inspect(engine).has_table(_VERSION_TABLE):
        upgrade(engine)
    require_head(engine)


def _run(engine: Engine, work: "Callable[[Config], None]") -> None:
    config = alembic_config()
    with engine.execution_options(sqlite_begin="BEGIN IMMEDIATE").connect() as connection:
        config.attributes["connection"] = connection
        work(config)
        connection.commit()
