"""Make the tables of signatures, and note fresh sign-ins and results that differ from what was signed."""

import sqlalchemy as sa
from alembic import op

from app.database.tables.append_only import create_replace_trigger, create_triggers, drop_triggers

revision = "20261202"
down_revision = "20261201"
branch_labels = None
depends_on = None

_TABLE, _REMARKS = "specimen_signatures", "specimen_remarks"
# what PostgreSQL must keep no statistics of, since they would outlive a patient who is erased
_NO_STATISTICS = ("comment", "reason", "digest_key")


def upgrade() -> None:
    op.create_table(
        _TABLE,
        sa.Column("specimen_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("meaning", sa.String(length=20), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("meaning IN ('reviewed', 'approved')", name=op.f("ck_specimen_signatures_meaning")),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_specimen_signatures_account_id_accounts")
        ),
        sa.ForeignKeyConstraint(
            ["specimen_id"], ["specimens.id"], name=op.f("fk_specimen_signatures_specimen_id_specimens")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_specimen_signatures")),
        sa.UniqueConstraint("specimen_id", "number", name=op.f("uq_specimen_signatures_specimen_id_number")),
    )
    op.create_table(
        _REMARKS,
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("specimen_id", sa.Uuid(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("digest_key", sa.LargeBinary(length=32), nullable=False),
        sa.ForeignKeyConstraint(["id"], [f"{_TABLE}.id"], name=op.f("fk_specimen_remarks_id_specimen_signatures")),
        sa.ForeignKeyConstraint(
            ["specimen_id"], ["specimens.id"], name=op.f("fk_specimen_remarks_specimen_id_specimens")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_specimen_remarks")),
    )
    op.create_index(op.f("ix_specimen_remarks_specimen_id"), _REMARKS, ["specimen_id"])
    op.add_column("browser_sessions", sa.Column("authenticated_at", sa.DateTime(timezone=True), nullable=True))
    differs = sa.Column("differs", sa.Boolean(), server_default=sa.false(), nullable=False)
    op.add_column("specimen_results", differs)
    op.create_index(
        "ix_specimen_results_differs",
        "specimen_results",
        ["specimen_id"],
        sqlite_where=sa.text("differs = 1"),
        postgresql_where=sa.text("differs"),
    )
    dialect = op.get_bind().dialect.name
    for statement in create_triggers(dialect, _TABLE):
        op.execute(statement)
    if dialect == "sqlite":
        same = "specimen_id = NEW.specimen_id AND number = NEW.number"
        op.execute(create_replace_trigger(_TABLE, ("id = NEW.id", same)))
    else:
        for column in _NO_STATISTICS:
            op.execute(f"ALTER TABLE {_REMARKS} ALTER COLUMN {column} SET STATISTICS 0")


def downgrade() -> None:
    op.drop_index("ix_specimen_results_differs", "specimen_results")
    op.drop_column("specimen_results", "differs")
    op.drop_column("browser_sessions", "authenticated_at")
    op.drop_table(_REMARKS)
    for statement in drop_triggers(op.get_bind().dialect.name, _TABLE):
        op.execute(statement)
    op.drop_table(_TABLE)
