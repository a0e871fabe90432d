"""Free text gets rows of its own, and every row about a patient a key of its own, so that both can be forgotten.

What somebody wrote about a case stood in labels, of which nothing can be deleted. Digests of private columns were made
with one key for all, so that whoever has it could have tried names out after an erasure.
"""

import sqlalchemy as sa
from alembic import op

from app.tables.append_only import create_triggers, drop_triggers

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_WITH_KEY = ("cases", "network_outputs", "import_rows")
# of which the database's own statistics must keep no values
_UNSEEN = {
    "cases": ("external_id", "patient", "image_sha256", "stored_sha256", "image_hash", "u", "digest_key"),
    "network_outputs": ("logits", "features", "digest_key"),
    "import_rows": ("external_id", "patient", "detail", "digest_key"),
    "remarks": ("note", "reason", "digest_key"),
    "idempotency_records": ("key", "request_sha256"),
    "read_requests": ("u",),
}
# those that were seen so far: of the same type again, a column has no statistics any more
_SEEN = {
    "cases": {
        "external_id": "varchar(200)",
        "patient": "varchar(200)",
        "image_sha256": "varchar(64)",
        "stored_sha256": "varchar(64)",
        "image_hash": "bigint",
        "u": "double precision",
    },
    "network_outputs": {"logits": "bytea", "features": "bytea"},
    "import_rows": {"external_id": "varchar(200)", "detail": "text"},
    "idempotency_records": {"key": "varchar(200)", "request_sha256": "varchar(64)"},
    "read_requests": {"u": "double precision"},
}


def upgrade() -> None:
    _make_tables()
    op.add_column("import_rows", sa.Column("patient", sa.String(length=200), nullable=True))
    op.execute(
        "UPDATE import_rows SET patient = (SELECT cases.patient FROM cases WHERE cases.id = import_rows.case_id)"
    )
    for table in _WITH_KEY:
        op.add_column(table, sa.Column("digest_key", sa.LargeBinary(length=32), nullable=True))
        op.execute(f"UPDATE {table} SET digest_key = {_random()}")  # noqa: S608
    op.execute(
        "INSERT INTO remarks (id, case_id, note, reason, digest_key) "  # noqa: S608
        f"SELECT id, case_id, note, reason, {_random()} FROM labels WHERE note IS NOT NULL OR reason IS NOT NULL"
    )
    op.execute(
        "INSERT INTO remarks (id, case_id, note, digest_key) "  # noqa: S608
        f"SELECT id, case_id, note, {_random()} FROM reads WHERE note IS NOT NULL"
    )
    for table, column in (("labels", "note"), ("labels", "reason"), ("reads", "note")):
        op.drop_column(table, column)
    if op.get_bind().dialect.name == "postgresql":
        for table, types in _SEEN.items():
            for column, kind in types.items():
                op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {kind}")
        for table, columns in _UNSEEN.items():
            for column in columns:
                op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET STATISTICS 0")


def _make_tables() -> None:
    op.create_table(
        "remarks",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("digest_key", sa.LargeBinary(length=32), nullable=True),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_remarks_case_id_cases")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_remarks")),
    )
    op.create_index(op.f("ix_remarks_case_id"), "remarks", ["case_id"])
    op.create_table(
        "erasures",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("cases", sa.JSON(), nullable=False),
        sa.Column("import_rows", sa.JSON(), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_erasures")),
    )


def _random() -> str:
    """SQL of 32 random bytes, for each row others."""
    if op.get_bind().dialect.name == "sqlite":
        return "randomblob(32)"
    # the one cryptographic source without an extension: 122 random bits each
    return "uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())"


def downgrade() -> None:
    dialect = op.get_bind().dialect.name
    op.add_column("labels", sa.Column("note", sa.Text(), nullable=True))
    op.add_column("labels", sa.Column("reason", sa.Text(), nullable=True))
    op.add_column("reads", sa.Column("note", sa.Text(), nullable=True))
    for statement in drop_triggers(dialect, "labels"):
        op.execute(statement)
    for table, columns in (("labels", ("note", "reason")), ("reads", ("note",))):
        for name in columns:
            op.execute(f"UPDATE {table} SET {name} = (SELECT {name} FROM remarks WHERE id = {table}.id)")  # noqa: S608
    for statement in create_triggers(dialect, "labels"):
        op.execute(statement)
    op.drop_table("remarks")
    op.drop_table("erasures")
    for table in _WITH_KEY:
        op.drop_column(table, "digest_key")
    op.drop_column("import_rows", "patient")
    if dialect == "postgresql":
        for table in _SEEN:
            for column in _SEEN[table]:
                op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET STATISTICS -1")
