"""The graded rule of reading policies."""

from alembic import op

from app.tables.append_only import create_triggers, drop_triggers

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_BEFORE = "rule IN ('disagreement', 'expected_gain', 'capacity')"
_AFTER = "rule IN ('disagreement', 'expected_gain', 'capacity', 'graded')"


def upgrade() -> None:
    _set_rules(_BEFORE, _AFTER)


def _set_rules(before: str, after: str) -> None:
    """Change the check of ``policies.rule`` and no row: others refer to the table."""
    bind = op.get_bind()
    if bind.dialect.name == "postgresql":
        op.drop_constraint(op.f("ck_policies_rule"), "policies", type_="check")
        op.create_check_constraint(op.f("ck_policies_rule"), "policies", after)
        return
    # SQLite's own way for a check is to edit the schema (lang_altertable.html)
    version = bind.exec_driver_sql("PRAGMA schema_version").scalar_one()
    bind.exec_driver_sql("PRAGMA writable_schema=ON")
    edit = "UPDATE sqlite_schema SET sql = replace(sql, ?, ?) WHERE type = 'table' AND name = 'policies'"
    bind.exec_driver_sql(edit, (before, after))
    bind.exec_driver_sql(f"PRAGMA schema_version={version + 1}")
    bind.exec_driver_sql("PRAGMA writable_schema=OFF")


def downgrade() -> None:
    """Policies by the graded rule become policies by capacity, which spend as many reads."""
    dialect = op.get_bind().dialect.name
    for statement in drop_triggers(dialect, "policies"):
        op.execute(statement)
    graded = "SELECT version FROM policies WHERE rule = 'graded'"
    op.execute(f"DELETE FROM daily_thresholds WHERE policy_version IN ({graded})")  # noqa: S608
    op.execute("UPDATE policies SET rule = 'capacity' WHERE rule = 'graded'")
    for statement in create_triggers(dialect, "policies"):
        op.execute(statement)
    _set_rules(_AFTER, _BEFORE)
