"""Let a policy name classes that bring the cells of a patient forward."""

import sqlalchemy as sa
from alembic import op

revision = "20261129"
down_revision = "20261128"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("policies", sa.Column("urgent", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("policies", "urgent")
