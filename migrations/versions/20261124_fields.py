"""The wider field around the cell of a case: digests of the uploaded bytes, and of the stored PNG; null without one."""

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

_COLUMNS = ("field_sha256", "stored_field_sha256")


def upgrade() -> None:
    for column in _COLUMNS:
        op.add_column("cases", sa.Column(column, sa.String(length=64), nullable=True))
    op.create_index(op.f("ix_cases_stored_field_sha256"), "cases", ["stored_field_sha256"], unique=False)
    if op.get_bind().dialect.name == "postgresql":  # the database's own statistics must keep no digest of an image
        for column in _COLUMNS:
            op.execute(f"ALTER TABLE cases ALTER COLUMN {column} SET STATISTICS 0")


def downgrade() -> None:
    op.drop_index(op.f("ix_cases_stored_field_sha256"), table_name="cases")
    for column in reversed(_COLUMNS):
        op.drop_column("cases", column)
