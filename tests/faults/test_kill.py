"""Server or database end while 16 clients write (F1, F6, F9), or go back to a moment before a mistake (F15)."""

import itertools
import random
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import func, select

from app.accounts.passwords import hash_password
from app.accounts.people import begin_session
from app.audit.verify import verify_all
from app.cases.ingest import prepare_case, store_case
from app.cases.schemas import CaseIn
from app.cases.service import SpecimenFields, add_specimen
from app.context import ServiceContext
from app.database.tables import Account, Case, Label, NetworkOutput, SpecimenSignature
from app.http.principal import Principal
from tests.faults.client import Client, assert_kept
from tests.faults.rounds import Rounds
from tests.support.postgres import PostgresServer
from tests.support.process import Installation
from tests.support.service import cell_png
from tests.support.waiting import wait_until

SHORT = [pytest.mark.slow, pytest.mark.ci]

LABELLERS, UPLOADERS, CASES = 12, 4, 12


@pytest.fixture
def made(any_database: str | None, tmp_path: Path) -> Iterator[Installation]:
    with Installation(tmp_path / "home", any_database) as made:
        made.environment["SECONDREAD_WORKER"] = "false"
        yield made


@contextmanager
def writers(made: Installation, retried: Collection[int] = ()) -> Iterator[tuple[list[Client], list[str]]]:
    """Sixteen clients who store labels and images until the block ends, and the cases of before them."""
    clients = [Client(lambda: made.address, made.keys, retried) for _ in range(LABELLERS + UPLOADERS + 1)]
    first, over = clients.pop(), threading.Event()
    cases = [first.add_case(f"first {number}", number % 8) for number in range(CASES)]

    def write(who: int) -> None:
        for number in itertools.takewhile(lambda _: not over.is_set(), itertools.count()):
            if who < UPLOADERS:
                clients[who].add_case(f"of {who}: {number}", number % 8)
            else:
                case, reader = cases[number % CASES], f"reader {who} {number // CASES}"
                clients[who].label(case["id"], reader, case["prediction"]["classes"][number % 3])

    with ThreadPoolExecutor(len(clients)) as pool:
        writing = [pool.submit(write, who) for who in range(len(clients))]
        try:
            yield clients, first.acknowledged
        finally:
            over.set()
        for one in writing:
            one.result()


@pytest.mark.parametrize("kills", [pytest.param(3, marks=SHORT), pytest.param(100, marks=pytest.mark.heavy)])
def test_what_was_acknowledged_outlives_every_kill(made: Installation, tiny_release: Path, kills: int) -> None:
    made.keys = made.prepare(tiny_release, lis="service")
    made.start()
    rng, recoveries = random.Random(kills), []
    with writers(made) as (clients, others):
        for _ in range(kills):
            wait_for_more(made, clients, rng.randrange(1, 40))
            made.stop(signal.SIGKILL)
            killed = time.monotonic()
            made.start()
            recoveries.append(time.monotonic() - killed)
    what = "server killed (SIGKILL) while 16 clients store labels and images"
    with made.parts() as context:
        assert_kept(context, clients, "F1, F9", what, kills, others, (Case, Label), max(recoveries))


@pytest.mark.parametrize("stops", [pytest.param(3, marks=SHORT), pytest.param(15, marks=pytest.mark.heavy)])
def test_what_was_acknowledged_outlives_every_stop_of_postgresql(
    own_postgres: PostgresServer, tmp_path: Path, tiny_release: Path, stops: int
) -> None:
    """F6: stopped at once, as by a crash, under the same writers; the service says so and comes back by itself."""
    with Installation(tmp_path / "home", own_postgres.url(own_postgres.create())) as made:
        made.environment["SECONDREAD_WORKER"] = "false"
        made.keys = made.prepare(tiny_release, lis="service")
        made.start()
        assert made.server is not None
        pid, rng, recoveries = made.server.pid, random.Random(stops), []

        def status(path: str) -> int:
            return made.call("lis", "GET", path).status_code

        with writers(made, retried={503}) as (clients, others):
            for _ in range(stops):
                wait_for_more(made, clients, rng.randrange(1, 40))
                own_postgres.halt()
                wait_until(lambda: status("/readyz") == 503, 60, lambda: made.log)
                assert status("/healthz") == 200
                own_postgres.start()
                back = time.monotonic()
                wait_until(lambda: status("/readyz") == 200, 60, lambda: made.log)
                recoveries.append(time.monotonic() - back)
        assert made.server.pid == pid
        what = "PostgreSQL stopped at once while 16 clients store labels and images"
        with made.parts() as context:
            assert_kept(context, clients, "F6", what, stops, others, (Case, Label), max(recoveries))


@pytest.mark.parametrize("kills", [pytest.param(3, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.heavy)])
def test_an_upload_of_five_hundred_cells_outlives_every_kill(
    made: Installation, tiny_release: Path, kills: int
) -> None:
    """In turn one request, whose import is cut off too, and ten; server and worker end at any cell."""
    made.keys = made.prepare(tiny_release, lis="service")
    client, rng, recoveries = Client(lambda: made.address, made.keys), random.Random(kills), []
    made.start()
    worker = made.spawn("worker")
    with made.parts() as context, ThreadPoolExecutor(1) as pool:
        for number in range(kills):
            to, at_once = add_one_specimen(context, f"S{number}"), (50, 500)[number % 2]
            cells = [("image", (f"{cell}.png", cell_png(500 * number + cell))) for cell in range(500)]
            uploading = pool.submit(upload_cells, client, to, [cells[i : i + at_once] for i in range(0, 500, at_once)])
            enough = rng.randrange(-50, 450)
            wait_until(lambda: n_stored(context, to) > enough, 120, lambda: made.log)  # noqa: B023
            time.sleep(rng.random() / 5)
            print(f"killed after {n_stored(context, to)} of 500, {at_once} at once")
            worker.kill()
            made.stop(signal.SIGKILL)
            killed = time.monotonic()
            made.start()
            worker = made.spawn("worker")
            recoveries.append(time.monotonic() - killed)
            for job in uploading.result():
                path = f"/v1/imports/{job}?limit=1000"
                wait_until(lambda: made.call("lis", "GET", path).json()["job"]["state"] == "succeeded", 120)  # noqa: B023
                rows = made.call("lis", "GET", path).json()["rows"]
                client.acknowledged += [row["case_id"] for row in rows if row["status"] in {"created", "known"}]
        with context.database.read_moment() as session:
            stored = [str(case_id) for case_id in session.execute(select(Case.id)).scalars()]
            n_outputs = session.execute(select(func.count()).select_from(NetworkOutput)).scalar_one()
            faults = verify_all(session, context).faults
    what, told = "server and worker killed (SIGKILL) in the middle of an upload of 500 cells", set(client.acknowledged)
    lost, doubled = len(told - set(stored)), len(stored) - len(told)
    kind, last = context.database.engine.dialect.name, max(recoveries)
    Rounds("F1, F9", what, kind, kills, len(told), lost, doubled, client.statuses[500], last).note()
    assert (len(told), lost, doubled, n_outputs, faults) == (500 * kills, 0, 0, 500 * kills, [])
    assert set(client.statuses) <= {202, 207, 503}, client.statuses


def add_one_specimen(context: ServiceContext, external_id: str) -> str:
    with context.database.write() as session:
        account = session.execute(select(Account)).scalars().first()
        assert account is not None
        lis = Principal(account.id, account.name, account.role, frozenset({"cases:write"}))
        return str(add_specimen(session, context.keys.audit, lis, SpecimenFields(external_id, external_id, None)).id)


def n_stored(context: ServiceContext, specimen_id: str) -> int:
    of_specimen = select(func.count()).select_from(Case).where(Case.specimen_id == uuid.UUID(specimen_id))
    with context.database.read() as session:
        return session.execute(of_specimen).scalar_one()


def upload_cells(client: Client, to: str, requests: list[Any]) -> list[str]:
    """Send requests until each is answered; gives the jobs that store the rest."""
    jobs = []
    for cells in requests:
        body = client.send("lis", f"/v1/specimens/{to}/cells", files=cells).json()
        jobs += [] if "results" in body else [body["id"]]
        client.acknowledged += [result["case"] for result in body.get("results", [])]
    return jobs


def wait_for_more(made: Installation, clients: list[Client], n: int) -> None:
    """Until so many more requests were acknowledged."""

    def acknowledged() -> int:
        return sum(len(client.acknowledged) for client in clients)

    enough = acknowledged() + n
    told = [client.statuses for client in clients]
    wait_until(lambda: acknowledged() >= enough, 120, lambda: f"{told}\n{made.log}")


@pytest.mark.parametrize("kills", [pytest.param(3, marks=SHORT), pytest.param(20, marks=pytest.mark.heavy)])
def test_a_signature_is_stored_once_or_not_at_all(made: Installation, tiny_release: Path, kills: int) -> None:
    """The server ends at any moment of a signature, from the password to the answer."""
    made.keys, password = made.prepare(tiny_release, lead="admin"), "a long enough password"
    with made.parts() as context:
        for number in range(kills):
            store(context, f"cell {number}", number, specimen=f"S{number}")
        with context.database.write() as session:
            lead = session.execute(select(Account)).scalar_one()
            lead.password_hash = hash_password(password)
            token = begin_session(session, context.keys.audit, lead)
    made.start()
    client, rng = Client(lambda: made.address, made.keys), random.Random(kills)
    specimens = [row["specimen"] for row in made.call("lead", "GET", "/v1/specimens").json()["items"]]
    body, cookie = {"meaning": "approved", "version": 1, "password": password}, {"Cookie": f"sr_session={token}"}
    recoveries = []
    with ThreadPoolExecutor(1) as pool:
        for specimen in specimens:
            path = f"/v1/specimens/{specimen}/signatures"
            signing = pool.submit(client.send, "", path, json=body, headers=cookie)
            time.sleep(rng.random() / 2)
            made.stop(signal.SIGKILL)
            killed = time.monotonic()
            made.start()
            recoveries.append(time.monotonic() - killed)
            client.acknowledged.append(signing.result().json()["digest"])
    with made.parts() as context, context.database.read_moment() as session:
        stored = list(session.execute(select(SpecimenSignature.digest)).scalars())
        faults, kind = verify_all(session, context).faults, context.database.engine.dialect.name
    what, lost = "server killed (SIGKILL) while a person signs", len(set(client.acknowledged) - set(stored))
    doubled, n = len(stored) - len(set(stored)), len(client.acknowledged)
    Rounds("F1, F9", what, kind, kills, n, lost, doubled, client.statuses[500], max(recoveries)).note()
    assert (sorted(stored), n, faults) == (sorted(client.acknowledged), kills, [])
    assert set(client.statuses) <= {201, 503}, client.statuses


def store(context: ServiceContext, external_id: str, number: int, **fields: str) -> None:
    new = prepare_case(context, CaseIn(external_id=external_id, metadata={}, **fields), cell_png(number))
    with context.database.write() as session:
        row = session.execute(select(Account).where(Account.name == "lead")).scalar_one()
        store_case(session, context, Principal(row.id, row.name, row.role, frozenset({"cases:write"})), new)


def archive_logs(server: PostgresServer, connection: psycopg.Connection) -> None:
    """Keep the log of the server from now on; it begins with the next start."""
    server.run("mkdir", str(server.folder / "archive"))
    for setting, value in (("archive_mode", "on"), ("archive_command", f"cp %p {server.folder}/archive/%f")):
        connection.execute(f"ALTER SYSTEM SET {setting} = '{value}'".encode())
    server.halt()
    server.start()


@pytest.mark.slow
def test_a_database_comes_back_as_it_was_at_a_moment(
    own_postgres: PostgresServer, tmp_path: Path, tiny_release: Path
) -> None:
    server = own_postgres
    dsn = f"host=127.0.0.1 port={server.port} user=postgres dbname=postgres"
    made = Installation(tmp_path / "home", server.url(server.create()))
    made.prepare(tiny_release, lead="admin")
    with psycopg.connect(dsn, autocommit=True) as connection:
        archive_logs(server, connection)
    with made.parts() as context:
        store(context, "before the base backup", 0)
        base = server.folder / "base"
        server.run(
            "pg_basebackup", "-h", "127.0.0.1", "-p", str(server.port), "-U", "postgres", "-D", str(base), "-c", "fast"
        )
        store(context, "after it", 1)
        with psycopg.connect(dsn, autocommit=True) as connection:
            (moment,) = connection.execute("SELECT clock_timestamp()").fetchone() or (None,)
            store(context, "a mistake", 2)
            (segment,) = connection.execute("SELECT pg_walfile_name(pg_switch_wal())").fetchone() or (None,)
        archived = server.folder / "archive" / str(segment)
        wait_until(archived.is_file, 60, f"{archived} is not there")
    server.halt()
    shutil.rmtree(server.data)
    base.rename(server.data)
    with (server.data / "postgresql.auto.conf").open("a") as settings:
        settings.write(f"restore_command = 'cp {server.folder}/archive/%f %p'\nrecovery_target_time = '{moment}'\n")
        settings.write("recovery_target_action = 'promote'\n")
    server.run("touch", str(server.data / "recovery.signal"))
    server.start()
    with made.parts() as context, context.database.read() as session:
        names = set(session.execute(select(Case.external_id)).scalars())
        assert names == {"before the base backup", "after it"}
        faults = verify_all(session, context).faults
    assert faults == []
