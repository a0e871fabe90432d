"""Triggers that make a table append-only, in the dialect at hand."""

#: Tables whose rows are never changed or deleted.
APPEND_ONLY = ("labels", "predictions", "audit_events", "policies", "looks", "exposures", "case_changes")


def create_triggers(dialect: str, table: str) -> list[str]:
    """DDL that aborts UPDATE and DELETE on a table."""
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
