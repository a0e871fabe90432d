"""Note when an outside annotator gave a label, which row of an import failed, and π of cells at a day's threshold."""

import sqlalchemy as sa
from alembic import op

revision = "20261203"
down_revision = "20261202"
branch_labels = None
depends_on = None

_VIEW = "counted_labels AS SELECT * FROM labels WHERE purpose = 'read'"


def upgrade() -> None:
    op.add_column("labels", sa.Column("given_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("import_rows", sa.Column("place", sa.Text(), nullable=True))
    op.add_column("daily_thresholds", sa.Column("at_threshold", sa.Float(precision=53), nullable=True))
    if op.get_bind().dialect.name == "postgresql":  # there a view has the columns of the time when it was made
        op.execute(f"CREATE OR REPLACE VIEW {_VIEW}")
        # nor statistics of what must not outlive a patient who is erased
        op.execute("ALTER TABLE import_rows ALTER COLUMN place SET STATISTICS 0")


def downgrade() -> None:
    op.drop_column("daily_thresholds", "at_threshold")
    op.drop_column("import_rows", "place")
    op.execute("DROP VIEW counted_labels")
    op.drop_column("labels", "given_at")
    op.execute(f"CREATE VIEW {_VIEW}")
