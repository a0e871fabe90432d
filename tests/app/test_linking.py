"""An event stands for itself; the linker chains events."""

from sqlalchemy import text, update

from app.audit.chain import events
from app.context import ServiceContext
from app.database.tables import AuditEvent
from tests.support.service import Service, cell_png


def chain_faults(context: ServiceContext) -> list[str]:
    with context.database.read() as session:
        return events.verify_chain(session, context.keys.audit)[1]


def test_an_event_does_not_depend_on_what_comes_before_it(service: Service) -> None:
    """It can be digested and signed before anybody knows its place, and linked to any chain."""
    service.add_case("a", cell_png(1))
    signer = service.context.keys.audit.signers[0]
    with service.context.database.read() as session:
        event = list(events.read_linked_events(session))[-1]
    own, signature, digest = event.event_sha256, event.signature, event.digest
    for sequence, previous in ((1, events.GENESIS), (77, "a" * 64)):
        events.sign_event(event, signer)
        events.link_event(event, sequence, previous, signer)
        assert (event.event_sha256, event.signature) == (own, signature)
        assert event.digest != digest
        assert events.is_authentic_link(signer.public, previous, event)
        assert not events.is_authentic_link(signer.public, "b" * 64, event)


def test_an_event_less_is_found_although_links_need_no_key(service: Service) -> None:
    """Somebody without the key takes an event out and links the rest: each is still whole and signed by itself."""
    for number in range(3):
        service.add_case(f"case-{number}", cell_png(number))
    service.written_past = True
    with service.context.database.write() as session:
        for trigger in ("audit_events_no_update", "audit_events_no_delete", "case_changes_no_delete"):
            session.execute(text(f"DROP TRIGGER {trigger}"))
        session.execute(text("PRAGMA defer_foreign_keys = ON"))
        chain = list(events.read_linked_events(session))
        gone = chain.pop(-2)
        session.execute(text("DELETE FROM case_changes WHERE stamp >= :n"), {"n": gone.sequence})
        session.execute(text("DELETE FROM audit_events WHERE sequence = :n"), {"n": gone.sequence})
        signer, previous = service.context.keys.audit.signers[0], events.GENESIS
        for sequence, event in enumerate(chain, 1):
            before, signed = event.sequence, event.link_signature
            events.link_event(event, sequence, previous, signer)
            values = {"sequence": sequence, "digest": event.digest, "link_signature": signed}
            session.execute(update(AuditEvent).where(AuditEvent.sequence == before).values(values))
            previous = event.digest
        session.execute(text("UPDATE audit_head SET sequence = :n, digest = :d"), {"n": len(chain), "d": previous})
    assert chain_faults(service.context) == [f"audit event {len(chain)} was changed, or one before it was removed"]
