"""Each transaction adds one event, linked as it ends: in the order of commits, whatever writes at once."""

import threading
import time
from random import Random

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.events import KeyRotated
from app.audit.chain.keys import KeyRing
from app.audit.rotation import apply_key_ring
from app.context import ServiceContext
from app.database.tables import CaseChange, Job, ReadRequest
from app.metrics.snapshot import load_current_dataset, write_snapshot
from tests.support.chain import all_events
from tests.support.service import KEY, Service, cell_png

both_databases = pytest.mark.both_databases
on_postgresql = pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)


def note(session: Session, context: ServiceContext, what: str) -> None:
    """Describe an event."""
    events.record_event(session, context.keys.audit, actor="test", action="test", object_id=what)


def order(context: ServiceContext) -> list[str]:
    """What the events of these tests are about, in the order of the chain."""
    with context.database.read() as session:
        return [event["object"] for event in all_events(session) if event["action"] == "test"]


def add_job(session: Session, kind: str) -> str:
    job = Job(kind=kind, parameters={})
    session.add(job)
    session.flush()
    return str(job.id)


@both_databases
def test_a_transaction_has_one_event_with_every_row_that_it_wrote(service: Service) -> None:
    context = service.context
    with context.database.write() as session:
        first = add_job(session, "one")
        note(session, context, "the jobs")
        second = add_job(session, "two")
    with context.database.write() as session:
        third = add_job(session, "three")
    with context.database.read() as session:
        described, undescribed = all_events(session)[-2:]
        shown = service.get("admin", "/v1/audit-events").json()["items"][0]
        assert f"{shown['sequence']}:{shown['digest']}" == events.read_head_text(session)
    assert (described["object"], set(described["row_digests"]["jobs"])) == ("the jobs", {first, second})
    assert (undescribed["action"], set(undescribed["row_digests"]["jobs"])) == ("rows.write", {third})


@both_databases
def test_of_several_events_of_a_transaction_the_last_one_has_the_rows(service: Service) -> None:
    context = service.context
    with context.database.write() as session:
        job = add_job(session, "one")
        note(session, context, "first")
        note(session, context, "second")
    with context.database.read() as session:
        first, second = all_events(session)[-2:]
    assert (first["object"], first["row_digests"]) == ("first", {})
    assert (second["object"], set(second["row_digests"]["jobs"])) == ("second", {job})


@both_databases
def test_an_event_goes_with_its_savepoint_and_with_its_transaction(service: Service) -> None:
    context = service.context
    with context.database.write() as session:
        note(session, context, "rolled back with the transaction")
        session.rollback()
        note(session, context, "before")
        with session.begin_nested():
            note(session, context, "released")
        with session.begin_nested() as savepoint:
            with session.begin_nested():
                note(session, context, "released into a savepoint that is rolled back")
            note(session, context, "rolled back")
            savepoint.rollback()
        note(session, context, "after")
    assert order(context) == ["before", "released", "after"]


@both_databases
def test_what_reads_nothing_and_writes_nothing_leaves_no_event(service: Service) -> None:
    with service.context.database.read() as session:
        before = events.read_head(session)
    with service.context.database.write() as session:
        session.execute(select(Job))
    with service.context.database.read() as session:
        assert events.read_head(session) == before


def write_now_and_then(context: ServiceContext, what: str, random: Random, requests: list[object]) -> bool:
    """Change some rows in a transaction that takes its time at random places; whether it was committed."""
    with context.database.write() as session:
        for request_id in sorted(random.sample(requests, random.randint(0, 2)), key=str):
            time.sleep(random.random() * 0.01)
            row = session.execute(select(ReadRequest).where(ReadRequest.id == request_id).with_for_update())
            row.scalar_one().due_on = f"{random.randint(2030, 2090)}-01-01"
        note(session, context, what)
        time.sleep(random.random() * 0.01)
        if random.random() < 0.1:
            session.rollback()
            return False
    return True


@both_databases
@pytest.mark.slow
@pytest.mark.parametrize("n_each", [15, pytest.param(400, marks=pytest.mark.heavy)])
def test_eight_writers_keep_the_order_of_time_and_of_rows(service: Service, n_each: int) -> None:
    """And whoever sees an event sees every event before it."""
    context, spans, holes, ended = service.context, dict[str, tuple[float, float]](), list[int](), threading.Event()
    service.add_cases(4)
    requests: list[object] = [*service.scalars(select(ReadRequest.id))]

    def work(writer: int) -> None:
        random = Random(writer)
        for number in range(n_each):
            began = time.monotonic()
            if write_now_and_then(context, f"{writer}-{number}", random, requests):
                spans[f"{writer}-{number}"] = (began, time.monotonic())

    def look() -> None:
        while not ended.is_set():
            with context.database.read_moment() as session:
                last, n_events = session.execute(text("SELECT max(sequence), count(*) FROM audit_events")).one()
                holes.extend([last] if last != n_events else [])

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(8)]
    looking = threading.Thread(target=look)
    for thread in (looking, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    ended.set()
    looking.join()
    assert holes == []
    linked = order(context)
    assert sorted(linked) == sorted(spans), "what was rolled back left nothing, and nothing is there twice"
    latest_begin = 0.0
    for what in linked:  # nothing that ended before something to the left of it began
        assert spans[what][1] >= latest_begin
        latest_begin = max(latest_begin, spans[what][0])
    assert service.faults() == []


@on_postgresql
def test_an_open_transaction_keeps_nobody_waiting_before_it_ends(service: Service) -> None:
    context = service.context
    with context.database.write() as session:
        note(session, context, "long")
        session.flush()
        for number in range(3):
            with context.database.write() as other:
                note(other, context, f"short {number}")
        assert order(context) == ["short 0", "short 1", "short 2"]
    assert order(context) == ["short 0", "short 1", "short 2", "long"]


@on_postgresql
def test_a_writer_that_meets_a_rotation_writes_nothing(service: Service) -> None:
    """It described its event with the key that another process has replaced before it came to link."""
    context = service.context

    def write() -> None:
        with context.database.write() as session:
            note(session, context, "signed with a replaced key")
            apply_key_ring(context, KeyRing.parse(KEY.encode()).rotated(), "stolen")

    with pytest.raises(KeyRotated):
        write()
    assert order(context) == []
    service.written_past = True  # this service lacks the new key


@on_postgresql
def test_who_names_a_case_waits_for_nobody_with_the_head_in_hand(service: Service) -> None:
    """Else it would wait for whoever has the case, who waits for the head."""
    context, case = service.context, service.add_case()
    with context.database.write() as holder:
        holder.execute(text("SELECT id FROM cases FOR UPDATE"))
        with context.database.write() as session:
            case_id = session.execute(select(CaseChange.case_id)).scalars().one()
            assert str(case_id) == case["id"]
            events.record_event(
                session, context.keys.audit, actor="test", action="test", object_id="named", cases=[case_id]
            )
    assert order(context) == ["named"]


@on_postgresql
def test_a_snapshot_and_what_came_later_are_everything_however_writers_overlap(service: Service) -> None:
    context = service.context
    cases = [service.add_case(f"case {number}", cell_png(number)) for number in range(3)]
    classes = cases[0]["prediction"]["classes"]
    with context.database.read() as session:
        release_id = session.execute(text("SELECT release_id FROM aliases WHERE name = 'champion'")).scalar_one()
    with context.database.write() as open_session:
        note(open_session, context, "open")
        service.outside_label(cases[0]["id"], "first", classes[0])
        write_snapshot(context.database, context.folders, release_id, classes)
        service.outside_label(cases[2]["id"], "third", classes[0])
        with context.database.read() as session:
            columns = load_current_dataset(session, context.settings.home, release_id, classes)
            changed = events.changed_cases(session, events.read_head(session)[0] - 1)
    assert columns.label_counts.sum() == 2
    assert {str(case_id) for case_id in changed} == {cases[2]["id"]}
