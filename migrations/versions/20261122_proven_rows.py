"""Events carry the digests of the rows that they wrote, and a signature.

Those that were written before have neither; what they left is covered by a baseline, which the first process that
starts with the key writes.
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("audit_events", sa.Column("row_digests", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("audit_events", sa.Column("signature", sa.String(length=128), nullable=True))


def downgrade() -> None:
    op.drop_column("audit_events", "signature")
    op.drop_column("audit_events", "row_digests")
