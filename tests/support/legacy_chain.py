"""The audit chain of a database as version 0.1.0 wrote it: without digests of rows, linked by the key alone."""

from sqlalchemy import Connection, null, select, text, update

from app.context import Context
from app.platform import audit_chain, baseline
from app.platform.keys import DerivedKey
from app.platform.sealing import seal_all
from app.tables import AuditEvent, AuditHead, create_triggers, drop_triggers

_TABLES = ("audit_events", "installation")


def make_legacy(context: Context) -> None:
    """Write the chain anew as 0.1.0 would have, and forget the check value of the key.

    Args:
        context: of a service with a current database.
    """
    seal_all(context.database, context.keys.audit)
    with context.database.engine.begin() as connection:
        dialect = connection.dialect.name
        for table in _TABLES:
            for statement in drop_triggers(dialect, table):
                connection.execute(text(statement))
        _rewrite(connection, context.keys.audit.links)
        connection.execute(text("DELETE FROM installation"))
        for table in _TABLES:
            for statement in create_triggers(dialect, table):
                connection.execute(text(statement))


def _rewrite(connection: Connection, links: DerivedKey) -> None:
    previous = audit_chain.GENESIS
    for row in connection.execute(select(AuditEvent.__table__).order_by(AuditEvent.sequence)).mappings().all():
        event = AuditEvent(**row)
        event.action = "service.begin" if event.action == baseline.ACTION else event.action
        previous = audit_chain.keyed_digest(links, previous, event)
        values = {"action": event.action, "digest": previous, "row_digests": null(), "signature": None}
        values |= {"event_sha256": None, "link_signature": None}
        connection.execute(update(AuditEvent).where(AuditEvent.sequence == event.sequence).values(values))
    connection.execute(update(AuditHead).values(digest=previous))
