"""Connections reset around a COMMIT (F16), and a frozen PostgreSQL (F18): each label once, and full service again."""

import signal
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from sqlalchemy import func, select

from app.audit.verify import verify_all
from app.database.tables import Label
from tests.faults.proxy import CuttingProxy
from tests.faults.rounds import Rounds
from tests.support.postgres import PostgresServer
from tests.support.process import Installation
from tests.support.service import cell_png
from tests.support.waiting import patient, wait_until

#: Of what could be cut, how much is; a retry is cut as often.
SHARE = 0.5


class Client:
    """Sends labels through a proxy, each with its key until it is answered."""

    def __init__(self, address: str, key: str) -> None:
        self.address, self.key = address, key
        self.statuses: Counter[int] = Counter()
        self.unknown = self.replayed = 0
        self.acknowledged: list[str] = []

    def post(self, path: str, name: str, **body: object) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {self.key}", "Idempotency-Key": name, "Connection": "close"}
        until = time.monotonic() + patient(60)
        while time.monotonic() < until:
            try:
                answer = httpx2.post(self.address + path, headers=headers, timeout=patient(30), **body)  # type: ignore[arg-type]
            except httpx2.TransportError:
                self.unknown += 1
                continue
            self.statuses[answer.status_code] += 1
            if answer.status_code != 503:
                self.replayed += "Idempotent-Replayed" in answer.headers
                return answer
            self.unknown += 1
        raise AssertionError(f"never answered: {self.statuses}")

    def label(self, case: str, number: int) -> None:
        body = {"label": "blast", "annotator": f"reader {number}", "blind": True}
        answer = self.post(f"/v1/cases/{case}/labels", f"label {number}", json=body)
        assert answer.status_code == 201, answer.text
        stored = answer.json()
        self.acknowledged.append(str(stored.get("label", stored)["id"]))


def assert_each_once(made: Installation, client: Client, proxy: CuttingProxy, rounds: int, where: str) -> None:
    """Every label that was asked for is there once, and something of each kind was cut on the way."""
    with made.parts() as context, context.database.read() as session:
        stored = [str(row) for row in session.execute(select(Label.id)).scalars()]
        readers = session.execute(select(func.count(Label.annotator_id.distinct()))).scalar_one()
        faults = verify_all(session, context).faults
    Rounds(
        fault="F16",
        what=f"connections {where} reset before ({proxy.cuts['before']}) and after ({proxy.cuts['after']}) a commit",
        database=urlsplit(made.sqlalchemy_url).scheme.partition("+")[0],
        rounds=rounds,
        acknowledged=len(client.acknowledged),
        lost=len(set(client.acknowledged) - set(stored)),
        duplicates=len(stored) - readers,
        server_errors=sum(n for status, n in client.statuses.items() if status >= 500 and status != 503),
    ).note()
    assert set(client.statuses) <= {201, 503}, client.statuses
    assert sorted(stored) == sorted(client.acknowledged)
    assert (len(stored), readers) == (rounds, rounds)
    assert min(proxy.cuts["before"], proxy.cuts["after"]) > 0
    assert client.unknown >= proxy.cuts.total() > client.replayed > 0
    assert faults == []


@pytest.mark.parametrize("rounds", [12, pytest.param(300, marks=pytest.mark.heavy)])
@pytest.mark.slow
def test_a_reset_between_client_and_server_leaves_each_label_once(
    tmp_path: Path, tiny_release: Path, rounds: int
) -> None:
    with Installation(tmp_path / "home") as made, CuttingProxy(made.port, b"/labels ", rounds) as proxy:
        keys = made.prepare(tiny_release, lis="service")
        made.environment["SECONDREAD_WORKER"] = "false"
        made.start()
        client = Client(f"http://127.0.0.1:{proxy.port}", keys["lis"])
        case = uploaded(client)
        proxy.share = SHARE
        for number in range(rounds):
            client.label(case, number)
        proxy.share = 0.0
        assert_each_once(made, client, proxy, rounds, "from clients")


@pytest.mark.parametrize("rounds", [12, pytest.param(300, marks=pytest.mark.heavy)])
@pytest.mark.slow
def test_a_reset_between_server_and_database_leaves_each_label_once(
    postgres: PostgresServer, tmp_path: Path, tiny_release: Path, rounds: int
) -> None:
    """The server itself does not learn whether its transaction was committed."""
    url = postgres.url(postgres.create())
    with Installation(tmp_path / "home", url) as made, CuttingProxy(postgres.port, b"COMMIT", rounds) as proxy:
        keys = made.prepare(tiny_release, lis="service")
        made.environment["SECONDREAD_DATABASE_URL"] = url.replace(str(postgres.port), str(proxy.port))
        made.start()
        client = Client(made.address, keys["lis"])
        case = uploaded(client)
        proxy.share = SHARE
        for number in range(rounds):
            client.label(case, number)
        proxy.share = 0.0
        made.environment["SECONDREAD_DATABASE_URL"] = url
        assert_each_once(made, client, proxy, rounds, "to the database")


def uploaded(client: Client) -> str:
    """A case to label."""
    files = {"image": ("cell.png", cell_png())}
    answer = client.post("/v1/cases", uuid.uuid4().hex, files=files, data={"external_id": "case"})
    assert answer.status_code == 201, answer.text
    client.statuses.clear()
    return str(answer.json()["id"])


CLIENTS = 60


@pytest.mark.slow
def test_a_frozen_database_leaves_the_service_alive_and_full_service_comes_back(
    own_postgres: PostgresServer, tmp_path: Path, tiny_release: Path
) -> None:
    with Installation(tmp_path / "home", own_postgres.url(own_postgres.create())) as made:
        keys = made.prepare(tiny_release, viewer="viewer")
        made.environment["SECONDREAD_WORKER"] = "false"
        made.start()
        answers: list[int] = []

        def ask(path: str) -> int:
            request = urllib.request.Request(
                f"{made.address}{path}", headers={"Authorization": f"Bearer {keys['viewer']}"}
            )
            try:
                with urllib.request.urlopen(request, timeout=patient(60)) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                return error.code

        assert ask("/v1/cases") == 200
        askers = [threading.Thread(target=lambda: answers.append(ask("/v1/cases"))) for _ in range(CLIENTS)]
        own_postgres.send_signal(signal.SIGSTOP)
        try:
            for asker in askers:
                asker.start()
            for _ in range(20):
                assert ask("/healthz") == 200
            assert 200 not in answers  # nobody was served: those who wait still wait
        finally:
            own_postgres.send_signal(signal.SIGCONT)
        for asker in askers:
            asker.join(patient(60))
        assert set(answers) <= {200, 503}, Counter(answers)
        assert len(answers) == CLIENTS
        wait_until(lambda: ask("/readyz") == 200, 30, lambda: made.log)
        assert [ask("/v1/cases") for _ in range(20)] == [200] * 20
