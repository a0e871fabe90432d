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
    # the digest of a day's row in the audit log covers the probability: no later upgrade could prove the row again
    ties = sa.text("SELECT count(*) FROM daily_thresholds WHERE at_threshold IS NOT NULL")
    if days := op.get_bind().execute(ties).scalar_one():
        raise ValueError(f"{days} day(s) in daily_thresholds have tied cells: restore a backup from before the upgrade")
    op.drop_column("daily_thresholds", "at_threshold")
