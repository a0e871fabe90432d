"""Which cases each audit event changed, so that evaluations need not read all of them anew; how far images lie."""

import sqlalchemy as sa
from alembic import op

from app.tables.append_only import create_triggers, drop_triggers

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "case_changes",
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_case_changes_case_id_cases")),
        sa.ForeignKeyConstraint(
            ["sequence"], ["audit_events.sequence"], name=op.f("fk_case_changes_sequence_audit_events")
        ),
        sa.PrimaryKeyConstraint("sequence", "case_id", name=op.f("pk_case_changes")),
    )
    op.add_column("predictions", sa.Column("feature_distance", sa.Float(precision=53), nullable=True))
    for statement in create_triggers(op.get_bind().dialect.name, "case_changes"):
        op.execute(statement)


def downgrade() -> None:
    for statement in drop_triggers(op.get_bind().dialect.name, "case_changes"):
        op.execute(statement)
    op.drop_table("case_changes")
    op.drop_column("predictions", "feature_distance")
