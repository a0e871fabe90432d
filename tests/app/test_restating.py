"""A migration that changes rows after events have vouched for them: `db upgrade` says so, and hides nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest
from sqlalchemy import Engine, insert, text
from sqlalchemy import column as column_of
from sqlalchemy import table as table_of

from app.cli import serving
from app.operations.proven import unproven_rows
from app.platform import audit_chain, baseline
from app.platform.migrate import downgrade
from app.tables import AuditEvent, now
from tests.support.service import Service, cell_png

#: The next migration gives every row about a patient a key of its own, and moves notes.
BEFORE = "0019"


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_rows_that_a_migration_changes_get_an_event_and_a_row_that_was_wrong_before_stays_named(
    service: Service,
) -> None:
    context = service.context
    service.written_past = True
    service.before_change = lambda: None  # what is changed past the service, no snapshot sees
    for number in range(3):
        case = service.add_case(f"case-{number}", cell_png(number), patient=f"p{number}")
        first_class, note = case["prediction"]["classes"][0], f"note {number}"
        answer = service.label("outside", case["id"], first_class, annotator="r1", blind=True, note=note)
        assert answer.status_code == 201
    service.seal()
    downgrade(context.database.engine, BEFORE)
    with context.database.write() as session:
        first = session.execute(text("SELECT id, case_id FROM read_requests ORDER BY id LIMIT 1")).one()
        notes = session.execute(text("SELECT id FROM labels WHERE note IS NOT NULL")).scalars().all()
    with columns_of_events(context.database.engine):
        vouch(service, [UUID(str(note)) for note in notes])  # rows of that version
    with context.database.write() as session:  # rows that the migrations change as well
        session.execute(text("UPDATE cases SET site = 'elsewhere' WHERE id = :id"), {"id": first.case_id})
        session.execute(text("UPDATE read_requests SET due_on = '2020-01-01' WHERE id = :id"), {"id": first.id})
    serving._upgrade(context)
    with context.database.read() as session:
        faults = [line.partition(":")[0] for line in unproven_rows(session, context.keys.audit.rows)]
        (event,) = [event for event in audit_chain.all_events(session) if event.action == "rows.migrate"]
        notes = session.execute(text("SELECT note FROM remarks ORDER BY note")).scalars().all()
    assert set(faults) == {f"cases {UUID(str(first.case_id))}", f"read_requests {UUID(str(first.id))}"}
    assert event.details["from"] == BEFORE
    assert {"cases", "labels", "network_outputs", "read_requests", "remarks"} == set(event.row_digests or {})
    assert notes == ["note 0", "note 1", "note 2"]


@contextmanager
def columns_of_events(engine: Engine) -> Iterator[None]:
    """What the older table of events lacks, for as long as an event is written."""
    for how in ("ADD COLUMN {} VARCHAR(128)", "DROP COLUMN {}"):
        with engine.begin() as connection:
            for name in ("event_sha256", "link_signature"):
                connection.execute(text(f"ALTER TABLE audit_events {how.format(name)}"))
        if how.startswith("ADD"):
            yield


def vouch(service: Service, remarks: list[UUID]) -> None:
    """Let an event vouch for all rows as they are, and for notes that had no rows yet; events have no stamps yet."""
    keys, leaves = service.context.keys.audit, {"remarks": dict[str, str | None]()}
    with service.context.database.write() as session:
        for table, key, digest in baseline.stored_digests(session, keys.rows):
            leaves.setdefault(table, {})[key] = digest
        leaves["remarks"] |= {str(remark): None for remark in remarks}
        event = AuditEvent(created_at=now(), actor="test", action="test", object="rows", details={}, row_digests=leaves)
        audit_chain.sign_event(event, keys.signers[0])
        sequence, digest = audit_chain.head_of(session)
        audit_chain.link(event, sequence + 1, digest, keys.signers[0])
        former = [column for column in AuditEvent.__table__.columns if column.name != "stamp"]
        events = table_of("audit_events", *(column_of(column.name, column.type) for column in former))
        session.execute(insert(events).values({column.name: getattr(event, column.name) for column in former}))
        head = {"sequence": event.sequence, "digest": event.digest}
        session.execute(text("UPDATE audit_head SET sequence = :sequence, digest = :digest"), head)
