"""The database knows its key, and on SQLite REPLACE cannot rewrite what is append-only.

The check value of the key is filled in by the first process that starts with the right one.
"""

import sqlalchemy as sa
from alembic import op

from app.tables.append_only import create_replace_trigger, create_triggers, drop_replace_trigger, drop_triggers

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_KEYS = {
    "labels": (
        "id = NEW.id",
        "supersedes_id = NEW.supersedes_id",
        "NEW.supersedes_id IS NULL AND supersedes_id IS NULL AND case_id = NEW.case_id "
        "AND annotator_id = NEW.annotator_id",
    ),
    "predictions": ("id = NEW.id", "case_id = NEW.case_id AND release_id = NEW.release_id"),
    "audit_events": ("sequence = NEW.sequence",),
    "policies": ("id = NEW.id", "version = NEW.version"),
    "looks": (
        "id = NEW.id",
        "case_id = NEW.case_id AND policy_version = NEW.policy_version AND release_id = NEW.release_id",
    ),
    "exposures": ("id = NEW.id", "case_id = NEW.case_id AND annotator_id = NEW.annotator_id"),
    "case_changes": ("sequence = NEW.sequence AND case_id = NEW.case_id",),
    "installation": ("id = NEW.id",),
}


def upgrade() -> None:
    op.create_table(
        "installation",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("key_check", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_installation")),
    )
    dialect = op.get_bind().dialect.name
    for statement in create_triggers(dialect, "installation"):
        op.execute(statement)
    if dialect == "sqlite":
        for table, keys in _KEYS.items():
            op.execute(create_replace_trigger(table, keys))


def downgrade() -> None:
    dialect = op.get_bind().dialect.name
    if dialect == "sqlite":
        for table in _KEYS:
            op.execute(drop_replace_trigger(table))
    for statement in drop_triggers(dialect, "installation"):
        op.execute(statement)
    op.drop_table("installation")
