"""Alembic environment: the service's engine and metadata, one transaction for each migration."""

from alembic import context
from sqlalchemy import Connection

from app.database.engine import make_engine
from app.database.tables import BaseTable
from app.settings import Settings


def _migrate(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=BaseTable.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        transaction_per_migration=True,
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    _migrate(given)
else:
    engine = make_engine(Settings().sqlalchemy_url)
    with engine.execution_options(sqlite_begin="BEGIN IMMEDIATE").connect() as opened:
        _migrate(opened)
