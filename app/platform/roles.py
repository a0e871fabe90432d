"""Two roles on PostgreSQL: one owns the tables and migrates them, the other one serves and owns nothing.

Whoever owns a table may take its triggers off. A service that owns none cannot, whatever is done to its process.
"""

from sqlalchemy import Engine, text

from app.tables.append_only import APPEND_ONLY, SEALED

_OWNER = (
    "SELECT tableowner FROM pg_tables WHERE tablename = 'audit_events' AND schemaname = current_schema() "
    "AND NOT pg_has_role(current_user, tableowner, 'USAGE')"
)
_OWNED = (
    "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' "
    "AND n.nspname IN (current_schema(), 'dbos') "
    "AND (pg_has_role(current_user, c.relowner, 'MEMBER') OR pg_has_role(current_user, n.nspowner, 'MEMBER'))"
)


def require_owner(owner: Engine) -> None:
    """Refuse to migrate as a role that does not own the tables that are there.

    Raises:
        ValueError: it says which statement a superuser runs once.
    """
    with owner.connect() as connection:
        other = connection.execute(text(_OWNER)).scalar_one_or_none()
    if other is not None:
        quoted = owner.dialect.identifier_preparer.quote
        statement = f"REASSIGN OWNED BY {quoted(other)} TO {quoted(str(owner.url.username))}"
        raise ValueError(
            f"the tables belong to the role {other}, not to that of DATABASE_OWNER_URL; in this database a superuser "
            f"runs once: {statement}"
        )


def grant(owner: Engine, role: str) -> None:
    """Let a role use every table, and only add to those that are append-only.

    Args:
        owner: engine of the role that owns the tables.
        role: of the service.
    """
    name = owner.dialect.identifier_preparer.quote(role)
    statements = []
    for schema in ("public", "dbos"):
        statements += [
            f"GRANT USAGE ON SCHEMA {schema} TO {name}",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {name}",
            f"GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA {schema} TO {name}",
        ]
    statements.append(f"REVOKE UPDATE, DELETE ON {', '.join(APPEND_ONLY)} FROM {name}")
    # the sealer links events; a trigger lets it do so once
    statements.append(f"GRANT UPDATE ({', '.join(SEALED)}) ON audit_events TO {name}")
    statements.append(f"REVOKE INSERT, UPDATE, DELETE ON alembic_version FROM {name}")
    with owner.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def owns_tables(engine: Engine) -> bool:
    """Whether a service with this engine could take triggers off, or drop tables."""
    if engine.dialect.name != "postgresql":
        return False
    with engine.connect() as connection:
        return bool(connection.execute(text(_OWNED)).scalar_one())
