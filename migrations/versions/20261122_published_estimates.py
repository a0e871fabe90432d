"""The worker's latest estimates of each release that it evaluates, which GET /metrics shows."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "published_estimates",
        sa.Column("release_id", sa.Uuid(), nullable=False),
        sa.Column("estimates", sa.JSON(), nullable=False),
        sa.Column("computed_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["release_id"], ["releases.id"], name=op.f("fk_published_estimates_release_id_releases")
        ),
        sa.PrimaryKeyConstraint("release_id", name=op.f("pk_published_estimates")),
    )


def downgrade() -> None:
    op.drop_table("published_estimates")
