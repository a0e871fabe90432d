"""Practice and qualification: sets of settled cells, runs, answers, and who may read alone."""

import sqlalchemy as sa
from alembic import op

from app.tables.append_only import create_replace_trigger, create_triggers, drop_replace_trigger, drop_triggers

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

_KEYS = {
    "practice_cells": ("id = NEW.id", "set_id = NEW.set_id AND case_id = NEW.case_id"),
    "practice_items": ("id = NEW.id", "run_id = NEW.run_id AND position = NEW.position"),
    "practice_answers": ("id = NEW.id", "item_id = NEW.item_id"),
    "qualifications": ("id = NEW.id", "run_id = NEW.run_id"),
}
_OPEN = sa.text("state = 'open'")


def upgrade() -> None:
    # null in older policies: nobody has to be qualified
    op.add_column("policies", sa.Column("require_qualification", sa.Boolean(), nullable=True))
    _sets()
    _cells()
    _runs()
    _items()
    _answers()
    _qualifications()
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


def _made(table: str) -> list[sa.Column[object] | sa.PrimaryKeyConstraint]:
    return [_id("id"), _time("created_at"), sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{table}"))]


def _sets() -> None:
    op.create_table(
        "practice_sets",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("purpose", sa.String(length=20), nullable=False),
        sa.Column("n_per_run", sa.Integer(), nullable=False),
        sa.Column("min_labels", sa.Integer(), nullable=False),
        sa.Column("borderline_share", sa.Float(precision=53), nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
        _time("retired_at", null=True),
        _id("created_by"),
        *_made("practice_sets"),
        sa.CheckConstraint("purpose IN ('training', 'qualification')", name=op.f("ck_practice_sets_purpose")),
        *_refer("practice_sets", created_by="accounts.id"),
        sa.UniqueConstraint("name", name=op.f("uq_practice_sets_name")),
    )


def _cells() -> None:
    op.create_table(
        "practice_cells",
        _id("set_id"),
        _id("case_id"),
        *_made("practice_cells"),
        *_refer("practice_cells", set_id="practice_sets.id", case_id="cases.id"),
        sa.UniqueConstraint("set_id", "case_id", name=op.f("uq_practice_cells_set_id_case_id")),
    )
    op.create_index(op.f("ix_practice_cells_case_id"), "practice_cells", ["case_id"])


def _runs() -> None:
    op.create_table(
        "practice_runs",
        _id("set_id"),
        _id("annotator_id"),
        sa.Column("state", sa.String(length=20), nullable=False),
        _time("finished_at", null=True),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("passed", sa.Boolean(), nullable=True),
        *_made("practice_runs"),
        sa.CheckConstraint("state IN ('open', 'finished')", name=op.f("ck_practice_runs_state")),
        *_refer("practice_runs", set_id="practice_sets.id", annotator_id="annotators.id"),
    )
    op.create_index(
        "uq_practice_runs_open",
        "practice_runs",
        ["set_id", "annotator_id"],
        unique=True,
        sqlite_where=_OPEN,
        postgresql_where=_OPEN,
    )
    op.create_index("ix_practice_runs_annotator_id", "practice_runs", ["annotator_id"])


def _items() -> None:
    op.create_table(
        "practice_items",
        _id("run_id"),
        _id("annotator_id"),
        _id("case_id"),
        sa.Column("position", sa.Integer(), nullable=False),
        *_made("practice_items"),
        *_refer("practice_items", run_id="practice_runs.id", annotator_id="annotators.id", case_id="cases.id"),
        sa.UniqueConstraint("run_id", "position", name=op.f("uq_practice_items_run_id_position")),
    )
    op.create_index("ix_practice_items_case_id_annotator_id", "practice_items", ["case_id", "annotator_id"])


def _answers() -> None:
    op.create_table(
        "practice_answers",
        _id("item_id"),
        sa.Column("class_code", sa.String(length=100), nullable=False),
        *_made("practice_answers"),
        *_refer("practice_answers", item_id="practice_items.id"),
        sa.UniqueConstraint("item_id", name=op.f("uq_practice_answers_item_id")),
    )


def _qualifications() -> None:
    op.create_table(
        "qualifications",
        _id("annotator_id"),
        sa.Column("kind", sa.String(length=20), nullable=False),
        _id("run_id", null=True),
        _id("created_by", null=True),
        sa.Column("reason", sa.Text(), nullable=True),
        *_made("qualifications"),
        sa.CheckConstraint(
            "kind IN ('passed', 'qualified', 'withdrawn', 'renewed')", name=op.f("ck_qualifications_kind")
        ),
        sa.CheckConstraint("(kind = 'passed') = (run_id IS NOT NULL)", name=op.f("ck_qualifications_run_id")),
        *_refer("qualifications", annotator_id="annotators.id", run_id="practice_runs.id", created_by="accounts.id"),
        sa.UniqueConstraint("run_id", name=op.f("uq_qualifications_run_id")),
    )
    op.create_index(op.f("ix_qualifications_annotator_id"), "qualifications", ["annotator_id"])


def downgrade() -> None:
    """Practice, its answers and qualifications go: an older version has no place for them."""
    dialect = op.get_bind().dialect.name
    for table in _KEYS:
        if dialect == "sqlite":
            op.execute(drop_replace_trigger(table))
        for statement in drop_triggers(dialect, table):
            op.execute(statement)
    for table in (
        "qualifications", "practice_answers", "practice_items", "practice_runs", "practice_cells", "practice_sets",
    ):  # fmt: skip
        op.drop_table(table)
    op.drop_column("policies", "require_qualification")
