"""Imports of the command line forget the name of the file, which may be a patient's; nothing reads it."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    connection = op.get_bind()
    jobs = sa.table(
        "jobs", sa.column("id", sa.Uuid()), sa.column("kind", sa.String()), sa.column("parameters", sa.JSON())
    )
    rows = connection.execute(sa.select(jobs.c.id, jobs.c.parameters).where(jobs.c.kind == "import")).all()
    for job_id, parameters in rows:
        if "source" in parameters:
            rest = {name: value for name, value in parameters.items() if name != "source"}
            connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(parameters=rest))


def downgrade() -> None:
    """Nothing needs the names."""
