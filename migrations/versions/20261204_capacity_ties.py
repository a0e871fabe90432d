"""Keep with a day's threshold of the rule by capacity the probability of cells whose score it is."""

import sqlalchemy as sa
from alembic import op

revision = "20261204"
down_revision = "20261203"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("daily_thresholds", sa.Column("at_threshold", sa.Float(precision=53), nullable=True))


def downgrade() -> None:
    op.drop_column("daily_thresholds", "at_threshold")
