"""Thresholds of the sets for the next answer, by release, which the worker computes anew once a day."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "answer_sets",
        sa.Column("release_id", sa.Uuid(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("computed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("basis", sa.String(length=200), nullable=False),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"], name=op.f("fk_answer_sets_release_id_releases")),
        sa.PrimaryKeyConstraint("release_id", name=op.f("pk_answer_sets")),
    )


def downgrade() -> None:
    op.drop_table("answer_sets")
