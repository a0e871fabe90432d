"""How many keys the ring of the installation has: a process that knows fewer, or more, writes nothing."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("audit_head", sa.Column("n_keys", sa.Integer(), server_default="1", nullable=False))


def downgrade() -> None:
    with op.batch_alter_table("audit_head") as table:
        table.drop_column("n_keys")
