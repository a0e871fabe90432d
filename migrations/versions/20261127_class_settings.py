"""Make the table of the classes' names, order, groups and keys."""

import sqlalchemy as sa
from alembic import op

from app.database.tables.append_only import create_replace_trigger, create_triggers, drop_triggers

revision = "20261127"
down_revision = "20261126"
branch_labels = None
depends_on = None

_TABLE = "class_settings"


def upgrade() -> None:
    op.create_table(
        _TABLE,
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("classes", sa.JSON(), nullable=False),
        sa.Column("created_by", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["created_by"], ["accounts.id"], name=op.f("fk_class_settings_created_by_accounts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_class_settings")),
        sa.UniqueConstraint("version", name=op.f("uq_class_settings_version")),
    )
    dialect = op.get_bind().dialect.name
    for statement in create_triggers(dialect, _TABLE):
        op.execute(statement)
    if dialect == "sqlite":
        op.execute(create_replace_trigger(_TABLE, ("id = NEW.id", "version = NEW.version")))


def downgrade() -> None:
    for statement in drop_triggers(op.get_bind().dialect.name, _TABLE):
        op.execute(statement)
    op.drop_table(_TABLE)
