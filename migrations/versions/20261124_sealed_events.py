"""Audit events have a stamp of their own, so that on PostgreSQL they are written without waiting and linked later."""

import sqlalchemy as sa
from alembic import op

from app.tables.append_only import (
    create_plain_triggers,
    create_replace_trigger,
    create_triggers,
    drop_plain_triggers,
    drop_triggers,
)

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None

_TABLES = ("case_changes", "audit_events")
_COUNTER = "audit_events_stamp_seq"
_WAITING = sa.text("sequence IS NULL")
_SAID = (
    *("sequence", "created_at", "actor", "action", "object", "details", "reason", "request_id", "digest"),
    *("row_digests", "event_sha256", "signature", "link_signature"),
)


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        _rebuild(stamped=True)
        return
    op.execute("SET LOCAL statement_timeout = 0")  # every event is written anew
    _without_triggers()
    op.drop_constraint("fk_case_changes_sequence_audit_events", "case_changes", type_="foreignkey")
    op.alter_column("case_changes", "sequence", new_column_name="stamp", type_=sa.BigInteger())
    op.add_column("audit_events", sa.Column("stamp", sa.BigInteger(), nullable=True))
    op.execute("UPDATE audit_events SET stamp = sequence")
    op.drop_constraint("pk_audit_events", "audit_events", type_="primary")
    op.create_primary_key("pk_audit_events", "audit_events", ["stamp"])
    for column in ("sequence", "digest"):
        op.alter_column("audit_events", column, nullable=True)
    op.create_unique_constraint("uq_audit_events_sequence", "audit_events", ["sequence"])
    op.create_index("ix_audit_events_waiting", "audit_events", ["stamp"], postgresql_where=_WAITING)
    op.create_foreign_key("fk_case_changes_stamp_audit_events", "case_changes", "audit_events", ["stamp"], ["stamp"])
    op.execute(f"CREATE SEQUENCE {_COUNTER} OWNED BY audit_events.stamp")
    op.execute(f"SELECT setval('{_COUNTER}', coalesce(max(stamp), 0) + 1, false) FROM audit_events")  # noqa: S608
    _with_triggers(stamped=True)


def downgrade() -> None:
    """What waits for the sealer has no place in the chain, and would be lost: it must be sealed first.

    Raises:
        RuntimeError: events wait.
    """
    waiting = op.get_bind().execute(sa.text("SELECT count(*) FROM audit_events WHERE sequence IS NULL")).scalar_one()
    if waiting:
        raise RuntimeError(f"{waiting} audit events are not sealed yet: let a worker of this version run first")
    if op.get_bind().dialect.name == "sqlite":
        _rebuild(stamped=False)
        return
    op.execute("SET LOCAL statement_timeout = 0")
    _without_triggers()
    op.drop_constraint("fk_case_changes_stamp_audit_events", "case_changes", type_="foreignkey")
    op.drop_constraint("pk_case_changes", "case_changes", type_="primary")  # numbers and stamps may cross
    op.execute(
        "UPDATE case_changes SET stamp = (SELECT sequence FROM audit_events e WHERE e.stamp = case_changes.stamp)"
    )
    op.alter_column("case_changes", "stamp", new_column_name="sequence", type_=sa.Integer())
    op.create_primary_key("pk_case_changes", "case_changes", ["sequence", "case_id"])
    op.drop_index("ix_audit_events_waiting", "audit_events")
    op.drop_constraint("uq_audit_events_sequence", "audit_events", type_="unique")
    op.drop_constraint("pk_audit_events", "audit_events", type_="primary")
    op.create_primary_key("pk_audit_events", "audit_events", ["sequence"])
    op.alter_column("audit_events", "digest", nullable=False)
    op.drop_column("audit_events", "stamp")  # its counter goes with it
    op.create_foreign_key(
        "fk_case_changes_sequence_audit_events", "case_changes", "audit_events", ["sequence"], ["sequence"]
    )
    _with_triggers(stamped=False)


def _without_triggers() -> None:
    stamped = "stamp" in {column["name"] for column in sa.inspect(op.get_bind()).get_columns("audit_events")}
    for table in _TABLES:
        for statement in (drop_triggers if stamped else drop_plain_triggers)("postgresql", table):
            op.execute(statement)


def _with_triggers(*, stamped: bool) -> None:
    for table in _TABLES:
        for statement in (create_triggers if stamped else create_plain_triggers)("postgresql", table):
            op.execute(statement)


def _rebuild(*, stamped: bool) -> None:
    """SQLite changes no primary key in place: both tables are made anew, and what they contain comes back."""
    key, former = ("stamp", "sequence") if stamped else ("sequence", "stamp")
    op.execute("CREATE TABLE events_aside AS SELECT * FROM audit_events")
    op.execute(f"CREATE TABLE changes_aside AS SELECT {former} AS event, case_id FROM case_changes")  # noqa: S608
    op.drop_table("case_changes")
    op.drop_table("audit_events")
    _create_events(stamped=stamped)
    names = ", ".join(_SAID)
    into, out = (f"stamp, {names}", f"sequence, {names}") if stamped else (names, names)
    op.execute(f"INSERT INTO audit_events ({into}) SELECT {out} FROM events_aside")  # noqa: S608
    op.create_table(
        "case_changes",
        sa.Column(key, sa.Integer(), nullable=False),
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_case_changes_case_id_cases")),
        sa.ForeignKeyConstraint([key], [f"audit_events.{key}"], name=op.f(f"fk_case_changes_{key}_audit_events")),
        sa.PrimaryKeyConstraint(key, "case_id", name=op.f("pk_case_changes")),
    )
    op.execute(f"INSERT INTO case_changes ({key}, case_id) SELECT event, case_id FROM changes_aside")  # noqa: S608
    for table in ("events_aside", "changes_aside"):
        op.drop_table(table)
    for table in _TABLES:
        for statement in create_plain_triggers("sqlite", table):
            op.execute(statement)
    keys = ("stamp = NEW.stamp", "sequence = NEW.sequence") if stamped else ("sequence = NEW.sequence",)
    op.execute(create_replace_trigger("audit_events", keys))
    op.execute(create_replace_trigger("case_changes", (f"{key} = NEW.{key} AND case_id = NEW.case_id",)))


def _create_events(*, stamped: bool) -> None:
    key = "stamp" if stamped else "sequence"
    own = [sa.Column("stamp", sa.Integer(), autoincrement=False, nullable=False)] if stamped else []
    op.create_table(
        "audit_events",
        *own,
        sa.Column("sequence", sa.Integer(), autoincrement=False, nullable=stamped),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(length=100), nullable=False),
        sa.Column("action", sa.String(length=50), nullable=False),
        sa.Column("object", sa.String(length=100), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("request_id", sa.String(length=100), nullable=True),
        sa.Column("digest", sa.String(length=64), nullable=stamped),
        sa.Column("row_digests", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("event_sha256", sa.String(length=64), nullable=True),
        sa.Column("signature", sa.String(length=128), nullable=True),
        sa.Column("link_signature", sa.String(length=128), nullable=True),
        sa.PrimaryKeyConstraint(key, name=op.f("pk_audit_events")),
        *([sa.UniqueConstraint("sequence", name=op.f("uq_audit_events_sequence"))] if stamped else []),
    )
    op.create_index(op.f("ix_audit_events_object"), "audit_events", ["object"], unique=False)
    if stamped:
        op.create_index("ix_audit_events_waiting", "audit_events", ["stamp"], sqlite_where=_WAITING)
