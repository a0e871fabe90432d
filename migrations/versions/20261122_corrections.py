"""Blind corrections, and which labels may still be corrected."""

import sqlalchemy as sa
from alembic import op

from app.tables.append_only import create_triggers, drop_triggers

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_BEFORE = "kind IN ('label', 'revision', 'retraction')"
_AFTER = "kind IN ('label', 'correction', 'revision', 'retraction')"


def upgrade() -> None:
    _set_kinds(_BEFORE, _AFTER)
    op.create_table(
        "provisional_labels",
        sa.Column("label_id", sa.Uuid(), nullable=False),
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("annotator_id", sa.Uuid(), nullable=False),
        sa.Column("read_id", sa.Uuid(), nullable=False),
        sa.Column("final_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("n_since", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["label_id"], ["labels.id"], name=op.f("fk_provisional_labels_label_id_labels")),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_provisional_labels_case_id_cases")),
        sa.ForeignKeyConstraint(
            ["annotator_id"], ["annotators.id"], name=op.f("fk_provisional_labels_annotator_id_annotators")
        ),
        sa.ForeignKeyConstraint(["read_id"], ["reads.id"], name=op.f("fk_provisional_labels_read_id_reads")),
        sa.PrimaryKeyConstraint("label_id", name=op.f("pk_provisional_labels")),
        sa.UniqueConstraint("read_id", name=op.f("uq_provisional_labels_read_id")),
    )
    for column in ("case_id", "annotator_id", "final_at"):
        op.create_index(op.f(f"ix_provisional_labels_{column}"), "provisional_labels", [column])


def _set_kinds(before: str, after: str) -> None:
    """Change the check of ``labels.kind`` and no row: the table is append-only, and others refer to it.

    SQLite's own way for a check is to edit the schema (lang_altertable.html, "Making Other Kinds Of Table Schema
    Changes"); its other way is to write the whole table again.
    """
    bind = op.get_bind()
    if bind.dialect.name == "postgresql":
        op.drop_constraint(op.f("ck_labels_kind"), "labels", type_="check")
        op.create_check_constraint(op.f("ck_labels_kind"), "labels", after)
        return
    version = bind.exec_driver_sql("PRAGMA schema_version").scalar_one()
    bind.exec_driver_sql("PRAGMA writable_schema=ON")
    edit = "UPDATE sqlite_schema SET sql = replace(sql, ?, ?) WHERE type = 'table' AND name = 'labels'"
    bind.exec_driver_sql(edit, (before, after))
    bind.exec_driver_sql(f"PRAGMA schema_version={version + 1}")
    bind.exec_driver_sql("PRAGMA writable_schema=OFF")


def downgrade() -> None:
    op.drop_table("provisional_labels")
    dialect = op.get_bind().dialect.name
    for statement in drop_triggers(dialect, "labels"):
        op.execute(statement)
    op.execute("UPDATE labels SET kind = 'revision' WHERE kind = 'correction'")
    for statement in create_triggers(dialect, "labels"):
        op.execute(statement)
    _set_kinds(_AFTER, _BEFORE)
