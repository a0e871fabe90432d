"""Make the table of the outcomes of cases."""

import sqlalchemy as sa
from alembic import op

from app.database.tables.append_only import create_replace_trigger, create_triggers, drop_triggers

revision = "20261128"
down_revision = "20261127"
branch_labels = None
depends_on = None

_TABLE = "outcomes"


def upgrade() -> None:
    op.create_table(
        _TABLE,
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("class_code", sa.String(length=100), nullable=True),
        sa.Column("rule", sa.String(length=20), nullable=True),
        sa.Column("account_id", sa.Uuid(), nullable=True),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("kind IN ('class', 'split', 'reopened')", name=op.f("ck_outcomes_kind")),
        sa.CheckConstraint("rule IN ('majority', 'split')", name=op.f("ck_outcomes_rule")),
        sa.CheckConstraint("(kind = 'class') = (class_code IS NOT NULL)", name=op.f("ck_outcomes_class_code")),
        sa.CheckConstraint(
            "(rule IS NULL) <> (account_id IS NULL) OR (kind = 'reopened' AND rule IS NULL)",
            name=op.f("ck_outcomes_one_decides"),
        ),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_outcomes_case_id_cases")),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_outcomes_account_id_accounts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outcomes")),
        sa.UniqueConstraint("case_id", "number", name=op.f("uq_outcomes_case_id_number")),
    )
    dialect = op.get_bind().dialect.name
    for statement in create_triggers(dialect, _TABLE):
        op.execute(statement)
    if dialect == "sqlite":
        op.execute(create_replace_trigger(_TABLE, ("id = NEW.id", "case_id = NEW.case_id AND number = NEW.number")))


def downgrade() -> None:
    for statement in drop_triggers(op.get_bind().dialect.name, _TABLE):
        op.execute(statement)
    op.drop_table(_TABLE)
