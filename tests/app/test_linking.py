"""An event stands for itself; the linker chains events, and a chain of an earlier version is written anew once."""

from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import select, text, update
from sqlalchemy.exc import DBAPIError

from app.cli import serving
from app.context import Context, build_context
from app.operations.anchor import append, missing_heads
from app.operations.proven import unproven_rows
from app.operations.rewriting import has_former_events, rewrite
from app.operations.verify import verify_all
from app.platform import audit_chain, chain_check
from app.settings import Settings
from app.tables import AuditEvent
from tests.support.legacy_chain import make_legacy
from tests.support.service import KEY, Service, cell_png
from tests.support.version_0_1_0 import write_database


def chain_faults(context: Context) -> list[str]:
    with context.database.read() as session:
        return chain_check.verify(session, context.keys.audit)[1]


def test_an_event_does_not_depend_on_what_comes_before_it(service: Service) -> None:
    """It can be digested and signed before anybody knows its place, and linked to any chain."""
    service.add_case("a", cell_png(1))
    signer = service.context.keys.audit.signers[0]
    with service.context.database.read() as session:
        event = list(audit_chain.events(session))[-1]
    own, signature, digest = event.event_sha256, event.signature, event.digest
    for sequence, previous in ((1, audit_chain.GENESIS), (77, "a" * 64)):
        audit_chain.sign_event(event, signer)
        audit_chain.link(event, sequence, previous, signer)
        assert (event.event_sha256, event.signature) == (own, signature)
        assert event.digest != digest
        assert audit_chain.is_authentic(signer.public, previous, event)
        assert not audit_chain.is_authentic(signer.public, "b" * 64, event)


def test_an_event_less_is_found_although_links_need_no_key(service: Service) -> None:
    """Somebody without the key takes an event out and links the rest: each is still whole and signed by itself."""
    for number in range(3):
        service.add_case(f"case-{number}", cell_png(number))
    service.written_past = True
    with service.context.database.write() as session:
        for trigger in ("audit_events_no_update", "audit_events_no_delete", "case_changes_no_delete"):
            session.execute(text(f"DROP TRIGGER {trigger}"))
        session.execute(text("PRAGMA defer_foreign_keys = ON"))
        chain = list(audit_chain.events(session))
        gone = chain.pop(-2)
        session.execute(text("DELETE FROM case_changes WHERE stamp >= :n"), {"n": gone.sequence})
        session.execute(text("DELETE FROM audit_events WHERE sequence = :n"), {"n": gone.sequence})
        signer, previous = service.context.keys.audit.signers[0], audit_chain.GENESIS
        for sequence, event in enumerate(chain, 1):
            before, signed = event.sequence, event.link_signature
            audit_chain.link(event, sequence, previous, signer)
            values = {"sequence": sequence, "digest": event.digest, "link_signature": signed}
            session.execute(update(AuditEvent).where(AuditEvent.sequence == before).values(values))
            previous = event.digest
        session.execute(text("UPDATE audit_head SET sequence = :n, digest = :d"), {"n": len(chain), "d": previous})
    assert chain_faults(service.context) == [f"audit event {len(chain)} was changed, or one before it was removed"]


@pytest.mark.both_databases
def test_a_chain_of_0_1_0_is_written_anew_once_and_stays_append_only(service: Service, tmp_path: Path) -> None:
    service.add_case("a", cell_png(1))
    make_legacy(service.context)
    context, anchor = service.context, tmp_path / "heads"
    with context.database.read() as session:
        old = audit_chain.newest(session)
        append(anchor, session, context.keys.audit)
    context.settings.audit_anchor = anchor
    for _ in range(2):
        serving._upgrade(context)
    context.settings.audit_anchor = None
    with context.database.read() as session:
        written = [event for event in audit_chain.events(session) if event.action == audit_chain.REWRITE]
        assert [event.details["old_head"] for event in written] == [old]
        new = written[0].details["new_head"]
        sequence, _, digest = new.partition(":")
        assert audit_chain.holds(session, int(sequence), digest)
        assert list(missing_heads(anchor, session, context.keys.audit)) == []
        report = verify_all(session, context, old)
        assert report.faults == []
        assert any("written anew after it" in line for line in report.restores)
    with context.database.write() as session, pytest.raises(DBAPIError, match="append-only"):
        session.execute(text("UPDATE audit_events SET actor = 'x'"))


@pytest.fixture
def former(tmp_path: Path) -> Context:
    """Parts of a service on a database that 0.1.0 filled."""
    (tmp_path / "home").mkdir()
    write_database(tmp_path / "home" / "secondread.db")
    return build_context(Settings(home=tmp_path / "home", secret_key=SecretStr(KEY)))


def test_what_was_wrong_before_stays_named(former: Context) -> None:
    with former.database.write() as session:
        session.execute(text("DROP TRIGGER audit_events_no_update"))
        session.execute(text("UPDATE audit_events SET actor = 'somebody' WHERE sequence = 7"))
        session.execute(
            text(
                "CREATE TRIGGER audit_events_no_update BEFORE UPDATE ON audit_events "
                "BEGIN SELECT RAISE(ABORT, 'audit_events is append-only'); END"
            )
        )
    serving._upgrade(former)
    assert chain_faults(former) == [
        "before the chain was written anew: audit event 7 was changed, or one before it was removed"
    ]
    former.database.engine.dispose()


@pytest.mark.both_databases
def test_events_may_be_changed_while_the_chain_is_written_anew(service: Service) -> None:
    service.add_case("a", cell_png(1))
    service.written_past = True  # predictions are counted by what is forgotten here
    context = service.context

    def forget(event: AuditEvent) -> None:
        event.details = {name: value for name, value in event.details.items() if name != "release"}

    with context.database.write(key="alone") as session:
        rewrite(session, context.keys.audit, "a test", forget)
        assert not has_former_events(session)
    assert chain_faults(context) == []
    with context.database.read() as session:
        cases = select(AuditEvent).where(AuditEvent.action == "case.add")
        assert ["release" in event.details for event in session.execute(cases).scalars()] == [False]
        assert list(unproven_rows(session, context.keys.audit.rows)) == []
