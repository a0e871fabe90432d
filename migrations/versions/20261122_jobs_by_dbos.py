"""State, result and error of a job are its workflow's: what has ended stays visible, what was under way is queued."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

from app.platform.durable import APPLICATION, TABLES

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_STATUS = {
    "queued": "ENQUEUED",
    "running": "ENQUEUED",
    "succeeded": "SUCCESS",
    "failed": "ERROR",
    "cancelled": "CANCELLED",
}
_STATES = tuple(_STATUS)
_GONE = ("state", "attempts", "cancel_requested", "result", "error", "seen_at", "started_at", "ended_at")
_MOMENT = sa.DateTime(timezone=True)
_OLD = sa.table(
    "jobs",
    sa.column("id", sa.Uuid()),
    sa.column("workflow_id", sa.String()),
    sa.column("created_at", _MOMENT),
    sa.column("kind", sa.String()),
    sa.column("state", sa.String()),
    sa.column("attempts", sa.Integer()),
    sa.column("cancel_requested", sa.Boolean()),
    sa.column("result", sa.JSON()),
    sa.column("error", sa.Text()),
    sa.column("started_at", _MOMENT),
    sa.column("ended_at", _MOMENT),
)
_CHILDREN = ("import_rows", "evaluations")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("workflow_id", sa.String(length=100), nullable=True))
    bind = op.get_bind()
    for job in bind.execute(sa.select(_OLD)).all():
        bind.execute(sa.update(_OLD).where(_OLD.c.id == job.id).values(workflow_id=str(job.id)))
        _insert_workflow(bind, job)
    op.drop_index(op.f("ix_jobs_state"), table_name="jobs")
    with _children_aside(bind), op.batch_alter_table("jobs") as jobs:
        jobs.alter_column("workflow_id", existing_type=sa.String(length=100), nullable=False)
        jobs.create_unique_constraint(op.f("uq_jobs_workflow_id"), ["workflow_id"])
        jobs.drop_constraint(op.f("ck_jobs_state"), type_="check")
        for name in _GONE:
            jobs.drop_column(name)
    op.create_table(
        "job_batches",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("result", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_batches_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", "name", name=op.f("pk_job_batches")),
    )


def _insert_workflow(bind: sa.Connection, job: Any) -> None:
    """The workflow of a job of the former engine: ended as it ended, or queued, to go on where it stopped."""
    # somebody had asked for it to stop: it is cancelled, although its worker had not come to that yet
    state = "cancelled" if job.state == "running" and job.cancel_requested else job.state
    ended = state in {"succeeded", "failed", "cancelled"}
    ended_at = job.ended_at or datetime.now(UTC)
    values = {
        "workflow_uuid": str(job.id),
        "status": _STATUS[state],
        "name": job.kind,
        "queue_name": None if ended else job.kind,
        "application_name": APPLICATION,
        "serialization": "portable_json",
        "priority": 0,
        "recovery_attempts": job.attempts if ended else 0,
        "created_at": _milliseconds(job.created_at),
        "updated_at": _milliseconds(ended_at if ended else job.created_at),
        "started_at_epoch_ms": _milliseconds(job.started_at),
        "completed_at": _milliseconds(ended_at) if ended else None,
    }
    bind.execute(sa.insert(_workflows(bind, "workflow_status", *values)).values(values))
    inputs = {"workflow_uuid": str(job.id), "inputs": json.dumps({"namedArgs": {}, "positionalArgs": [str(job.id)]})}
    bind.execute(sa.insert(_workflows(bind, "workflow_input", *inputs)).values(inputs))
    if state in {"succeeded", "failed"}:
        error = {"name": "JobFailedError", "message": job.error or "it failed without a message"}
        outcome = {
            "workflow_uuid": str(job.id),
            "output": None if job.state == "failed" else json.dumps(job.result),
            "error": json.dumps(error) if job.state == "failed" else None,
        }
        bind.execute(sa.insert(_workflows(bind, "workflow_output", *outcome)).values(outcome))


def downgrade() -> None:
    op.drop_table("job_batches")
    bind = op.get_bind()
    for column in _columns():
        op.add_column("jobs", column)
    for job in bind.execute(sa.select(_OLD.c.id, _OLD.c.workflow_id)).all():
        bind.execute(sa.update(_OLD).where(_OLD.c.id == job.id).values(_outcome(bind, job.workflow_id)))
    with _children_aside(bind), op.batch_alter_table("jobs") as jobs:
        jobs.drop_constraint(op.f("uq_jobs_workflow_id"), type_="unique")
        jobs.drop_column("workflow_id")
        jobs.create_check_constraint(op.f("ck_jobs_state"), f"state IN {_STATES}")
        for column in _columns():
            if column.server_default is not None:
                jobs.alter_column(column.name, existing_type=column.type, server_default=None)
    op.create_index(op.f("ix_jobs_state"), "jobs", ["state"], unique=False)
    if bind.dialect.name == "postgresql":
        op.execute("DROP SCHEMA dbos CASCADE")
    else:
        for name in TABLES:
            op.execute(f"DROP TABLE IF EXISTS {name}")


def _columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("state", sa.String(length=20), server_default="queued", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("seen_at", _MOMENT, nullable=True),
        sa.Column("started_at", _MOMENT, nullable=True),
        sa.Column("ended_at", _MOMENT, nullable=True),
    ]


def _outcome(bind: sa.Connection, workflow_id: str) -> dict[str, Any]:
    """Columns of the former engine, from a workflow; one that has not ended is queued."""
    names = ("workflow_uuid", "status", "recovery_attempts", "started_at_epoch_ms", "completed_at")
    status = _workflows(bind, "workflow_status", *names)
    output = _workflows(bind, "workflow_output", "workflow_uuid", "output", "error")
    row = bind.execute(sa.select(status).where(status.c.workflow_uuid == workflow_id)).one_or_none()
    if row is None or row.status in {"ENQUEUED", "DELAYED", "PENDING"}:
        return {"state": "queued", "attempts": 0}
    ended = bind.execute(sa.select(output).where(output.c.workflow_uuid == workflow_id)).one_or_none()
    states = {"SUCCESS": "succeeded", "CANCELLED": "cancelled"}
    return {
        "state": states.get(row.status, "failed"),
        "attempts": row.recovery_attempts,
        "result": json.loads(ended.output) if ended is not None and ended.output is not None else sa.null(),
        "error": json.loads(ended.error)["message"] if ended is not None and ended.error is not None else None,
        "started_at": _moment(row.started_at_epoch_ms),
        "ended_at": _moment(row.completed_at),
    }


@contextmanager
def _children_aside(bind: sa.Connection) -> Iterator[None]:
    """SQLite makes a table anew to change it, which its children would not allow while they have rows."""
    if bind.dialect.name == "postgresql":
        yield
        return
    for child in _CHILDREN:
        op.execute(f"CREATE TEMPORARY TABLE aside_{child} AS SELECT * FROM {child}")  # noqa: S608
        op.execute(f"DELETE FROM {child}")  # noqa: S608
    yield
    for child in _CHILDREN:
        op.execute(f"INSERT INTO {child} SELECT * FROM aside_{child}")  # noqa: S608
        op.execute(f"DROP TABLE aside_{child}")


def _workflows(bind: sa.Connection, name: str, *columns: str) -> sa.TableClause:
    return sa.table(name, *map(sa.column, columns), schema="dbos" if bind.dialect.name == "postgresql" else None)


def _milliseconds(moment: datetime | None) -> int | None:
    if moment is None:
        return None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _moment(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)
