"""Drawn annotators: whom each read was asked of, and whether a policy draws."""

import sqlalchemy as sa
from alembic import op

from app.tables.append_only import create_replace_trigger, create_triggers, drop_replace_trigger, drop_triggers

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

_KEYS = ("id = NEW.id", "request_id = NEW.request_id AND position = NEW.position")
_REFERRED = {"request_id": "read_requests", "case_id": "cases", "annotator_id": "annotators"}


def upgrade() -> None:
    op.add_column("policies", sa.Column("draw_readers", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column("read_requests", sa.Column("annotator_id", sa.Uuid(), nullable=True))
    op.create_index("ix_read_requests_annotator_id_state", "read_requests", ["annotator_id", "state"])
    op.create_table(
        "reader_draws",
        *(sa.Column(name, sa.Uuid(), nullable=False) for name in ("request_id", "case_id")),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("annotator_id", sa.Uuid(), nullable=False),
        sa.Column("probability", sa.Float(precision=53), nullable=True),
        sa.Column("among", sa.JSON(), nullable=False),
        sa.Column("gain", sa.Float(precision=53), nullable=True),
        sa.Column("load", sa.Integer(), nullable=True),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "probability IS NULL OR (probability >= 0.1 AND probability <= 1)",
            name=op.f("ck_reader_draws_probability"),
        ),
        *(
            sa.ForeignKeyConstraint([name], [f"{table}.id"], name=op.f(f"fk_reader_draws_{name}_{table}"))
            for name, table in _REFERRED.items()
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reader_draws")),
        sa.UniqueConstraint("request_id", "position", name=op.f("uq_reader_draws_request_id_position")),
    )
    op.create_index(op.f("ix_reader_draws_case_id"), "reader_draws", ["case_id"])
    dialect = op.get_bind().dialect.name
    for statement in create_triggers(dialect, "reader_draws"):
        op.execute(statement)
    if dialect == "sqlite":
        op.execute(create_replace_trigger("reader_draws", _KEYS))


def downgrade() -> None:
    """Draws go: under an older version anybody leases the next case."""
    dialect = op.get_bind().dialect.name
    if dialect == "sqlite":
        op.execute(drop_replace_trigger("reader_draws"))
    for statement in drop_triggers(dialect, "reader_draws"):
        op.execute(statement)
    op.drop_table("reader_draws")
    op.drop_index("ix_read_requests_annotator_id_state", "read_requests")
    op.drop_column("read_requests", "annotator_id")
    op.drop_column("policies", "draw_readers")
