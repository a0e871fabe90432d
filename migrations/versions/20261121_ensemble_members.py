"""Keep the members of an ensemble's prediction, so that its posterior follows from the stored prior."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("predictions", sa.Column("members", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    op.drop_column("predictions", "members")
