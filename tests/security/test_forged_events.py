"""An event that was not linked with the key is named, whatever else of the chain fits."""

import pytest
from sqlalchemy import text

from app.audit.chain import verify_proof
from app.audit.verify import check_audit
from app.context import ServiceContext
from app.database.tables import drop_triggers
from app.database.tables.append_only import drop_replace_trigger
from tests.support.chain import all_events, relink
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png

_COPIED = ("created_at", "actor", "action", "object", "details", "reason", "request_id", "row_digests", "digest")


def faults(context: ServiceContext) -> list[str]:
    with context.database.read_moment() as session:
        return check_audit(session, context.keys.audit).faults


@pytest.mark.both_databases
@pytest.mark.parametrize(
    "changed",
    [{}, {"actor": "'somebody'"}, {"digest": "''"}, {"signature": "''"}],
    ids=["replayed", "forged", "without a digest", "without a signature"],
)
def test_an_event_that_is_there_once_more_is_named(service: Service, changed: dict[str, str]) -> None:
    """Somebody without the key brings a row back as it was, with the event that wrote it then."""
    context = service.context
    service.add_case()
    service.written_past = True
    with context.database.write() as session:
        last = len(all_events(session))
        columns = (*_COPIED, "signature")
        values = ", ".join(changed.get(name, name) for name in columns)
        copy = f"INSERT INTO audit_events (sequence, {', '.join(columns)}) SELECT {last + 1}, {values} "
        session.execute(text(f"{copy} FROM audit_events WHERE sequence = {last}"))
        session.execute(text("UPDATE audit_head SET sequence = sequence + 1"))
    assert faults(context)[0] == f"audit event {last + 1} was changed, or one before it was removed"
    service.add_case("after it", cell_png(2))
    assert len([fault for fault in faults(context) if "was changed" in fault]) >= 1


@undone("T21", "an event that was not signed with the key is named", verify_proof, "is_signed", lambda *_: True)
def test_an_event_less_is_named_although_digests_need_no_key(service: Service) -> None:
    """Somebody without the key takes an event out, and computes numbers and digests of the rest."""
    for number in range(3):
        service.add_case(f"case-{number}", cell_png(number))
    service.written_past = True
    with service.context.database.write() as session:
        for table in ("audit_events", "case_changes"):
            for statement in (*drop_triggers("sqlite", table), drop_replace_trigger(table)):
                session.execute(text(statement))
        session.execute(text("PRAGMA defer_foreign_keys = ON"))
        chain = all_events(session)
        gone = chain.pop(-2)
        session.execute(text("DELETE FROM case_changes WHERE sequence >= :n"), {"n": gone["sequence"]})
        session.execute(text("DELETE FROM audit_events WHERE sequence = :n"), {"n": gone["sequence"]})
        relink(session, chain, None)
    assert f"audit event {len(chain)} was changed, or one before it was removed" in faults(service.context)
