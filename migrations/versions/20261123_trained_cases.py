"""Digests of the pixels of cases, and which of them a release was trained on."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # null in older rows: their images are decoded when another release predicts them
    op.add_column("cases", sa.Column("pixels_sha256", sa.String(length=64), nullable=True))
    op.add_column("predictions", sa.Column("trained_on", sa.String(length=11), nullable=True))
    if op.get_bind().dialect.name == "postgresql":  # the database's own statistics must keep no digest of an image
        op.execute("ALTER TABLE cases ALTER COLUMN pixels_sha256 SET STATISTICS 0")


def downgrade() -> None:
    op.drop_column("predictions", "trained_on")
    op.drop_column("cases", "pixels_sha256")
