"""Why and how far an image is unlike those that a release was made from, and what its pixels look like."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # null in older rows: they were flagged by the distance of the network's features alone
    op.add_column("predictions", sa.Column("unlike_reasons", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("predictions", sa.Column("unlike_distance", sa.Float(precision=53), nullable=True))
    op.add_column("predictions", sa.Column("unlike_percentile", sa.Float(precision=53), nullable=True))
    op.add_column("network_outputs", sa.Column("appearance", sa.LargeBinary(), nullable=True))
    if op.get_bind().dialect.name == "postgresql":  # the database's own statistics must keep nothing of an image
        op.execute("ALTER TABLE network_outputs ALTER COLUMN appearance SET STATISTICS 0")


def downgrade() -> None:
    op.drop_column("network_outputs", "appearance")
    for name in ("unlike_percentile", "unlike_distance", "unlike_reasons"):
        op.drop_column("predictions", name)
