"""Make the tables of specimens, and let a policy name reporting groups and choose reads by specimen."""

import sqlalchemy as sa
from alembic import op

from app.database.tables.append_only import create_replace_trigger, create_triggers, drop_triggers

revision = "20261201"
down_revision = "20261130"
branch_labels = None
depends_on = None

_RULES = "rule IN ('disagreement', 'expected_gain', 'capacity', 'graded'"
_MORE_RULES = _RULES + ", 'specimen_value'"
_CHECK = "ck_policies_rule"
_KNOWLEDGE = "specimen_knowledge"
# what PostgreSQL must keep no statistics of, since they would outlive a patient who is erased
_NO_STATISTICS = {
    "specimens": ("external_id", "patient", "digest_key"),
    "specimen_results": ("document", "class_probs"),
}


def upgrade() -> None:
    op.create_table(
        "specimens",
        sa.Column("external_id", sa.String(length=200), nullable=False),
        sa.Column("patient", sa.String(length=200), nullable=True),
        sa.Column("site", sa.String(length=200), nullable=True),
        sa.Column("collected_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("erased_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_by", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("digest_key", sa.LargeBinary(length=32), nullable=False),
        sa.ForeignKeyConstraint(["created_by"], ["accounts.id"], name=op.f("fk_specimens_created_by_accounts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_specimens")),
        sa.UniqueConstraint("external_id", name=op.f("uq_specimens_external_id")),
    )
    for column in ("patient", "site"):
        op.create_index(op.f(f"ix_specimens_{column}"), "specimens", [column])
    op.create_table(
        "specimen_results",
        sa.Column("specimen_id", sa.Uuid(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("computed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("basis", sa.String(length=64), nullable=False),
        sa.Column("release_id", sa.Uuid(), nullable=True),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("cells", sa.JSON(), nullable=False),
        sa.Column("class_probs", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("state IN ('open', 'decided', 'signed')", name=op.f("ck_specimen_results_state")),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"], name=op.f("fk_specimen_results_release_id_releases")),
        sa.ForeignKeyConstraint(
            ["specimen_id"], ["specimens.id"], name=op.f("fk_specimen_results_specimen_id_specimens")
        ),
        sa.PrimaryKeyConstraint("specimen_id", name=op.f("pk_specimen_results")),
    )
    op.create_table(
        _KNOWLEDGE,
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("release_id", sa.Uuid(), nullable=False),
        sa.Column("kappa", sa.Float(53), nullable=False),
        sa.Column("groups", sa.JSON(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["release_id"], ["releases.id"], name=op.f("fk_specimen_knowledge_release_id_releases")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_specimen_knowledge")),
        sa.UniqueConstraint("version", name=op.f("uq_specimen_knowledge_version")),
    )
    op.add_column("policies", sa.Column("reporting_groups", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("policies", sa.Column("reads_per_specimen", sa.Integer(), nullable=True))
    op.add_column("policies", sa.Column("specimen_goal", sa.String(length=20), nullable=True))
    dialect = op.get_bind().dialect.name
    _replace_rules(dialect, _RULES, _MORE_RULES)
    if dialect == "sqlite":
        # a column with a reference is added as written: to rebuild the table would drop its triggers
        op.execute("ALTER TABLE cases ADD COLUMN specimen_id CHAR(32) REFERENCES specimens (id)")
        op.execute(create_replace_trigger(_KNOWLEDGE, ("id = NEW.id", "version = NEW.version")))
    else:
        op.add_column("cases", sa.Column("specimen_id", sa.Uuid(), nullable=True))
        name = op.f("fk_cases_specimen_id_specimens")
        op.create_foreign_key(name, "cases", "specimens", ["specimen_id"], ["id"])
        for table, columns in _NO_STATISTICS.items():
            for column in columns:
                op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET STATISTICS 0")
    op.create_index(op.f("ix_cases_specimen_id"), "cases", ["specimen_id"])
    # what has changed of the cells of a specimen
    op.create_index(op.f("ix_case_changes_case_id"), "case_changes", ["case_id"])
    for statement in create_triggers(dialect, _KNOWLEDGE):
        op.execute(statement)


def downgrade() -> None:
    dialect = op.get_bind().dialect.name
    for statement in drop_triggers(dialect, _KNOWLEDGE):
        op.execute(statement)
    _replace_rules(dialect, _MORE_RULES, _RULES)
    op.drop_index(op.f("ix_case_changes_case_id"), "case_changes")
    op.drop_index(op.f("ix_cases_specimen_id"), "cases")
    if dialect == "sqlite":
        op.execute("ALTER TABLE cases DROP COLUMN specimen_id")
    else:
        op.drop_column("cases", "specimen_id")
    for column in ("reporting_groups", "reads_per_specimen", "specimen_goal"):
        op.drop_column("policies", column)
    for table in (_KNOWLEDGE, "specimen_results", "specimens"):
        op.drop_table(table)


def _replace_rules(dialect: str, before: str, after: str) -> None:
    """Replace the values that a policy's rule may have."""
    if dialect != "sqlite":
        op.drop_constraint(op.f(_CHECK), "policies", type_="check")
        op.create_check_constraint(op.f(_CHECK), "policies", f"{after})")
        return
    # SQLite changes a CHECK in the text of the schema alone: a table made again would lose triggers and references
    connection = op.get_bind()
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    changed = "UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE type = 'table' AND name = 'policies'"
    connection.exec_driver_sql(changed, (before, after))
    connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")
