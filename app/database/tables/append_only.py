"""Triggers that make a table append-only, in the dialect at hand."""

from collections.abc import Sequence

#: Tables of the first migration whose rows are never changed or deleted.
APPEND_ONLY = (
    "labels",
    "predictions",
    "audit_events",
    "policies",
    "looks",
    "exposures",
    "case_changes",
    "installation",
    "held_back",
    "reader_draws",
    "practice_cells",
    "practice_items",
    "practice_answers",
    "qualifications",
    "report_targets",
    "reference_cells",
    "class_definitions",
)
#: Every such table, with those of later migrations.
EVERY_APPEND_ONLY = (*APPEND_ONLY, "class_settings", "outcomes", "specimen_knowledge", "specimen_signatures")


def create_triggers(dialect: str, table: str) -> list[str]:
    """DDL that aborts every UPDATE and DELETE on a table, in the dialect at hand."""
    message = f"{table} is append-only"
    if dialect == "sqlite":
        return [
            f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
            for verb in ("UPDATE", "DELETE")
        ]
    return [
        f"CREATE FUNCTION {table}_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{message}'; END $$",
        f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {table}_append_only()",
    ]


def drop_triggers(dialect: str, table: str) -> list[str]:
    """DDL that takes the triggers away."""
    if dialect == "sqlite":
        return [f"DROP TRIGGER {table}_no_{verb}" for verb in ("update", "delete")]
    return [f"DROP TRIGGER {table}_append_only ON {table}", f"DROP FUNCTION {table}_append_only()"]


def create_replace_trigger(table: str, unique: Sequence[str]) -> str:
    """DDL for SQLite that aborts an INSERT which would meet a row that is there."""
    # REPLACE deletes the row in its way without asking a DELETE trigger, unless the connection chose so
    # (``recursive_triggers``); a trigger before the INSERT is always asked. The hidden rowid is a key like the others.
    rows = [f"EXISTS (SELECT 1 FROM {table} WHERE {same})" for same in (*unique, "rowid = NEW.rowid")]  # noqa: S608
    return (
        f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} WHEN {' OR '.join(rows)} "
        f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
    )


def drop_replace_trigger(table: str) -> str:
    """DDL for SQLite that takes the trigger away."""
    return f"DROP TRIGGER {table}_no_replace"
