"""Reference cells of each class, and what the guidelines say of it, to which rows are only added."""

import sqlalchemy as sa
from alembic import op

from app.tables.append_only import create_replace_trigger, create_triggers, drop_replace_trigger, drop_triggers

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

_KEYS = {
    "reference_cells": (
        "id = NEW.id",
        "class_code = NEW.class_code AND case_id = NEW.case_id AND number = NEW.number",
    ),
    "class_definitions": ("id = NEW.id", "class_code = NEW.class_code AND number = NEW.number"),
}


def upgrade() -> None:
    op.create_table(
        "reference_cells",
        sa.Column("class_code", sa.String(length=100), nullable=False),
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("n_readers", sa.Integer(), nullable=False),
        sa.Column("n_same", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("created_by", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("kind IN ('chosen', 'pinned', 'dropped', 'excluded')", name=op.f("ck_reference_cells_kind")),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_reference_cells_case_id_cases")),
        sa.ForeignKeyConstraint(["created_by"], ["accounts.id"], name=op.f("fk_reference_cells_created_by_accounts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reference_cells")),
        sa.UniqueConstraint(
            "class_code", "case_id", "number", name=op.f("uq_reference_cells_class_code_case_id_number")
        ),
    )
    op.create_index(op.f("ix_reference_cells_case_id"), "reference_cells", ["case_id"])
    op.create_table(
        "class_definitions",
        sa.Column("class_code", sa.String(length=100), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["created_by"], ["accounts.id"], name=op.f("fk_class_definitions_created_by_accounts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_class_definitions")),
        sa.UniqueConstraint("class_code", "number", name=op.f("uq_class_definitions_class_code_number")),
    )
    dialect = op.get_bind().dialect.name
    for table, keys in _KEYS.items():
        for statement in create_triggers(dialect, table):
            op.execute(statement)
        if dialect == "sqlite":
            op.execute(create_replace_trigger(table, keys))


def downgrade() -> None:
    """Reference cells and definitions go: an older version has no place for them."""
    dialect = op.get_bind().dialect.name
    for table in _KEYS:
        if dialect == "sqlite":
            op.execute(drop_replace_trigger(table))
        for statement in drop_triggers(dialect, table):
            op.execute(statement)
        op.drop_table(table)
