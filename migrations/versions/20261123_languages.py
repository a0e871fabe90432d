"""In which language an account has its pages; null for what the browser asks for."""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("accounts", sa.Column("language", sa.String(10), nullable=True))


def downgrade() -> None:
    op.drop_column("accounts", "language")
