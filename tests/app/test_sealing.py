"""Many write at once on PostgreSQL, and the sealer links what they wrote in an order that is right."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from random import Random

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.linking import (
    ChainLinker,
    ChainLost,
    count_waiting_events,
    explain_link_delay,
    link_all_waiting,
    link_waiting_batch,
)
from app.audit.verify import check_row_digests, verify_all
from app.context import ServiceContext
from app.database.sql.advisory_locks import AdvisoryLock, acquire_lock
from app.database.tables import AuditEvent, CaseChange, ReadRequest
from app.metrics.snapshot import load_current_dataset, write_snapshot
from tests.support.service import Service, cell_png
from tests.support.waiting import wait_until

pytestmark = pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)


def note(session: Session, context: ServiceContext, what: str) -> AuditEvent:
    """Write an event."""
    return events.record_event(session, context.keys.audit, actor="test", action="test", object_id=what)


def order(context: ServiceContext) -> list[str]:
    """What the linked events of these tests are about, in the order of the chain."""
    with context.database.read() as session:
        return [event.object for event in events.read_linked_events(session) if event.action == "test"]


@contextmanager
def open_transaction(context: ServiceContext, what: str) -> Iterator[Session]:
    """A transaction that has written an event and goes on."""
    with context.database.write() as session:
        note(session, context, what)
        yield session


def test_an_event_is_there_at_once_and_gets_its_place_from_the_sealer(service: Service) -> None:
    context = service.context
    service.seal()
    case = service.add_case()
    with context.database.read() as session:
        assert count_waiting_events(session).n_events > 0
        assert events.verify_chain(session, context.keys.audit)[1] == []
        assert list(check_row_digests(session, context.keys.audit.rows)) == []
    shown = service.get("admin", "/v1/audit-events").json()["items"][0]
    assert (shown["object"], shown["sequence"], shown["digest"]) == (case["id"], None, None)
    before = {name: value for name, value in shown.items() if name not in {"sequence", "digest"}}
    assert service.seal() > 0
    assert service.seal() == 0
    linked = service.get("admin", "/v1/audit-events").json()["items"][0]
    assert before.items() <= linked.items()
    assert f"{linked['sequence']}:{linked['digest']}" == head(context)
    with context.database.read() as session:
        assert count_waiting_events(session).n_events == 0
        assert verify_all(session, context).faults == []


def head(context: ServiceContext) -> str:
    with context.database.read() as session:
        return events.read_head_text(session)


def test_an_open_transaction_holds_nobody_up_and_comes_when_it_is_committed(service: Service) -> None:
    context = service.context
    with open_transaction(context, "long"):
        for number in range(3):
            with context.database.write() as session:
                note(session, context, f"short {number}")
        service.seal()
        assert order(context) == ["short 0", "short 1", "short 2"]
        with context.database.read() as session:
            assert count_waiting_events(session).n_events == 0
    service.seal()
    assert order(context) == ["short 0", "short 1", "short 2", "long"]


def test_a_transaction_of_a_smaller_number_that_changed_a_row_later_comes_later(service: Service) -> None:
    """Transaction numbers alone would link it first: it began to write before the one that it waited for, and an older
    one is open still, so that only its own number is below the oldest running one."""
    context, case = service.context, service.add_case()
    service.seal()
    with (
        context.database.write() as later,
        open_transaction(context, "open"),
        context.database.write() as earlier,
    ):
        numbers = [later.execute(text("SELECT pg_current_xact_id()::text::bigint")).scalar_one()]
        request = earlier.execute(select(ReadRequest).limit(1).with_for_update()).scalar_one()
        numbers.append(earlier.execute(text("SELECT pg_current_xact_id()::text::bigint")).scalar_one())
        request.due_on = "2030-01-01"
        note(earlier, context, "first version")
        earlier.commit()
        request = later.execute(select(ReadRequest).limit(1).with_for_update()).scalar_one()
        request.due_on = "2031-01-01"
        note(later, context, "second version")
        later.commit()
        assert numbers == sorted(numbers)
        service.seal()
        assert order(context) == ["first version", "second version"]
    with context.database.read() as session:
        assert list(check_row_digests(session, context.keys.audit.rows)) == [], case["id"]


class Journal:
    """When transactions began and ended, by a clock of this process."""

    def __init__(self) -> None:
        self.spans: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def write(self, context: ServiceContext, what: str, random: Random, requests: list[object]) -> None:
        """Change some rows in a transaction that takes its time at random places."""
        began = time.monotonic()
        with context.database.write() as session:
            if random.random() < 0.5:
                session.execute(text("SELECT pg_current_xact_id()"))
            for request_id in sorted(random.sample(requests, random.randint(0, 2)), key=str):
                time.sleep(random.random() * 0.01)
                row = session.execute(select(ReadRequest).where(ReadRequest.id == request_id).with_for_update())
                request = row.scalar_one()
                request.due_on = f"{random.randint(2030, 2090)}-01-01"
            note(session, context, what)
            time.sleep(random.random() * 0.01)
            if random.random() < 0.1:
                session.rollback()
                return
        with self._lock:
            self.spans[what] = (began, time.monotonic())


def race(context: ServiceContext, n_writers: int, n_each: int) -> Journal:
    """Let many write about few rows while sealers link."""
    journal = Journal()
    with context.database.read() as session:
        requests: list[object] = [*session.execute(select(ReadRequest.id)).scalars()]

    def work(writer: int) -> None:
        random = Random(writer)
        for number in range(n_each):
            journal.write(context, f"{writer}-{number}", random, requests)

    sealers = [ChainLinker(context.settings.direct_sqlalchemy_url, context.keys.audit) for _ in range(2)]
    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(n_writers)]
    for sealer in sealers:
        sealer.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: not waits(context), what="everything is linked")
    for sealer in sealers:
        sealer.stop()
    return journal


def waits(context: ServiceContext) -> bool:
    with context.database.read() as session:
        return count_waiting_events(session).n_events > 0


@pytest.mark.slow
@pytest.mark.parametrize("n_each", [15, pytest.param(400, marks=pytest.mark.heavy)])
def test_eight_writers_and_two_sealers_keep_the_order_of_time_and_of_rows(service: Service, n_each: int) -> None:
    context = service.context
    for number in range(4):
        service.add_case(f"case {number}", cell_png(number))
    journal = race(context, 8, n_each)
    linked = order(context)
    assert sorted(linked) == sorted(journal.spans), "what was rolled back left nothing, and nothing is there twice"
    latest_begin = 0.0
    for what in linked:  # nothing that ended before something to the left of it began
        assert journal.spans[what][1] >= latest_begin
        latest_begin = max(latest_begin, journal.spans[what][0])
    with context.database.read_moment() as session:
        assert verify_all(session, context).faults == []


def test_a_snapshot_and_what_came_later_are_everything_however_writers_overlap(service: Service) -> None:
    """What waits counts as later than any link, so no change falls between a snapshot and what is read beside it."""
    context = service.context
    cases = [service.add_case(f"case {number}", cell_png(number)) for number in range(3)]
    classes = cases[0]["prediction"]["classes"]
    with context.database.read() as session:
        release_id = session.execute(text("SELECT release_id FROM aliases WHERE name = 'champion'")).scalar_one()
    service.seal()
    with open_transaction(context, "open"):
        service.outside_label(cases[0]["id"], "first", classes[0])
        service.seal()
        service.outside_label(cases[1]["id"], "second", classes[0])
        write_snapshot(context.database, context.folders, release_id, classes)
        service.outside_label(cases[2]["id"], "third", classes[0])
        with context.database.read() as session:
            columns = load_current_dataset(session, context.settings.home, release_id, classes)
            sequence = events.read_head(session)[0]
            changed = events.changed_cases(session, sequence)
    assert columns.label_counts.sum() == 3
    assert {str(case_id) for case_id in changed} == {cases[1]["id"], cases[2]["id"]}


def test_what_holds_the_sealer_up_is_named(service: Service) -> None:
    context = service.context
    service.seal()
    with context.database.read() as session:
        assert explain_link_delay(session, 0) is None
    service.add_case()
    with context.database.write() as session:  # as if it had waited
        session.execute(text("ALTER TABLE audit_events DISABLE TRIGGER ALL"))
        session.execute(
            text("UPDATE audit_events SET created_at = created_at - interval '1 hour' WHERE sequence IS NULL")
        )
        session.execute(text("ALTER TABLE audit_events ENABLE TRIGGER ALL"))
    service.written_past = True
    with context.database.read() as session:
        said = str(explain_link_delay(session, 0))
        assert ("no worker lives" in said, "the oldest for 3,6" in said) == (True, True), said
        assert "log" in str(explain_link_delay(session, 1))
        assert verify_all(session, context).waiting is not None
    text_of_metrics = service.metrics()
    assert "secondread_audit_events_waiting " in text_of_metrics
    with context.database.write() as holder:
        events.lock_head(holder, context.keys.audit)
        pid = holder.execute(text("SELECT pg_backend_pid()")).scalar_one()
        with context.database.write() as session:
            assert link_waiting_batch(session, context.keys.audit, wait=False) == 0

        def named() -> bool:
            with context.database.read() as session:
                return f"locked by process {pid}" in str(explain_link_delay(session, 1))

        wait_until(named, what="whoever has the head is named")


def test_an_event_is_linked_once_and_nothing_else_of_it_changes(service: Service) -> None:
    context = service.context
    service.seal()
    service.add_case()
    with context.database.read() as session:
        stamp = session.execute(select(AuditEvent.stamp).where(AuditEvent.sequence.is_(None)).limit(1)).scalar_one()
    links = {"sequence": 9_000, "digest": "0" * 64, "link_signature": "0" * 128}
    for values in (
        {"actor": "somebody"},
        {"details": {}},
        {"sequence": None},
        links | {"actor": "somebody"},
        links | {"row_digests": {}},
        links | {"stamp": 10**6},
    ):
        with pytest.raises(DBAPIError, match="append-only"), context.database.write() as session:
            session.execute(update(AuditEvent.__table__).where(AuditEvent.stamp == stamp).values(values))
    service.seal()
    with pytest.raises(DBAPIError, match="append-only"), context.database.write() as session:
        session.execute(update(AuditEvent.__table__).where(AuditEvent.stamp == stamp).values(links))
    with pytest.raises(DBAPIError, match="append-only"), context.database.write() as session:
        session.execute(text("DELETE FROM audit_events"))


def test_a_sealer_links_nothing_to_a_chain_that_lost_its_head(service: Service) -> None:
    """Somebody takes links away and removes an event, so that the sealer would sign the rest anew."""
    context = service.context
    for number in range(3):
        service.add_case(f"case {number}", cell_png(number))
    sealer = ChainLinker(context.settings.direct_sqlalchemy_url, context.keys.audit)
    assert sealer.link() > 0
    with context.database.write() as session:
        for statement in (
            "ALTER TABLE audit_events DISABLE TRIGGER ALL",
            "ALTER TABLE case_changes DISABLE TRIGGER ALL",
            "DELETE FROM case_changes WHERE stamp = (SELECT max(stamp) - 1 FROM audit_events)",
            "DELETE FROM audit_events WHERE stamp = (SELECT max(stamp) - 1 FROM audit_events)",
            "UPDATE audit_events SET sequence = NULL, digest = NULL, link_signature = NULL "
            "WHERE stamp = (SELECT max(stamp) FROM audit_events)",
            "UPDATE audit_head SET (sequence, digest) = "
            "(SELECT sequence, digest FROM audit_events WHERE sequence IS NOT NULL ORDER BY sequence DESC LIMIT 1)",
            "ALTER TABLE audit_events ENABLE TRIGGER ALL",
            "ALTER TABLE case_changes ENABLE TRIGGER ALL",
        ):
            session.execute(text(statement))
    service.written_past = True
    with pytest.raises(ChainLost, match="db verify"):
        sealer.link()
    sealer.stop()
    assert waits(context)


def test_whoever_would_put_another_key_in_force_waits_for_those_who_sign_with_the_present_one(
    service: Service,
) -> None:
    context, turns = service.context, []

    def rotate() -> None:
        with context.database.write(key="alone") as session:
            acquire_lock(session, AdvisoryLock.KEY)
            turns.append("another key")

    with open_transaction(context, "signed with the present key"):
        thread = threading.Thread(target=rotate)
        thread.start()
        time.sleep(0.3)
        turns.append("committed")
    thread.join()
    assert turns == ["committed", "another key"]


def test_what_names_no_case_changes_no_case(service: Service) -> None:
    """The newest link that changed a case is found below others that changed none."""
    context, case = service.context, service.add_case()
    service.seal()
    with context.database.read() as session:
        last = events.last_change(session)
        changed = select(AuditEvent.digest).join(CaseChange, CaseChange.stamp == AuditEvent.stamp)
        assert session.execute(changed.order_by(AuditEvent.sequence.desc()).limit(1)).scalar_one() == last
    with context.database.write() as session:
        note(session, context, "nothing")
    service.seal()
    with context.database.read() as session:
        assert events.last_change(session) == last, case["id"]


def test_numbers_are_given_without_gaps_in_batches(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    context = service.context
    monkeypatch.setattr("app.audit.linking._BATCH", 3)
    for number in range(8):
        with context.database.write() as session:
            note(session, context, str(number))
    assert link_all_waiting(context.database, context.keys.audit) >= 8
    with context.database.read() as session:
        numbers = [event.sequence for event in events.read_linked_events(session)]
        assert all(after - before == 1 for before, after in pairwise(numbers))
    assert order(context) == [str(number) for number in range(8)]
