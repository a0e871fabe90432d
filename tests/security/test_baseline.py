"""A database of version 0.1.0, whose events carry no digests: a baseline covers its rows from the upgrade on."""

import pytest
from sqlalchemy import text

from app.cli import serving
from app.operations.verify import CONSISTENT, verify_all
from app.platform import audit_chain
from tests.security.test_tampering import Open, opened, populate
from tests.support.legacy_chain import make_legacy
from tests.support.service import Service, cell_png


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_the_rows_of_an_old_database_are_covered_from_the_upgrade_on(service: Service) -> None:
    populate(service)
    make_legacy(service.context)
    database = service.context.database
    with database.read() as session:
        report = verify_all(session, service.context)
        assert len([fault for fault in report.faults if fault.endswith("no audit event wrote it")]) > 50
        assert "no baseline: rows from before events carried digests are not covered" in report.faults
    for _ in range(2):
        serving._upgrade(service.context)
    service.add_case("later", cell_png(30))
    with database.read() as session:
        report = verify_all(session, service.context)
        actions = [event.action for event in audit_chain.all_events(session)]
    assert (report.faults, report.verdict) == ([], CONSISTENT)
    assert (actions.count("rows.baseline"), actions[-1]) == (1, "case.add")


CHANGES = {
    "UPDATE remarks SET note = 'another' WHERE note IS NOT NULL": "not as audit event",
    "DELETE FROM exposures": "missing, although audit event",
    "UPDATE audit_events SET actor = 'x' WHERE sequence = 4": "audit event 4 was changed",
    "DELETE FROM case_changes WHERE stamp < 20": "case_changes",
    "UPDATE audit_events SET row_digests = NULL WHERE action = 'case.add'": "was changed, or one before it",
    "UPDATE audit_events SET row_digests = '{}' WHERE action = 'rows.baseline'": "was changed, or one before it",
    "UPDATE audit_events SET signature = '00' WHERE action = 'rows.baseline'": "was changed, or one before it",
    "UPDATE labels SET confidence = 'much'": "rows of labels cannot be checked (",
    "DELETE FROM audit_head": "its head says nothing",
}


@pytest.mark.slow
def test_a_change_behind_the_baseline_is_found(service: Service) -> None:
    populate(service)
    make_legacy(service.context)
    serving._upgrade(service.context)
    service.add_case("later", cell_png(30))
    service.written_past = True
    with opened(service) as database:
        for statement, expected in CHANGES.items():
            faults = faults_after(database, statement)
            assert any(expected in fault for fault in faults), (statement, faults)


def test_a_second_baseline_covers_nothing_up(service: Service) -> None:
    """Somebody with the key changes a row and writes its digest into another baseline."""
    service.add_case("a", cell_png(1))
    with service.context.database.write() as session:
        audit_chain.record(session, service.context.keys.audit, actor="x", action="rows.baseline", object_id="rows")
    with service.context.database.read() as session:
        (fault,) = verify_all(session, service.context).faults
    assert "is a baseline, although earlier events carry digests already" in fault
    service.written_past = True


def faults_after(database: Open, statement: str) -> list[str]:
    with database.tampering() as connection:
        assert connection.execute(text(statement)).rowcount > 0
        return database.faults(connection)
