"""Server or database end while 16 clients write (F1, F6, F9), or go back to a moment before a mistake (F15)."""

import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import httpx2
import psycopg
import pytest
from sqlalchemy import select

from app.audit.verify import verify_all
from app.cases.ingest import prepare_case, store_case
from app.cases.schemas import CaseIn
from app.context import ServiceContext
from app.database.tables import Account, Case, Label
from app.http.principal import Principal
from tests.faults.rounds import Rounds
from tests.support.postgres import PostgresServer
from tests.support.process import Installation
from tests.support.service import cell_png
from tests.support.waiting import patient, wait_until

SHORT = [pytest.mark.slow, pytest.mark.ci]

LABELLERS, UPLOADERS, CASES = 12, 4, 12
Request = tuple[str, dict[str, Any]]


class Writer(threading.Thread):
    """Sends requests one after another, each with its key until it is answered, and notes what was acknowledged."""

    def __init__(
        self, made: Installation, key: str, request: Callable[[int], Request], journal: Path, over: threading.Event
    ) -> None:
        super().__init__()
        self._made, self._request, self._over = made, request, over
        self._headers = {"Authorization": f"Bearer {key}"}
        self._journal = journal
        self.retried: set[int] = set()
        self.acknowledged: list[str] = []
        self.statuses: Counter[int] = Counter()
        self.replayed = 0

    def run(self) -> None:
        number = 0
        with (
            httpx2.Client(base_url=self._made.address, timeout=patient(60)) as client,
            self._journal.open("a") as journal,
        ):
            while not self._over.is_set():
                answer = self._until_answered(client, number)
                self.statuses[answer.status_code] += 1
                self.replayed += "Idempotent-Replayed" in answer.headers
                if answer.status_code == 201:
                    stored = answer.json()
                    self._note(journal, str(stored.get("label", stored)["id"]))
                number += 1

    def _until_answered(self, client: httpx2.Client, number: int) -> httpx2.Response:
        path, body = self._request(number)
        headers = self._headers | {"Idempotency-Key": f"{self.name} {number}"}
        while True:
            try:
                answer = client.post(path, headers=headers, **body)
            except httpx2.TransportError:
                time.sleep(0.05)  # nobody is there; the same request again
                continue
            if answer.status_code not in self.retried:
                return answer
            time.sleep(0.05)

    def _note(self, journal: TextIO, row: str) -> None:
        journal.write(row + "\n")
        journal.flush()
        os.fsync(journal.fileno())
        self.acknowledged.append(row)


@pytest.fixture(params=["sqlite", "postgresql"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Installation]:
    url = None
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.url(server.create())
    with Installation(tmp_path / "home", url) as made:
        made.environment["SECONDREAD_WORKER"] = "false"
        yield made


def upload(number: int, who: int) -> Request:
    image = cell_png(number % 8)
    return "/v1/cases", {"files": {"image": ("cell.png", image)}, "data": {"external_id": f"of {who}: {number}"}}


def label(cases: list[str], codes: list[str], number: int, who: int) -> Request:
    body = {"label": codes[number % 3], "annotator": f"reader {who} {number // len(cases)}", "blind": True}
    return f"/v1/cases/{cases[number % len(cases)]}/labels", {"json": body}


def writers(made: Installation, keys: dict[str, str], folder: Path, over: threading.Event) -> list[Writer]:
    cases, codes = [], []
    for number in range(CASES):
        path, body = upload(number, -1)
        headers = {"Authorization": f"Bearer {keys['admin']}", "Idempotency-Key": str(number)}
        stored = httpx2.post(made.address + path, headers=headers, timeout=patient(60), **body).json()
        cases.append(stored["id"])
        codes = stored["prediction"]["classes"]
    uploaders = [
        Writer(made, keys["admin"], lambda number, who=who: upload(number, who), folder / f"u{who}.journal", over)
        for who in range(UPLOADERS)
    ]
    labellers = [
        Writer(
            made,
            keys["outside"],
            lambda number, who=who: label(cases, codes, number, who),
            folder / f"l{who}.journal",
            over,
        )
        for who in range(LABELLERS)
    ]
    return uploaders + labellers


@pytest.mark.parametrize("kills", [pytest.param(3, marks=SHORT), pytest.param(100, marks=pytest.mark.heavy)])
def test_what_was_acknowledged_outlives_every_kill(
    made: Installation, tmp_path: Path, tiny_release: Path, kills: int, request: pytest.FixtureRequest
) -> None:
    keys = made.prepare(tiny_release, admin="admin", outside="service")
    made.start()
    rng, over, recoveries = random.Random(kills), threading.Event(), []
    everybody = writers(made, keys, tmp_path, over)
    for writer in everybody:
        writer.start()
    try:
        for _ in range(kills):
            wait_for_more(made, everybody, rng.randrange(1, 40))
            made.stop(signal.SIGKILL)
            killed = time.monotonic()
            made.start()
            recoveries.append(time.monotonic() - killed)
    finally:
        over.set()
        for writer in everybody:
            writer.join(patient(120))
    settle(
        made,
        everybody,
        fault="F1, F9",
        what="server killed (SIGKILL) while 16 clients store labels and images",
        database=request.node.callspec.params["made"],
        rounds=kills,
        recovery=max(recoveries),
    )


@pytest.mark.parametrize("stops", [pytest.param(3, marks=SHORT), pytest.param(15, marks=pytest.mark.heavy)])
def test_what_was_acknowledged_outlives_every_stop_of_postgresql(
    own_postgres: PostgresServer, tmp_path: Path, tiny_release: Path, stops: int
) -> None:
    """F6: stopped at once, as by a crash, under the same writers; the service says so and comes back by itself."""
    with Installation(tmp_path / "home", own_postgres.url(own_postgres.create())) as made:
        made.environment["SECONDREAD_WORKER"] = "false"
        keys = made.prepare(tiny_release, admin="admin", outside="service")
        made.start()
        assert made.server is not None
        pid, rng, over, recoveries = made.server.pid, random.Random(stops), threading.Event(), []
        everybody = writers(made, keys, tmp_path, over)
        for writer in everybody:
            writer.retried = {503}
            writer.start()
        try:
            for _ in range(stops):
                wait_for_more(made, everybody, rng.randrange(1, 40))
                own_postgres.halt()
                wait_until(lambda: status_of(made, "/readyz") == 503, 60, lambda: made.log)
                assert status_of(made, "/healthz") == 200
                own_postgres.start()
                back = time.monotonic()
                wait_until(lambda: status_of(made, "/readyz") == 200, 60, lambda: made.log)
                recoveries.append(time.monotonic() - back)
        finally:
            over.set()
            for writer in everybody:
                writer.join(patient(120))
        assert made.server.pid == pid
        settle(
            made,
            everybody,
            fault="F6",
            what="PostgreSQL stopped at once while 16 clients store labels and images",
            database="postgresql",
            rounds=stops,
            recovery=max(recoveries),
        )


def status_of(made: Installation, path: str) -> int:
    return httpx2.get(made.address + path, timeout=patient(30)).status_code


def wait_for_more(made: Installation, everybody: list[Writer], n: int) -> None:
    """Until so many more requests were acknowledged."""
    enough = sum(len(writer.acknowledged) for writer in everybody) + n
    wait_until(
        lambda: sum(len(writer.acknowledged) for writer in everybody) >= enough,
        120,
        lambda: f"{[writer.statuses for writer in everybody]}\n{made.log}",
    )


def settle(
    made: Installation, everybody: list[Writer], fault: str, what: str, database: str, rounds: int, recovery: float
) -> None:
    """Compare what was acknowledged with what is there, and note it as a row of the table of faults."""
    acknowledged = [row for writer in everybody for row in writer.acknowledged]
    statuses = sum((writer.statuses for writer in everybody), Counter())
    with made.parts() as context, context.database.read() as session:
        stored = [str(row) for row in session.execute(select(Label.id)).scalars()]
        stored += [str(row) for row in session.execute(select(Case.id)).scalars()]
        faults = verify_all(session, context).faults
    Rounds(
        fault=fault,
        what=what,
        database=database,
        rounds=rounds,
        acknowledged=len(acknowledged),
        lost=len(set(acknowledged) - set(stored)),
        duplicates=len(stored) - CASES - len(set(acknowledged)),
        server_errors=sum(n for status, n in statuses.items() if status >= 500 and status not in {503, 507}),
        recovery_seconds=recovery,
    ).note()
    assert set(statuses) == {201}, statuses
    assert len(set(acknowledged)) == len(acknowledged)
    # every request was sent until it was answered: what is stored is what was acknowledged, no more and no less
    assert len(stored) == CASES + len(acknowledged)
    assert set(acknowledged) <= set(stored)
    assert faults == []


def store(context: ServiceContext, external_id: str, number: int) -> None:
    new = prepare_case(context, CaseIn(external_id=external_id, metadata={}), cell_png(number))
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
