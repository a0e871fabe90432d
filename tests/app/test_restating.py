"""A migration that changes rows after events have vouched for them: `db upgrade` says so, and hides nothing."""

import pytest
from sqlalchemy import text

from app.cli import serving
from app.operations.proven import unproven_rows
from app.platform import audit_chain
from app.platform.migrate import downgrade
from tests.support.service import Service, cell_png

#: Its migration gives requests that wait another place in the queue, those of two of a case the same one.
BEFORE = "0017"


@pytest.mark.both_databases
def test_rows_that_a_migration_changes_get_an_event_and_a_row_that_was_wrong_before_stays_named(
    service: Service,
) -> None:
    context = service.context
    for number in range(3):
        service.add_case(f"case-{number}", cell_png(number), patient=f"p{number}")
    downgrade(context.database.engine, BEFORE)
    with context.database.write() as session:
        first = session.execute(text("SELECT id, case_id FROM read_requests ORDER BY id LIMIT 1")).one()
        session.execute(text("UPDATE read_requests SET shuffle = shuffle + 1"))  # as an older version would have it
        session.execute(text("UPDATE cases SET site = 'elsewhere' WHERE id = :id"), {"id": first.case_id})
        (fault,) = [line for line in unproven_rows(session, context.keys.audit.rows) if line.startswith("cases ")]
    restate_as_is(service)
    with context.database.write() as session:  # a row that the migration changes as well
        session.execute(text("UPDATE read_requests SET due_on = '2020-01-01' WHERE id = :id"), {"id": first.id})
    with context.database.read() as session:
        faults = list(unproven_rows(session, context.keys.audit.rows))
    assert (len(faults), fault in faults) == (2, True)
    serving._upgrade(context)
    with context.database.read() as session:
        assert list(unproven_rows(session, context.keys.audit.rows)) == faults
        (event,) = [event for event in audit_chain.events(session) if event.action == "rows.migrate"]
    assert event.details["from"] == BEFORE
    assert set(event.row_digests or {}) == {"read_requests"}
    service.written_past = True


def restate_as_is(service: Service) -> None:
    """Let an event vouch for the requests as they are."""
    from app.platform import baseline

    with service.context.database.write() as session:
        rows = [
            row
            for row in baseline.stored_digests(session, service.context.keys.audit.rows)
            if row[0] == "read_requests"
        ]
        baseline.record_digests(session, service.context.keys.audit, "test", {"n": len(rows)}, rows)
