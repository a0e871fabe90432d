"""Imports name the files that became no case."""

from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

_BEFORE = "status IN ('created', 'known', 'failed')"
_AFTER = "status IN ('created', 'known', 'failed', 'ignored')"


def upgrade() -> None:
    _set_states(_BEFORE, _AFTER)


def _set_states(before: str, after: str) -> None:
    """Change the check of ``import_rows.status`` and no row."""
    bind = op.get_bind()
    if bind.dialect.name == "postgresql":
        op.drop_constraint(op.f("ck_import_rows_status"), "import_rows", type_="check")
        op.create_check_constraint(op.f("ck_import_rows_status"), "import_rows", after)
        return
    # SQLite's own way for a check is to edit the schema (lang_altertable.html)
    version = bind.exec_driver_sql("PRAGMA schema_version").scalar_one()
    bind.exec_driver_sql("PRAGMA writable_schema=ON")
    edit = "UPDATE sqlite_schema SET sql = replace(sql, ?, ?) WHERE type = 'table' AND name = 'import_rows'"
    bind.exec_driver_sql(edit, (before, after))
    bind.exec_driver_sql(f"PRAGMA schema_version={version + 1}")
    bind.exec_driver_sql("PRAGMA writable_schema=OFF")


def downgrade() -> None:
    """Ignored files become rows that failed."""
    op.execute("UPDATE import_rows SET status = 'failed' WHERE status = 'ignored'")
    _set_states(_AFTER, _BEFORE)
