"""Whether two pictures are the same is asked of their pixels: an index, the same digest of fields, and what lacks them.

The digests themselves ``secondread db upgrade`` makes from the stored images, which no migration can read.
"""

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None

_UNKNOWN = sa.text(
    "CASE WHEN erased_at IS NULL THEN pixels_sha256 IS NULL "
    "OR stored_field_sha256 IS NOT NULL AND field_pixels_sha256 IS NULL ELSE false END"
)


def upgrade() -> None:
    op.add_column("cases", sa.Column("field_pixels_sha256", sa.String(length=64), nullable=True))
    op.create_index(op.f("ix_cases_pixels_sha256"), "cases", ["pixels_sha256"])
    op.create_index(op.f("ix_cases_field_pixels_sha256"), "cases", ["field_pixels_sha256"])
    op.create_index("ix_cases_unknown_pixels", "cases", ["id"], sqlite_where=_UNKNOWN, postgresql_where=_UNKNOWN)
    if op.get_bind().dialect.name == "postgresql":  # the database's own statistics must keep no digest of an image
        op.execute("ALTER TABLE cases ALTER COLUMN field_pixels_sha256 SET STATISTICS 0")


def downgrade() -> None:
    op.drop_index("ix_cases_unknown_pixels", table_name="cases")
    for column in ("field_pixels_sha256", "pixels_sha256"):
        op.drop_index(op.f(f"ix_cases_{column}"), table_name="cases")
    op.drop_column("cases", "field_pixels_sha256")
