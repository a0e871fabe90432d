"""Migration of the database, and the roles that may use it."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, inspect, make_url, text

import migrations
from app.database.tables.append_only import EVERY_APPEND_ONLY

_OWNER = (
    "SELECT tableowner FROM pg_tables WHERE tablename = 'audit_events' AND schemaname = current_schema() "
    "AND NOT pg_has_role(current_user, tableowner, 'USAGE')"
)
_OWNED = (
    "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' "
    "AND n.nspname IN (current_schema(), 'dbos') "
    "AND (pg_has_role(current_user, c.relowner, 'MEMBER') OR pg_has_role(current_user, n.nspowner, 'MEMBER'))"
)


def require_owner(owner: Engine) -> None:
    """Refuse to migrate as a role that does not own the tables that are there."""
    with owner.connect() as connection:
        other = connection.execute(text(_OWNER)).scalar_one_or_none()
    if other is not None:
        quoted = owner.dialect.identifier_preparer.quote
        statement = f"REASSIGN OWNED BY {quoted(other)} TO {quoted(str(owner.url.username))}"
        raise ValueError(
            f"the tables belong to the role {other}, not to that of DATABASE_OWNER_URL; in this database a superuser "
            f"runs once: {statement}"
        )


def job_engine_url(url: str) -> str:
    """Address of the job engine's own tables: a file beside ours on SQLite, a schema in ours on PostgreSQL."""
    if url.startswith("sqlite"):
        return f"sqlite:///{Path(str(make_url(url).database)).with_name('jobs.db')}"
    return url.replace("+psycopg", "", 1)


def upgrade_job_engine(owner: Engine) -> None:
    """Bring the job engine's own tables up to date on PostgreSQL; on SQLite a worker makes its file."""
    if owner.dialect.name == "postgresql":
        from dbos import run_dbos_database_migrations

        run_dbos_database_migrations(job_engine_url(owner.url.render_as_string(hide_password=False)))


def empty_job_engine(owner: Engine) -> None:
    """Remove what the job engine remembers: after a restore the jobs' rows are all there is."""
    if owner.dialect.name == "sqlite":
        Path(str(make_url(job_engine_url(str(owner.url))).database)).unlink(missing_ok=True)
        return
    with owner.begin() as connection:
        connection.execute(text("DROP SCHEMA IF EXISTS dbos CASCADE"))
    upgrade_job_engine(owner)


def grant_service_role(owner: Engine, role: str) -> None:
    """Let a role use every table, and only add to those that are append-only."""
    name = owner.dialect.identifier_preparer.quote(role)
    statements = []
    for schema in ("public", "dbos"):
        statements += [
            f"GRANT USAGE ON SCHEMA {schema} TO {name}",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {name}",
            f"GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA {schema} TO {name}",
        ]
    statements.append(f"REVOKE UPDATE, DELETE ON {', '.join(EVERY_APPEND_ONLY)} FROM {name}")
    statements.append(f"REVOKE INSERT, UPDATE, DELETE ON alembic_version FROM {name}")
    with owner.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def owns_tables(engine: Engine) -> bool:
    """Whether a service with this engine could take triggers off, or drop tables."""
    if engine.dialect.name != "postgresql":
        return False
    with engine.connect() as connection:
        return bool(connection.execute(text(_OWNED)).scalar_one())


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


def upgrade_schema(engine: Engine) -> None:
    """Run the migrations that this database lacks, and those of the job engine."""
    from alembic import command

    require_known(engine)
    upgrade_job_engine(engine)
    _run_migrations(engine, lambda config: command.upgrade(config, "head"))


def downgrade_schema(engine: Engine, revision: str) -> None:
    """Undo migrations down to a revision."""
    from alembic import command

    _run_migrations(engine, lambda config: command.downgrade(config, revision))


def check_schema(engine: Engine) -> None:
    """Compare the tables with the migrations; raises Alembic's error where they differ."""
    from alembic import command

    _run_migrations(engine, command.check)


def require_current_schema(engine: Engine) -> None:
    """Refuse a database that lacks migrations."""
    with engine.connect() as connection:
        current = _read_stored_revision(connection)
    if current == migrations.HEAD:
        return
    require_known(engine)
    state = "has no tables yet" if current is None else f"is at revision {current}, not {migrations.HEAD}"
    raise ValueError(f"the database {state}; run `secondread db upgrade` first")


def _read_stored_revision(connection: Connection) -> str | None:
    """Revision of a database as Alembic has written it down, None for an empty one."""
    if not inspect(connection).has_table(_VERSION_TABLE):
        return None
    revision: str | None = connection.execute(text(f"SELECT version_num FROM {_VERSION_TABLE}")).scalar()  # noqa: S608
    return revision


def require_known(engine: Engine) -> None:
    """Refuse a database at a revision that this program does not know; nothing is written."""
    with engine.connect() as connection:
        current = _read_stored_revision(connection)
    if current is not None:
        require_known_revision(current, "the database")


def require_known_revision(revision: str | None, what: str) -> None:
    """Refuse a revision that this program does not know."""
    from alembic.script import ScriptDirectory

    revisions = {script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()}
    if revision not in revisions:
        raise ValueError(
            f"{what} (revision {revision or 'unknown'}) was made by a development version: export it, start a new HOME"
        )


def create_if_new(engine: Engine) -> None:
    """Make the tables of a new SQLite database; any other database must have the current schema already."""
    if engine.dialect.name == "sqlite" and not inspect(engine).has_table(_VERSION_TABLE):
        upgrade_schema(engine)
    require_current_schema(engine)


def _run_migrations(engine: Engine, work: "Callable[[Config], None]") -> None:
    config = alembic_config()
    with engine.execution_options(sqlite_begin="BEGIN IMMEDIATE").connect() as connection:
        config.attributes["connection"] = connection
        work(config)
        connection.commit()
