"""What an annotator would have said otherwise, and whether they want somebody to look at the case.

Null and false in older rows, which digests of rows leave out.
"""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

_TABLES = ("labels", "repeat_answers")


def upgrade() -> None:
    for table in _TABLES:
        op.add_column(table, sa.Column("second_choice", sa.String(100), nullable=True))
        op.add_column(table, sa.Column("flagged", sa.Boolean(), server_default=sa.false(), nullable=False))


def downgrade() -> None:
    for table in reversed(_TABLES):
        op.drop_column(table, "flagged")
        op.drop_column(table, "second_choice")
