"""Requests to cancel a job that a batch need not wait for, and when the first attempt of a job began."""

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_JOBS = sa.table("jobs", sa.column("workflow_id", sa.String()), sa.column("started_at", sa.DateTime(timezone=True)))


def upgrade() -> None:
    op.create_table(
        "job_cancellations",
        sa.Column("workflow_id", sa.String(length=100), nullable=False),
        sa.Column("requested_by", sa.String(length=200), nullable=False),
        sa.Column("requested_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("workflow_id", name=op.f("pk_job_cancellations")),
    )
    op.add_column("jobs", sa.Column("started_at", sa.DateTime(timezone=True), nullable=True))
    bind = op.get_bind()
    schema = "dbos" if bind.dialect.name == "postgresql" else None
    columns = sa.column("workflow_uuid"), sa.column("started_at_epoch_ms")
    workflows = sa.table("workflow_status", *columns, schema=schema)
    for row in bind.execute(sa.select(workflows).where(workflows.c.started_at_epoch_ms.is_not(None))).all():
        moment = datetime.fromtimestamp(row.started_at_epoch_ms / 1000, UTC)
        bind.execute(sa.update(_JOBS).where(_JOBS.c.workflow_id == row.workflow_uuid).values(started_at=moment))


def downgrade() -> None:
    op.drop_column("jobs", "started_at")
    op.drop_table("job_cancellations")
