"""From what estimates were computed, so that they are computed again only when that has changed."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # what is there names no basis, so it is computed again
    op.add_column("published_estimates", sa.Column("basis", sa.String(length=200), nullable=True))


def downgrade() -> None:
    op.drop_column("published_estimates", "basis")
