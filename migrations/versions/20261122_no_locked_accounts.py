"""Accounts are no longer locked: wrong passwords are counted by address and name, in the server's memory."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_column("accounts", "locked_until")
    op.drop_column("accounts", "failed_sign_ins")


def downgrade() -> None:
    op.add_column("accounts", sa.Column("failed_sign_ins", sa.Integer(), server_default="0", nullable=False))
    op.add_column("accounts", sa.Column("locked_until", sa.DateTime(timezone=True), nullable=True))
