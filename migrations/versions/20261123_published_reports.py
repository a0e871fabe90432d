"""Reports that the worker makes, and the laboratory's own targets, to which rows are only added."""

import sqlalchemy as sa
from alembic import op

from app.tables.append_only import create_replace_trigger, create_triggers, drop_replace_trigger, drop_triggers

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

_TARGETS = "report_targets"
_KEYS = ("id = NEW.id", "version = NEW.version")


def upgrade() -> None:
    op.create_table(
        _TARGETS,
        sa.Column("version", sa.Integer(), nullable=False),
        *(
            sa.Column(name, sa.Float(53), nullable=False)
            for name in ("disagreement_gap", "leading_gap", "caught", "agreement", "hours")
        ),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["created_by"], ["accounts.id"], name=op.f("fk_report_targets_created_by_accounts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_report_targets")),
        sa.UniqueConstraint("version", name=op.f("uq_report_targets_version")),
    )
    op.create_table(
        "published_reports",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("question", sa.JSON(), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=True),
        sa.Column("document", sa.JSON(), nullable=True),
        sa.Column("as_of", sa.DateTime(timezone=True), nullable=True),
        sa.Column("release_id", sa.Uuid(), nullable=True),
        sa.Column("seconds", sa.Float(53), nullable=True),
        sa.Column("basis", sa.String(length=200), nullable=True),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"], name=op.f("fk_published_reports_release_id_releases")),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_published_reports")),
    )
    dialect = op.get_bind().dialect.name
    for statement in create_triggers(dialect, _TARGETS):
        op.execute(statement)
    if dialect == "sqlite":
        op.execute(create_replace_trigger(_TARGETS, _KEYS))


def downgrade() -> None:
    dialect = op.get_bind().dialect.name
    op.drop_table("published_reports")
    if dialect == "sqlite":
        op.execute(drop_replace_trigger(_TARGETS))
    for statement in drop_triggers(dialect, _TARGETS):
        op.execute(statement)
    op.drop_table(_TARGETS)
