"""The baseline covers the rows that come with the tables, and nothing else does so once more."""

import pytest
from sqlalchemy import text

from app.audit.chain import events
from app.audit.verify import verify_all
from tests.security.test_tampering import Open, opened, populate
from tests.support.service import Service, cell_png

CHANGES = {
    "UPDATE remarks SET note = 'another' WHERE note IS NOT NULL": "not as audit event",
    "DELETE FROM exposures": "missing, although audit event",
    "UPDATE audit_events SET actor = 'x' WHERE sequence = 4": "audit event 4 was changed",
    "DELETE FROM case_changes WHERE sequence < 20": "case_changes",
    "UPDATE audit_events SET row_digests = 'null' WHERE action = 'case.add'": "was changed, or one before it",
    "UPDATE audit_events SET row_digests = '{}' WHERE action = 'rows.baseline'": "was changed, or one before it",
    "UPDATE audit_events SET signature = '00' WHERE action = 'rows.baseline'": "was changed, or one before it",
    "UPDATE labels SET confidence = 'much'": "rows of labels cannot be checked (",
    "DELETE FROM audit_head": "its head says nothing",
}


@pytest.mark.slow
def test_a_change_past_the_service_is_found(service: Service) -> None:
    populate(service)
    service.written_past = True
    with opened(service) as database:
        for statement, expected in CHANGES.items():
            faults = faults_after(database, statement)
            assert any(expected in fault for fault in faults), (statement, faults)


def test_a_second_baseline_covers_nothing_up(service: Service) -> None:
    """Somebody with the key changes a row and writes its digest into another baseline."""
    service.add_case("a", cell_png(1))
    with service.context.database.write() as session:
        events.record_event(session, service.context.keys.audit, actor="x", action="rows.baseline", object_id="rows")
    with service.context.database.read() as session:
        (fault,) = verify_all(session, service.context).faults
    assert "is a baseline, and not the first event" in fault
    service.written_past = True


def faults_after(database: Open, statement: str) -> list[str]:
    with database.tampering() as connection:
        assert connection.execute(text(statement)).rowcount > 0
        return database.faults(connection)
