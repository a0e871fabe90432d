"""Each transaction adds one event with every row that it wrote, linked in the order of commits."""

import ast
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy import delete, event, func, insert, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

import app
from app.audit.chain import events
from app.audit.chain.covered_rows import COVERED, Leaves, row_digest, row_key, take_leaves, update_columns
from app.audit.chain.events import KeyRotated
from app.audit.chain.keys import AuditKeys, KeyRing, derive_keys
from app.audit.installation import claim_database, require_keys
from app.audit.rotation import apply_key_ring
from app.context import ServiceContext
from app.database import engine as database_module
from app.database import tables
from app.database.engine import Database, write_with_retry
from app.database.migration import upgrade_schema
from app.database.tables import new_id, utc_now
from app.http.errors import ServiceUnavailable
from app.metrics.snapshot import load_current_dataset, write_snapshot
from tests.support.chain import all_events
from tests.support.postgres import PostgresServer
from tests.support.process import free_port
from tests.support.service import KEY, Service, cell_png
from tests.support.waiting import patient

both_databases = pytest.mark.both_databases
on_postgresql = pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)


def note(session: Session, context: ServiceContext, what: str, **more: Any) -> None:
    events.record_event(session, context.keys.audit, actor="test", action="test", object_id=what, **more)


def order(context: ServiceContext) -> list[str]:
    """What the events of these tests are about, in the order of the chain."""
    with context.database.read() as session:
        return [event["object"] for event in all_events(session) if event["action"] == "test"]


def add_job(session: Session, kind: str) -> str:
    job = tables.Job(kind=kind, parameters={})
    session.add(job)
    session.flush()
    return str(job.id)


@both_databases
def test_a_transaction_has_one_event_with_every_row_that_it_wrote(service: Service) -> None:
    context = service.context
    with context.database.write() as session:
        first = add_job(session, "one")
        note(session, context, "earlier")
        note(session, context, "the jobs")
        second = add_job(session, "two")
    with context.database.write() as session:
        third = add_job(session, "three")
    with context.database.read() as session:
        earlier, described, undescribed = all_events(session)[-3:]
        shown = service.get("admin", "/v1/audit-events").json()["items"][0]
        assert f"{shown['sequence']}:{shown['digest']}" == events.read_head_text(session)
    assert (earlier["object"], earlier["row_digests"]) == ("earlier", {})  # the last one has the rows
    assert (described["object"], set(described["row_digests"]["jobs"])) == ("the jobs", {first, second})
    assert (undescribed["action"], set(undescribed["row_digests"]["jobs"])) == ("rows.write", {third})


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
        session.execute(select(tables.Job))
    with service.context.database.read() as session:
        assert events.read_head(session) == before


def write_now_and_then(context: ServiceContext, what: str, random: Random, requests: list[object]) -> bool:
    """Change some rows in a transaction that takes its time at random places; whether it was committed."""
    with context.database.write() as session:
        for request_id in sorted(random.sample(requests, random.randint(0, 2)), key=str):
            time.sleep(random.random() * 0.01)
            row = session.execute(
                select(tables.ReadRequest).where(tables.ReadRequest.id == request_id).with_for_update()
            )
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
    requests: list[object] = [*service.scalars(select(tables.ReadRequest.id))]

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
            case_id = session.execute(select(tables.CaseChange.case_id)).scalars().one()
            assert str(case_id) == case["id"]
            note(session, context, "named", cases=[case_id])
    assert order(context) == ["named"]


@on_postgresql
def test_a_snapshot_and_what_came_later_are_everything_however_writers_overlap(service: Service) -> None:
    context = service.context
    cases = service.add_cases(3)
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


def stored_digests(service: Service, session: Session, table: Any, *keys: uuid.UUID) -> Leaves:
    rows = session.connection().execute(select(table.__table__).where(table.id.in_(keys))).mappings().all()
    of, private = table.__table__, service.context.keys.audit.rows
    return {table.__tablename__: {row_key(of, row): row_digest(private, of, row) for row in rows}}


def annotator(name: str) -> dict[str, Any]:
    return {"id": new_id(), "name": name, "created_at": utc_now()}


@pytest.mark.both_databases
def test_a_statement_notes_its_rows_and_gives_what_was_asked_of_it(service: Service) -> None:
    take = service.context.keys.audit.rows
    with service.context.database.write() as session:
        rows = [annotator("one"), annotator("two")]
        keys = [row["id"] for row in rows]
        names = session.execute(insert(tables.Annotator).returning(tables.Annotator.name), rows).scalars().all()
        assert sorted(names) == ["one", "two"]
        assert take_leaves(session, take) == stored_digests(service, session, tables.Annotator, *keys)

        renamed = update_columns(tables.Annotator, name="three").where(tables.Annotator.id == keys[0])
        assert session.execute(renamed.returning(tables.Annotator.id)).scalar_one() == keys[0]
        assert take_leaves(session, take) == stored_digests(service, session, tables.Annotator, keys[0])

        session.execute(delete(tables.Annotator).where(tables.Annotator.id.in_(keys)))
        assert take_leaves(session, take) == {"annotators": dict.fromkeys(map(str, keys))}
        session.rollback()


@pytest.mark.both_databases
def test_only_what_must_have_an_event_is_noted(service: Service) -> None:
    """A lease begins and ends without one: a request that waits is one that is leased."""
    service.add_case("case", cell_png(), patient="p", site="north")
    assert service.post("anna", "/v1/reads").status_code == 201
    keys = service.context.keys.audit
    with service.context.database.write() as session:
        request = (
            session.execute(select(tables.ReadRequest).where(tables.ReadRequest.state == "leased")).scalars().one()
        )
        of_request, of_reads = tables.ReadRequest.id == request.id, tables.Read.request_id == request.id
        session.execute(update_columns(tables.Read, state="released", ended_at=utc_now()).where(of_reads))
        session.execute(update_columns(tables.ReadRequest, state="open", lease_expires_at=None).where(of_request))
        session.execute(update_columns(tables.Case, need=0.25).where(tables.Case.id == request.case_id))
        assert take_leaves(session, keys.rows) == {}
        session.execute(update_columns(tables.ReadRequest, state="closed", closed_at=utc_now()).where(of_request))
        session.execute(update_columns(tables.Read, state="declined").where(of_reads))
        noted = {name: len(rows) for name, rows in take_leaves(session, keys.rows).items()}
        assert noted == {"read_requests": 1, "reads": 1}
        session.rollback()


def test_the_service_writes_covered_tables_only_by_statements_that_a_session_notes() -> None:
    """An UPDATE names its columns to the session, and no text writes a covered table."""
    every = {mapper.class_.__name__: str(mapper.local_table) for mapper in tables.BaseTable.registry.mappers}
    classes = {name: table for name, table in every.items() if table in COVERED}
    by_text = re.compile(rf"\b(INSERT INTO|UPDATE|DELETE FROM)\s+({'|'.join(classes.values())})\b")
    faults = []
    for path in sorted(Path(app.__file__).parent.rglob("*.py")):
        source = path.read_text()
        faults += [f"{path.name}: {match[0]}" for match in by_text.finditer(source)]
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "update" and node.args:
                faults += [f"{path.name}: update({name})" for name in [ast.unparse(node.args[0])] if name in classes]
    assert faults == []
    assert tables.CaseTwin.__name__ in classes


_Open = Callable[..., Database]


@pytest.fixture
def opened() -> Iterator[_Open]:
    """Makes databases, and closes their connections when the test has ended, as a failed one does too."""
    made: list[Database] = []

    def make(url: str, keys: AuditKeys | None = None) -> Database:
        made.append(Database(url, keys))
        return made[-1]

    yield make
    for database in made:
        database.engine.dispose()


@pytest.fixture
def on_disk(tmp_path: Path, opened: _Open) -> Database:
    database = opened(f"sqlite:///{tmp_path / 'some.db'}")
    upgrade_schema(database.engine)
    return database


def test_writers_wait_for_each_other_before_they_ask_the_database(on_disk: Database) -> None:
    """With no patience of SQLite's own nobody meets a lock."""
    on_disk.engine.dispose()
    event.listen(on_disk.engine, "connect", lambda connection, _: connection.execute("PRAGMA busy_timeout=0"))

    def write(_: int) -> None:
        for _ in range(5):
            with on_disk.write() as session:
                session.execute(text("UPDATE audit_head SET n_keys = n_keys + 1"))
                time.sleep(0.005)

    before = head_keys(on_disk)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert head_keys(on_disk) == before + 20


def head_keys(database: Database) -> int:
    with database.read() as session:
        return int(session.execute(text("SELECT n_keys FROM audit_head")).scalar_one())


def test_a_turn_ends_with_the_transaction_and_not_with_the_session(on_disk: Database) -> None:
    before = head_keys(on_disk)
    with on_disk.write() as session:
        session.execute(text("UPDATE audit_head SET n_keys = n_keys + 1"))
        session.rollback()  # as before a password is hashed
        with on_disk.write() as other:
            other.execute(text("UPDATE audit_head SET n_keys = n_keys + 1"))
        session.execute(text("UPDATE audit_head SET n_keys = n_keys + 1"))
    with pytest.raises(OperationalError), on_disk.write() as session:
        session.execute(text("UPDATE no_such_table SET n_keys = n_keys + 1"))
    with on_disk.write() as session:
        session.execute(text("UPDATE audit_head SET n_keys = n_keys + 1"))
    assert head_keys(on_disk) == before + 3


def test_a_writer_who_never_ends_is_like_a_lock(tmp_path: Path, opened: _Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.05)
    database = opened(f"sqlite:///{tmp_path / 'some.db'}")
    upgrade_schema(database.engine)
    before = head_keys(database)
    with database.write() as session:
        session.execute(text("UPDATE audit_head SET n_keys = n_keys + 1"))
        with pytest.raises(OperationalError, match="database is locked"), database.write() as other:
            other.execute(text("UPDATE audit_head SET n_keys = n_keys + 1"))
    assert head_keys(database) == before + 1


def test_two_starts_at_once_write_one_baseline(postgres: PostgresServer, opened: _Open) -> None:
    keys = derive_keys(KeyRing.parse(b"the same key in each of these processes")).audit
    url = postgres.url(postgres.create())
    empty = opened(url)
    upgrade_schema(empty.engine)
    empty.engine.dispose()
    databases, together = [opened(url, keys) for _ in range(2)], threading.Barrier(2)

    def start(database: Database) -> None:
        together.wait(patient(20))
        claim_database(database, keys)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(start, databases))
    with databases[0].read() as session:
        assert session.execute(select(func.count()).select_from(tables.Installation)).scalar_one() == 1
        written = select(func.count()).select_from(tables.AuditEvent).where(tables.AuditEvent.action == "rows.baseline")
        assert session.execute(written).scalar_one() == 1


@pytest.mark.both_databases
def test_a_start_waits_for_one_that_writes_for_longer_than_a_lock_is_waited_for(
    database_url: str, opened: _Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a machine is busy."""
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.1)
    monkeypatch.setitem(database_module.POSTGRES_SETTINGS, "lock_timeout", "100")
    keys = derive_keys(KeyRing.parse(b"the same key in each of these processes")).audit
    first, second = opened(database_url, keys), opened(database_url, keys)
    upgrade_schema(first.engine)
    waits, told = threading.Event(), list[str]()

    def say(line: str) -> None:
        told.append(line)
        waits.set()

    with ThreadPoolExecutor(1) as pool, first.write() as session:
        session.execute(text("UPDATE audit_head SET n_keys = n_keys"))
        starting = pool.submit(claim_database, second, keys, say)
        assert waits.wait(patient(20))
    starting.result()
    assert told[0] == "waiting: another process, perhaps one that is starting too, is writing to the database"
    assert require_keys(second, keys)


def test_a_database_that_is_away_is_waited_for_by_nobody(opened: _Open) -> None:
    away, told = opened(f"postgresql+psycopg://nobody@127.0.0.1:{free_port()}/none"), list[str]()
    with pytest.raises(OperationalError, match="connection failed"):
        write_with_retry(away, lambda session: session.execute(text("SELECT 1")), "others are writing", told.append)
    assert told == []


def test_slow_work_is_no_waiting(postgres: PostgresServer, opened: _Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Done again and again, it would keep all writers waiting."""
    monkeypatch.setitem(database_module.POSTGRES_SETTINGS, "statement_timeout", "100")
    database, told = opened(postgres.url(postgres.create())), list[str]()

    def work(session: Session) -> None:
        session.execute(text("SELECT pg_sleep(30)"))

    with pytest.raises(OperationalError, match="statement timeout"):
        write_with_retry(database, work, "others are writing", told.append)
    assert told == []


def test_patience_ends(on_disk: Database, opened: _Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "_PATIENCE", 0.0)
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.05)
    other = opened(str(on_disk.engine.url))
    with on_disk.write() as session:
        session.execute(text("UPDATE audit_head SET n_keys = n_keys"))
        with pytest.raises(ServiceUnavailable, match="busy; try again shortly"):
            write_with_retry(other, lambda writing: writing.execute(text("SELECT 1")), "others are writing")
