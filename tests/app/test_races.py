"""Many at once: the order of locks, races, a pooler, and what the queue and lists ask of the database."""

import asyncio
import random
import re
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import httpx2 as httpx
import psycopg
import pytest
from sqlalchemy import event, insert, inspect, select, text, update
from sqlalchemy.orm import Session

from app.accounts import people
from app.audit.chain import events
from app.context import build_context
from app.database import tables
from app.database.engine import POSTGRES_SETTINGS, Database, _begin_postgres
from app.database.tables import new_id, utc_now
from app.jobs.executor import ENGINE_CONNECTIONS
from app.labels.queue import iter_waiting_requests, next_request
from app.settings import Settings
from app.triage.assignment import GRACE_PERIOD
from tests.app.conftest import Template, _running, _settings
from tests.app.test_leases import all_once, all_twice, classes_of, requests_of, set_policy
from tests.app.test_refused_forms import account_of
from tests.conftest import missing
from tests.support.coroutines import run_async
from tests.support.jobs import work_off
from tests.support.pooler import find_pgbouncer, pooler
from tests.support.postgres import PostgresServer
from tests.support.service import Service, cell_png
from tests.support.statements import counted
from tests.support.waiting import patient

#: Tables whose rows several requests lock, in the order in which they may be locked.
ORDER = ("annotators", "read_requests", "cases", "audit_head")
#: Beginnings of the only statements after the lock that all writers share, of which none waits for anybody.
LINKING = ("INSERT INTO audit_events", "INSERT INTO case_changes", "UPDATE audit_head")
_LOCKS = re.compile(r"\bFROM (\w+).*\bFOR UPDATE(?: OF (\w+))?( SKIP LOCKED)?|^UPDATE (\w+)", re.DOTALL)


class Locks:
    """What one transaction locks, and its statements after the lock of the chain's head.

    It waits for the tables of which it locks rows, but for those that it passes over when somebody else has them.
    """

    def __init__(self) -> None:
        self.waited: list[str] = []
        self.linking: list[str] = []
        self._passed_over: set[str] = set()

    def note(self, statement: str) -> None:
        if ORDER[-1] in self.waited:
            self.linking.append(statement)
        locked = _LOCKS.search(statement)
        if locked is None:
            return
        name = locked[2] or locked[1] or locked[4]
        if locked[3]:
            self._passed_over.add(name)
        elif name in ORDER and name not in self.waited and name not in self._passed_over:
            self.waited.append(name)


@contextmanager
def locks_of(service: Service) -> Iterator[list[Locks]]:
    """Locks of each transaction of the block."""
    transactions: list[Locks] = []
    engine = service.context.database.engine

    def begin(_: Any) -> None:
        transactions.append(Locks())

    def execute(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        # the settings of a transaction come before it is known to begin
        if transactions and not statement.startswith("SELECT set_config"):
            transactions[-1].note(statement.replace('"', ""))

    event.listen(engine, "begin", begin)
    event.listen(engine, "before_cursor_execute", execute)
    try:
        yield transactions
    finally:
        event.remove(engine, "begin", begin)
        event.remove(engine, "before_cursor_execute", execute)


@pytest.mark.slow
@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_everything_that_locks_does_so_in_one_order(service: Service) -> None:
    seldom: dict[str, Any] = {"threshold": 0.999, "audit_rate": 1e-6}
    set_policy(service, **seldom)  # one planned read each
    service.add_cases(4)
    seen: dict[str, Locks] = {}
    leads = {"store", "settle", "reopen", "invite", "assign", "label in the gallery", "undo in the gallery"}

    def note(what: str, method: str, path: str, **body: Any) -> Any:
        with locks_of(service) as transactions:
            headers = {"Idempotency-Key": uuid.uuid4().hex}
            who = "outside" if what.startswith("outside") else "admin" if what in leads else "anna"
            answer = service.call(who, method, path, headers=headers, **body)
        assert answer.status_code < 300, (what, answer.text)
        seen[what] = max(transactions, key=lambda locks: len(locks.waited))
        return answer.json() if answer.content else {}

    read = note("lease", "POST", "/v1/reads")
    note("decline", "POST", f"/v1/reads/{read['id']}/decline", json={"reason": "know_this_case"})
    read = note("lease again", "POST", "/v1/reads")
    note("label", "POST", f"/v1/reads/{read['id']}/labels", json={"label": "blast"})
    case = service.case_of("anna", read["case_id"])  # its only planned read is in
    blind = {"label": "blast", "annotator": "r", "blind": True}
    label = note("outside label", "POST", f"/v1/cases/{case}/labels", json=blind)["label"]["id"]
    named = [{"external_id": f"case {number}", "annotator": "q", "label": "blast", "blind": True} for number in (1, 0)]
    note("outside labels", "POST", "/v1/labels", json={"labels": named})
    service.add_annotator("cleo")
    set_policy(service, **seldom, adjudicate_below=0.999999)  # and what follows from it is another read
    note("outside revision", "POST", f"/v1/labels/{label}/revisions", json={"label": "lymphocyte", "reason": "a slip"})
    assert [request.arm for request in requests_of(service, case)] == ["first", "adjudication"]
    note("settle", "POST", f"/v1/cases/{case}/outcome", json={"split": True, "reason": "they differ"})
    note("reopen", "DELETE", f"/v1/cases/{case}/outcome", params={"reason": "too early"})
    note("invite", "POST", "/v1/invitations", json={"annotator": "Dr. Gast", "cases": [case]})
    read = note("lease a third", "POST", "/v1/reads")
    note("return", "DELETE", f"/v1/reads/{read['id']}")
    note(
        "assign", "POST", f"/v1/cases/{service.case_of('anna', read['case_id'])}/assignments", json={"annotator": "ben"}
    )
    form = {"form_key": "k", "account": account_of(service)}
    done = note("label in the gallery", "POST", "/cells/gallery/labels", data=form | {"cell": [case], "label": "blast"})
    note("undo in the gallery", "POST", "/cells/gallery/undo", data=form | {"form_key": "l", "first": done["first"]})
    note("store", "POST", "/v1/cases", files={"image": ("x", cell_png(9))}, data={"external_id": "new"})
    for what, locks in seen.items():
        assert locks.waited == sorted(locks.waited, key=ORDER.index), (what, locks.waited)
        assert all(statement.startswith(LINKING) for statement in locks.linking), (what, locks.linking)
    for what in ("decline", "label", "settle"):
        assert seen[what].waited == ["read_requests", "cases", "audit_head"], what
    for what in ("outside label", "outside labels"):
        assert seen[what].waited == ["cases", "audit_head"]
    assert seen["store"].waited == ["audit_head"]


N_CALLERS, PER_CALLER = 12, 8


@pytest.mark.slow
@pytest.mark.both_databases
def test_many_requests_at_once_are_answered_without_waiting_for_each_other(service: Service) -> None:
    """A request holds its connection until its commit, and must not need a thread that others hold meanwhile."""
    service.add_case("case", cell_png(), patient="p")
    with service.context.database.write() as session:
        audit = service.context.keys.audit
        keys = [people.add_key(session, audit, "viewer", [])[1] for _ in range(N_CALLERS)]

    async def ask(key: str, number: int) -> tuple[int, float]:
        transport: Any = httpx.ASGITransport(app=service.client.app, client=(f"192.0.2.{number}", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
            begun = time.monotonic()
            answer = await client.get("/v1/cases", headers={"Authorization": f"Bearer {key}"})
            return answer.status_code, time.monotonic() - begun

    async def flood() -> list[tuple[int, float]]:
        return await asyncio.gather(*(ask(key, n) for n, key in enumerate(keys) for _ in range(PER_CALLER)))

    answers = run_async(flood())
    assert {status for status, _ in answers} == {200}
    assert max(seconds for _, seconds in answers) < patient(10)


PROMOTERS = 4


@pytest.mark.both_databases
@pytest.mark.parametrize("rounds", [6, pytest.param(75, marks=pytest.mark.heavy)])
def test_wins_are_revisions_are_events(service: Service, rounds: int) -> None:
    release = service.document("/v1/releases")["items"][0]["id"]

    def revision() -> int:
        aliases = service.document("/v1/aliases")["items"]
        return next((int(alias["revision"]) for alias in aliases if alias["name"] == "challenger"), 0)

    def promote(number: int) -> list[int]:
        body, answers = {"release": release, "reason": f"promoter {number}"}, []
        for _ in range(rounds):
            headers = {"If-Match": f'"{revision()}"'}
            answer = service.call("admin", "PUT", "/v1/aliases/challenger", json=body, headers=headers)
            answers.append(answer.status_code)
        return answers

    with ThreadPoolExecutor(PROMOTERS) as pool:
        answers = Counter(status for part in pool.map(promote, range(PROMOTERS)) for status in part)
    assert set(answers) <= {200, 409, 412, 503}, answers
    moves = service.document("/v1/audit-events", "admin", action="alias.move", limit=200)["items"]
    assert answers[200] == revision() == len(moves) >= rounds
    assert sorted(event["details"]["revision"] for event in moves) == list(range(1, len(moves) + 1))


N_CASES = 24


def rows_of(session: Session, table: type[Any]) -> list[Any]:
    return list(session.execute(select(table)).scalars())


def by_definition(session: Session, me: uuid.UUID) -> list[uuid.UUID]:
    """Open requests that an annotator may be given, as the docstrings say it, one row at a time."""
    known = {read.case_id for read in rows_of(session, tables.Read) if read.annotator_id == me and read.state in TAKEN}
    known |= {
        row.case_id
        for table in (tables.Label, tables.Exposure)
        for row in rows_of(session, table)
        if row.annotator_id == me
    }
    known |= {cell.case_id for cell in rows_of(session, tables.ReferenceCell) if cell.kind in tables.SHOWN_KINDS}
    twins = [(twin.case_id, twin.twin_id) for twin in rows_of(session, tables.CaseTwin)]
    known |= {case_id for case_id, twin_id in twins if twin_id in known}
    seats = [repeat for repeat in rows_of(session, tables.Repeat) if repeat.annotator_id == me]
    known |= {repeat.in_place_of for repeat in seats if repeat.back_at is None or repeat.back_at > utc_now()}
    found = [
        request
        for request in rows_of(session, tables.ReadRequest)
        if request.state == "open"
        and (request.annotator_id in (None, me) or request.due_at < utc_now() - GRACE_PERIOD)
        and request.case_id not in known
    ]
    found.sort(key=lambda one: (one.due_on, one.shuffle, one.annotator_id != me, one.ordinal))
    return [request.id for request in found]


TAKEN = {"leased", "committed", "declined"}


def shaken(session: Session, chance: random.Random, me: uuid.UUID, other: uuid.UUID) -> None:
    """Requests asked of anybody, cases that annotators know in every way, and places that several cases share."""
    account, cases = rows_of(session, tables.Account)[0].id, rows_of(session, tables.Case)
    release = rows_of(session, tables.ReleaseRow)[0].id
    for request in rows_of(session, tables.ReadRequest):
        due = utc_now() + timedelta(days=chance.choice((-9, 3)))
        fields = {"due_at": due, "due_on": due.date().isoformat(), "annotator_id": chance.choice((None, me, other))}
        fields |= {"state": chance.choice(("open", "open", "open", "closed"))}
        session.execute(update(tables.ReadRequest).where(tables.ReadRequest.id == request.id).values(**fields))
    for case in cases:
        place = chance.randrange(6)
        session.execute(update(tables.ReadRequest).where(tables.ReadRequest.case_id == case.id).values(shuffle=place))
        who = chance.choice((me, other))
        way = chance.randrange(8)
        if way == 2 and (case.id, who) in {(read.case_id, read.annotator_id) for read in rows_of(session, tables.Read)}:
            way = 3
        if way == 0:
            session.add(tables.Exposure(case_id=case.id, annotator_id=who, release_id=release))
        elif way == 1:
            kind = {"kind": "label", "class_code": "blast", "blind": True, "round": "planned", "created_by": account}
            session.add(tables.Label(case_id=case.id, annotator_id=who, **kind))
        elif way == 2:
            first = next(one for one in rows_of(session, tables.ReadRequest) if one.case_id == case.id)
            state = chance.choice(("committed", "declined", "released", "expired"))
            session.add(
                tables.Read(request_id=first.id, case_id=case.id, annotator_id=who, state=state, expires_at=utc_now())
            )
        elif way == 3:
            twin = chance.choice([one for one in cases if one.id != case.id])
            for pair in ((case.id, twin.id), (twin.id, case.id)):
                if session.get(tables.CaseTwin, pair) is None:
                    session.add(tables.CaseTwin(case_id=pair[0], twin_id=pair[1]))
        session.flush()


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
@pytest.mark.parametrize("seed", range(3))
def test_the_queue_is_what_its_definition_says_however_many_are_looked_at_together(service: Service, seed: int) -> None:
    service.written_past = True
    all_twice(service)
    for number in range(N_CASES):
        service.add_case(f"case {number}", cell_png(number), patient=f"p{number}")
    for who in ("anna", "ben"):
        service.post(who, "/v1/reads")
    with service.context.database.write() as session:
        me, other = (row.id for row in rows_of(session, tables.Annotator)[:2])
        shaken(session, random.Random(seed), me, other)
        for annotator in (me, other):
            wanted = by_definition(session, annotator)
            assert wanted
            for together in (1, 2, 5, 200):
                found = [request.id for request in iter_waiting_requests(session, annotator, together=together)]
                assert found == wanted


def fill_queue(session: Session, n: int, me: uuid.UUID) -> None:
    """Copies of the one case that there is, each with an open request, and as many that the annotator has labelled."""
    case, request = rows_of(session, tables.Case)[0], rows_of(session, tables.ReadRequest)[0]
    account = rows_of(session, tables.Account)[0].id

    def copied(row: tables.BaseTable, **changed: Any) -> dict[str, Any]:
        names = [attribute.key for attribute in inspect(type(row)).column_attrs]
        return {name: getattr(row, name) for name in names if getattr(row, name) is not None} | changed

    ids = [new_id() for _ in range(n)]
    known = [new_id() for _ in range(n)]
    session.execute(insert(tables.Case), [copied(case, id=one, external_id=str(one)) for one in ids + known])
    session.execute(
        insert(tables.ReadRequest),
        [copied(request, id=new_id(), case_id=one, shuffle=i, state="open") for i, one in enumerate(ids)],
    )
    said = {"annotator_id": me, "kind": "label", "class_code": "blast", "blind": True, "round": "planned"}
    session.execute(insert(tables.Label), [{"case_id": one, "created_by": account, **said} for one in known])


@contextmanager
def steps_of_sqlite(session: Session) -> Iterator[list[int]]:
    """How many hundred instructions of its machine SQLite runs through in the block."""
    driver: Any = session.connection().connection.driver_connection
    seen = [0]

    def step() -> int:
        seen[0] += 1
        return 0

    driver.set_progress_handler(step, 100)
    yield seen
    driver.set_progress_handler(None, 100)


@pytest.mark.slow
@pytest.mark.sqlite_only
def test_a_lease_costs_no_more_before_many_open_requests_and_after_many_labels(service: Service) -> None:
    service.written_past = True
    service.add_case("case", cell_png(), patient="p")
    service.post("anna", "/v1/reads")
    costs = []
    for n in (60, 2_000):
        with service.context.database.write() as session:
            me = rows_of(session, tables.Annotator)[0].id
            fill_queue(session, n, me)
            with steps_of_sqlite(session) as seen:
                assert next_request(session, service.context.keys.readers.order, me) is not None
            costs.append(seen[0])
    assert costs[1] <= 1.5 * costs[0] + 5, costs


ROUNDS = (1, 12, 24)


def add_prediction_of_another_release(service: Service, number: int, case_id: uuid.UUID) -> None:
    with service.context.database.write() as session:
        champion = session.execute(select(tables.ReleaseRow).order_by(tables.ReleaseRow.id)).scalars().all()[0]
        release = tables.ReleaseRow(name=f"release {number}", card_sha256=f"{number:064}", card=champion.card)
        session.add(release)
        session.flush()
        of_champion = tables.CasePrediction.case_id == case_id, tables.CasePrediction.release_id == champion.id
        known = session.execute(select(tables.CasePrediction).where(*of_champion)).scalar_one()
        names = {column.name for column in tables.CasePrediction.__table__.columns} - {"id", "created_at", "release_id"}
        copied = {name: getattr(known, name) for name in names}
        session.add(tables.CasePrediction(id=new_id(), created_at=utc_now(), release_id=release.id, **copied))
        session.flush()
        what = {"actor": "test", "action": "release.predict", "object_id": release.id, "cases": [case_id]}
        events.record_event(session, service.context.keys.audit, **what)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_list_of_many_rows_needs_no_more_statements_than_one_of_a_single_row(service: Service) -> None:
    service.written_past = True  # predictions without an event
    first = service.add_case("case 0", cell_png(0), patient="p0", site="north")
    code = first["prediction"]["classes"][0]
    one_case = f"/v1/cases/{first['id']}"
    lists = ["/v1/cases", "/v1/worklist", "/v1/releases", "/v1/jobs", "/v1/audit-events?limit=1000", "/v1/policies"]
    lists += ["/v1/evaluations", *(f"{one_case}/{name}" for name in ("predictions", "labels", "labels?history=1"))]
    pages = ["/worklist", "/releases", "/jobs", "/imports", "/people", "/audit", f"/cases/{first['id']}"]
    counts: dict[str, list[int]] = {}
    present = 0
    service.get("admin", "/people")  # agreements are kept until next Monday
    for target in ROUNDS:
        for number in range(present, target):
            if number:
                service.add_case(f"case {number}", cell_png(number), patient=f"p{number // 6}", site="north")
                add_prediction_of_another_release(service, number, uuid.UUID(first["id"]))
            service.outside_label(first["id"], f"reader {number}", code, blind=False)  # a read stays wanted
            assert service.post("admin", "/v1/recalibrations", json={"method": "none"}).status_code == 202
        present = target
        for path in lists + pages:
            with counted(service.context.database) as statements:
                assert service.get("admin", path).status_code == 200, path
            counts.setdefault(path, []).append(len(statements))
    assert {path: row for path, row in counts.items() if len(set(row)) > 1} == {}


_APP = f"{Path(__file__).parents[2] / 'app'}/"
_MOST_FILES = 25


class _EnteredFiles:
    """Files of the service whose functions are called while it is on, in every thread that begins after it."""

    def __init__(self) -> None:
        self.on, self.names = False, set[str]()

    def note(self, frame: FrameType, event: str, _: object) -> None:
        if self.on and event == "call" and frame.f_code.co_filename.startswith(_APP):
            self.names.add(frame.f_code.co_filename.removeprefix(_APP))


@pytest.fixture
def entered() -> Iterator[_EnteredFiles]:
    files = _EnteredFiles()
    threading.setprofile(files.note)
    yield files
    threading.setprofile(None)
    sys.setprofile(None)


def test_one_label_enters_few_files(entered: _EnteredFiles, service: Service) -> None:
    service.before_change = lambda: None  # snapshots that the tests write are none of a label's files
    service.add_cases(3)
    code = service.document("/v1/releases")["items"][0]["classes"][0]["code"]
    reads = [service.post("anna", "/v1/reads").json() for _ in range(2)]
    statuses = []
    for read in reads:  # the second one, with everything cached
        entered.names.clear()
        sys.setprofile(entered.note)
        entered.on = True
        statuses.append(service.post("anna", f"/v1/reads/{read['id']}/labels", json={"label": code}).status_code)
        entered.on = False
    assert statuses == [201, 201]
    assert "labels/submission.py" in entered.names, "nothing was noted"
    assert len(entered.names) <= _MOST_FILES, sorted(entered.names)


POOL, READERS = 3, 8
_TIMEOUTS = [name for name in POSTGRES_SETTINGS if name.endswith("timeout")]


@pytest.fixture
def pooled(postgres: PostgresServer, postgres_served: Template, tmp_path: Path) -> Iterator[Service]:
    """A service that reaches its database through a pooler with few connections."""
    program = find_pgbouncer()
    if program is None:
        missing("PgBouncer (Debian package pgbouncer)")
    name = postgres.create(postgres_served.database)
    with pooler(program, postgres, POOL) as port:
        settings = _settings(tmp_path, f"postgresql+psycopg://postgres@127.0.0.1:{port}/{name}")
        settings = settings.model_copy(update={"database_direct_url": postgres.url(name)})
        with _running(settings, postgres_served) as service:
            yield service


@pytest.mark.slow
def test_the_api_works_through_a_pooler_in_transaction_mode(pooled: Service) -> None:
    service = pooled
    all_once(service)
    codes = classes_of(service)

    def works(number: int) -> tuple[int, ...]:
        stored = service.upload(f"case {number}", cell_png(number)).status_code
        case = service.document("/v1/cases", external_id=f"case {number}")["items"][0]["id"]
        label = service.label("outside", case, codes[number % 2], annotator=f"r{number % 3}", blind=True).status_code
        return stored, label, service.get("viewer", "/v1/metrics", params={"partition": "all"}).status_code

    with ThreadPoolExecutor(READERS) as threads:
        answers = set(threads.map(works, range(2 * READERS)))
    assert answers == {(201, 201, 200)}
    assert service.document("/v1/metrics", partition="all")["n_labels"] == 2 * READERS
    job = service.post("admin", "/v1/evaluations", json={"partition": "all"}).json()
    settings = service.context.settings
    worker = build_context(settings.model_copy(update={"database_url": settings.database_direct_url}))
    work_off(worker)
    worker.database.engine.dispose()
    document = service.document(f"/v1/evaluations/{job['id']}")
    assert document["state"] == "succeeded", document["error"]
    assert service.faults() == []


def test_time_outs_are_those_of_every_transaction_and_asserted(pooled: Service) -> None:
    service = pooled
    url = service.context.database.engine.url
    plain = f"host=127.0.0.1 port={url.port} user=postgres dbname={url.database}"
    wanted = {name: POSTGRES_SETTINGS[name] for name in ("statement_timeout", "lock_timeout")}
    with psycopg.connect(plain, autocommit=True) as other:  # another client of the pooler has none of them
        assert other.execute("SELECT current_setting('statement_timeout')").fetchone() == ("0",)
    for begin in (service.context.database.read, service.context.database.write):
        with begin() as session:
            found = {
                name: session.execute(text(f"SELECT setting FROM pg_settings WHERE name = '{name}'")).scalar_one()
                for name in wanted
            }
            assert found == wanted
    assert service.document("/readyz")["database"] == "ok"
    event.remove(service.context.database.engine, "begin", _begin_postgres)
    ready = service.get(None, "/readyz")
    assert ready.status_code == 503
    assert ready.json()["database"] == "its time-outs are not in force: " + ", ".join(_TIMEOUTS)


def test_three_processes_fit_into_a_default_postgresql(postgres: PostgresServer) -> None:
    """Each with its pool of the service full, and the one of the job engine; three connections are superusers'."""
    name = postgres.create()
    engines = [Database(postgres.url(name)).engine for _ in range(3)]
    total = sum(engine.pool.size() + engine.pool._max_overflow for engine in engines)  # type: ignore[attr-defined]
    total += 3 * ENGINE_CONNECTIONS
    locks_and_listeners = 3 * 3
    assert total + locks_and_listeners <= 100 - 3
    for engine in engines:
        engine.dispose()


def test_owner_and_workers_go_past_the_pooler() -> None:
    settings = Settings(database_url="postgresql://pooler/x", database_direct_url="postgresql://server/x")
    assert settings.owner_sqlalchemy_url == settings.direct_sqlalchemy_url == "postgresql+psycopg://server/x"
