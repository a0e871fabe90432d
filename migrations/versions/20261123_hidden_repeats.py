"""Hidden repeats: cases that stay hidden from an annotator, and their second visits to them."""

import sqlalchemy as sa
from alembic import op

from app.tables.append_only import create_replace_trigger, create_triggers, drop_replace_trigger, drop_triggers

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

_KEYS = {
    "held_back": ("id = NEW.id", "annotator_id = NEW.annotator_id AND case_id = NEW.case_id"),
    "repeat_answers": ("id = NEW.id", "repeat_id = NEW.repeat_id AND position = NEW.position"),
}
_REQUEST_STATES = "state IN ('open', 'leased', 'answered', 'closed')"
_READ_STATES = "state IN ('leased', 'committed', 'declined', 'released', 'expired')"
_KINDS = "kind IN ('label', 'correction', 'revision', 'retraction')"


def upgrade() -> None:
    # null in older policies: they have no repeats
    op.add_column("policies", sa.Column("repeat_rate", sa.Float(precision=53), nullable=True))
    _held_back()
    _repeats()
    _repeat_reads()
    _repeat_answers()
    dialect = op.get_bind().dialect.name
    for table, keys in _KEYS.items():
        for statement in create_triggers(dialect, table):
            op.execute(statement)
        if dialect == "sqlite":
            op.execute(create_replace_trigger(table, keys))


def _id(name: str, *, null: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.Uuid(), nullable=null)


def _refer(table: str, **columns: str) -> list[sa.ForeignKeyConstraint]:
    return [
        sa.ForeignKeyConstraint([name], [target], name=op.f(f"fk_{table}_{name}_{target.split('.')[0]}"))
        for name, target in columns.items()
    ]


def _time(name: str, *, null: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=null)


def _held_back() -> None:
    op.create_table(
        "held_back",
        _id("annotator_id"),
        _id("case_id"),
        _id("id"),
        _time("created_at"),
        *_refer("held_back", annotator_id="annotators.id", case_id="cases.id"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_held_back")),
        sa.UniqueConstraint("annotator_id", "case_id", name=op.f("uq_held_back_annotator_id_case_id")),
    )


def _repeats() -> None:
    op.create_table(
        "repeats",
        _id("id"),
        _id("annotator_id"),
        _id("case_id"),
        _id("label_id"),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        _id("in_place_of"),
        _time("back_at", null=True),
        sa.Column("due_on", sa.String(length=10), nullable=False),
        sa.Column("shuffle", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        _time("lease_expires_at", null=True),
        _time("closed_at", null=True),
        _time("final_at", null=True),
        sa.Column("n_since", sa.Integer(), nullable=False),
        _time("created_at"),
        sa.CheckConstraint(_REQUEST_STATES, name=op.f("ck_repeats_state")),
        *_refer("repeats", annotator_id="annotators.id", case_id="cases.id", label_id="labels.id"),
        *_refer("repeats", policy_version="policies.version", in_place_of="cases.id"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_repeats")),
        sa.UniqueConstraint("annotator_id", "case_id", name=op.f("uq_repeats_annotator_id_case_id")),
    )
    op.create_index(op.f("ix_repeats_case_id"), "repeats", ["case_id"])
    op.create_index(op.f("ix_repeats_lease_expires_at"), "repeats", ["lease_expires_at"])


def _repeat_reads() -> None:
    op.create_table(
        "repeat_reads",
        _id("id"),
        _id("request_id"),
        _id("case_id"),
        _id("annotator_id"),
        sa.Column("state", sa.String(length=20), nullable=False),
        _time("expires_at"),
        _time("ended_at", null=True),
        _time("displayed_at", null=True),
        sa.Column("decline_reason", sa.String(length=20), nullable=True),
        _time("created_at"),
        sa.CheckConstraint(_READ_STATES, name=op.f("ck_repeat_reads_state")),
        *_refer("repeat_reads", request_id="repeats.id", case_id="cases.id", annotator_id="annotators.id"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_repeat_reads")),
    )
    op.create_index(op.f("ix_repeat_reads_request_id"), "repeat_reads", ["request_id"])
    op.create_index("ix_repeat_reads_annotator_id_state", "repeat_reads", ["annotator_id", "state"])


def _repeat_answers() -> None:
    op.create_table(
        "repeat_answers",
        _id("repeat_id"),
        _id("case_id"),
        sa.Column("kind", sa.String(length=20), nullable=False),
        _id("supersedes_id", null=True),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("class_code", sa.String(length=100), nullable=True),
        sa.Column("confidence", sa.Float(precision=53), nullable=True),
        sa.Column("unexposed", sa.Boolean(), nullable=False),
        sa.Column("blind", sa.Boolean(), nullable=False),
        sa.Column("reading_seconds", sa.Float(precision=53), nullable=True),
        _id("id"),
        _time("created_at"),
        sa.CheckConstraint(_KINDS, name=op.f("ck_repeat_answers_kind")),
        sa.CheckConstraint("(kind = 'retraction') = (class_code IS NULL)", name=op.f("ck_repeat_answers_class_code")),
        *_refer("repeat_answers", repeat_id="repeats.id", case_id="cases.id", supersedes_id="repeat_answers.id"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_repeat_answers")),
        sa.UniqueConstraint("repeat_id", "position", name=op.f("uq_repeat_answers_repeat_id_position")),
    )


def downgrade() -> None:
    """Repeats and their answers go: an older version has no place for them."""
    dialect = op.get_bind().dialect.name
    for table in _KEYS:
        if dialect == "sqlite":
            op.execute(drop_replace_trigger(table))
        for statement in drop_triggers(dialect, table):
            op.execute(statement)
    for table in ("repeat_answers", "repeat_reads", "repeats", "held_back"):
        op.drop_table(table)
    op.drop_column("policies", "repeat_rate")
