"""Triggers that make a table append-only, in the dialect at hand."""

from collections.abc import Sequence

#: Tables whose rows are never changed or deleted.
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


_EVENTS = "audit_events"
#: What the sealer gives an event, once.
SEALED = ("sequence", "digest", "link_signature")
_SAID = (
    *("stamp", "created_at", "actor", "action", "object", "details", "reason", "request_id"),
    *("row_digests", "event_sha256", "signature"),
)


def create_triggers(dialect: str, table: str) -> list[str]:
    """DDL that aborts UPDATE and DELETE on a table; on PostgreSQL an audit event may still be linked, once."""
    if dialect == "postgresql" and table == _EVENTS:
        return _create_event_triggers()
    return create_plain_triggers(dialect, table)


def create_plain_triggers(dialect: str, table: str) -> list[str]:
    """DDL that aborts every UPDATE and DELETE on a table."""
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


def _create_event_triggers() -> list[str]:
    """DDL for PostgreSQL: of an event that has no place in the chain yet nothing but the link may change."""
    # json has no equality; its text is what was stored
    before, after = (", ".join(f"{row}.{name}::text" for name in _SAID) for row in ("OLD", "NEW"))
    links = f"OLD.sequence IS NULL AND NEW.sequence IS NOT NULL AND ROW({before}) IS NOT DISTINCT FROM ROW({after})"
    return [
        f"CREATE FUNCTION {_EVENTS}_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF TG_OP = 'UPDATE' AND TG_LEVEL = 'ROW' THEN IF {links} THEN RETURN NEW; END IF; END IF; "
        f"RAISE EXCEPTION '{_EVENTS} is append-only'; END $$",
        f"CREATE TRIGGER {_EVENTS}_append_only BEFORE DELETE OR TRUNCATE ON {_EVENTS} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {_EVENTS}_append_only()",
        f"CREATE TRIGGER {_EVENTS}_linked_once BEFORE UPDATE ON {_EVENTS} "
        f"FOR EACH ROW EXECUTE FUNCTION {_EVENTS}_append_only()",
    ]


def drop_triggers(dialect: str, table: str) -> list[str]:
    """DDL that takes the triggers away."""
    if dialect == "postgresql" and table == _EVENTS:
        return [f"DROP TRIGGER {table}_linked_once ON {table}", *drop_plain_triggers(dialect, table)]
    return drop_plain_triggers(dialect, table)


def drop_plain_triggers(dialect: str, table: str) -> list[str]:
    """DDL that takes away what ``create_plain_triggers`` made."""
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
