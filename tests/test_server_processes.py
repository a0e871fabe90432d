"""Several server processes, on one port or on one database: one service to its callers, whichever lives or dies."""

import json
import os
import re
import signal
import socket
import threading
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client.multiprocess import MultiProcessCollector
from sqlalchemy import func, insert, select

from app.audit.chain.keys import DerivedKey
from app.cli import server
from app.database.engine import Database
from app.database.tables import Account, Annotator, Case, Read, ReadRequest, new_id, utc_now
from app.http.observability import COUNTED_TOGETHER
from app.triage.planning import uniform_draw
from tests.support.postgres import PostgresServer
from tests.support.process import METRICS_TOKEN, Installation
from tests.support.service import cell_png
from tests.support.waiting import patient, wait_until

PROCESSES, CALLERS = 2, 8


@pytest.fixture
def together(tmp_path: Path, tiny_release: Path) -> Iterator[Installation]:
    with Installation(tmp_path / "home") as made:
        made.environment |= {"SECONDREAD_WORKER": "false", "SECONDREAD_PROCESSES": str(PROCESSES)}
        made.keys = made.prepare(tiny_release, client="service", lead="admin")
        made.start()
        yield made


def environment_of(pid: int) -> dict[str, str]:
    """What a process was started with; nothing of one that has ended."""
    try:
        parts = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(part.decode().split("=", 1) for part in parts if b"=" in part)


def living(made: Installation) -> dict[int, Path]:
    """Folder in which what is counted lies, by server process: those that began with it, and so not their parent."""
    found = {}
    for pid in [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]:
        begun = environment_of(pid)
        if begun.get("SECONDREAD_HOME") == str(made.home) and COUNTED_TOGETHER in begun:
            found[pid] = Path(begun[COUNTED_TOGETHER])
    return found


def counting(made: Installation) -> dict[int, Path]:
    """The same of those that count already."""
    return {pid: folder for pid, folder in living(made).items() if any(folder.glob(f"*_{pid}.db"))}


def wait_for_all(made: Installation) -> None:
    """Wait until every process counts."""
    wait_until(lambda: len(counting(made)) == PROCESSES, 60, lambda: made.log)


def asked(made: Installation, path: str, key: str, body: bytes | None = None) -> Any:
    """The answer to a request with a connection of its own."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "image/png", "Connection": "close"}
    request = urllib.request.Request(made.address + path, body, headers)
    with urllib.request.urlopen(request, timeout=patient(20)) as answer:
        return answer.read()


def predicted(made: Installation, n: int) -> list[Any]:
    """So many predictions of one picture, by callers at once."""
    with ThreadPoolExecutor(CALLERS) as pool:
        work = [pool.submit(asked, made, "/v1/predictions", made.keys["client"], cell_png(1)) for _ in range(n)]
        return [json.loads(one.result()) for one in work]


def samples(made: Installation, name: str) -> list[float]:
    """Values of the series whose line begins so."""
    text = asked(made, "/metrics", METRICS_TOKEN).decode()
    return [float(value) for value in re.findall(rf"^{re.escape(name)}\S* (\S+)$", text, re.MULTILINE)]


def predicted_by(pid: int, folder: Path) -> float:
    """Requests for predictions that one process has answered."""
    counted = MultiProcessCollector.merge([str(path) for path in folder.glob(f"counter_{pid}.db")])  # type: ignore[no-untyped-call]
    found = [sample for metric in counted for sample in metric.samples]
    return sum(one.value for one in found if one.labels.get("route") == "/v1/predictions")


def all_have_predicted(made: Installation) -> bool:
    """Whether every process has answered a request for a prediction, and so has begun."""
    found = counting(made)
    return len(found) == PROCESSES and all(predicted_by(pid, folder) > 0 for pid, folder in found.items())


ANSWERED = 'secondread_requests_total{method="POST",route="/v1/predictions",status="200"}'


@pytest.mark.ci
@pytest.mark.slow
def test_processes_of_one_port_are_one_service(together: Installation) -> None:
    """The same numbers from each, counted together, from whichever is asked; each has answered some of them."""
    n, answers = 0, set()
    while not all_have_predicted(together):
        answers |= {json.dumps(one, sort_keys=True) for one in predicted(together, 16)}
        n += 16
        assert n < 2000, "one of them never answers"
    assert len(answers) == 1
    for _ in range(2 * PROCESSES):
        assert samples(together, ANSWERED) == [n]
        assert samples(together, "secondread_predictions_waiting") == [0]
        assert samples(together, "secondread_workers") == [0]


@pytest.mark.slow
def test_a_killed_process_is_replaced_and_what_it_did_stays_counted(together: Installation) -> None:
    predicted(together, 32)
    wait_for_all(together)
    before, (killed, *others) = samples(together, ANSWERED), counting(together)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: killed not in counting(together), 10, lambda: together.log)
    assert len(predicted(together, 16)) == 16  # the others have the port
    wait_for_all(together)
    assert set(others) < set(counting(together))
    assert samples(together, ANSWERED) == [before[0] + 16]
    assert samples(together, "secondread_predictions_waiting") == [0]


def new_server_process(made: Installation, before: set[int]) -> int | None:
    """A server process that has been started since, as soon as there is one."""
    for pid in living(made).keys() - before:
        if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return None


@pytest.mark.slow
def test_a_process_that_takes_long_to_begin_is_waited_for(together: Installation) -> None:
    """On a busy machine the imports take longer than a process that hangs is given."""
    wait_for_all(together)
    before, killed = set(living(together)), next(iter(counting(together)))
    os.kill(killed, signal.SIGKILL)
    replacement = wait_until(lambda: new_server_process(together, before), 10, lambda: together.log)
    assert replacement is not None
    os.kill(replacement, signal.SIGSTOP)
    time.sleep(server._HANGS_SECONDS + 3)
    os.kill(replacement, signal.SIGCONT)
    wait_until(lambda: replacement in counting(together), 60, lambda: together.log)
    assert len(predicted(together, 16)) == 16


@pytest.mark.slow
def test_all_end_with_the_one_that_was_started(together: Installation) -> None:
    predicted(together, 16)
    (folder, *_) = counting(together).values()
    assert together.stop() == 0
    assert living(together) == {}
    assert not folder.exists()
    together.start()
    assert len(predicted(together, 16)) == 16
    (folder, *_) = counting(together).values()
    together.stop(signal.SIGKILL)  # nobody was told
    wait_until(lambda: not living(together), 20, "they go on without it, and keep the port")
    assert not folder.exists()
    together.start()
    assert len(predicted(together, 16)) == 16


@pytest.mark.slow
def test_a_replacement_that_cannot_start_ends_all_with_a_failure(together: Installation) -> None:
    """A service manager then starts them again; with status 0 it would think that somebody asked them to stop."""
    # one that counts may not have opened its database yet
    wait_until(lambda: predicted(together, CALLERS) and all_have_predicted(together), 60, lambda: together.log)
    database, aside = together.home / "secondread.db", together.home / "aside.db"
    database.rename(aside)  # those that have it open go on with it
    database.mkdir()
    os.kill(next(iter(counting(together))), signal.SIGKILL)
    assert together.server is not None
    assert together.server.wait(patient(60)) == 1
    assert living(together) == {}
    together.server = None


@pytest.mark.slow
def test_a_closed_terminal_ends_all(together: Installation) -> None:
    predicted(together, CALLERS)
    assert together.stop(signal.SIGHUP) == 0
    assert living(together) == {}


@pytest.mark.slow
def test_what_is_under_way_is_answered_when_all_are_asked_to_stop(together: Installation) -> None:
    """A request of which the service has read the head has its answer, though nobody new is let in any more."""
    body = cell_png(1)
    head = f"POST /v1/predictions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {together.keys['client']}\r\n"
    head += f"Content-Type: image/png\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
    assert together.server is not None
    with socket.create_connection(("127.0.0.1", together.port), timeout=patient(20)) as connection:
        connection.sendall(head.encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
        together.server.send_signal(signal.SIGTERM)
        time.sleep(1)  # all have heard of it
        connection.sendall(body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
    assert together.server.wait(patient(25)) == 0
    assert living(together) == {}
    together.server = None


@pytest.mark.slow
def test_processes_store_each_case_once_in_one_file(together: Installation) -> None:
    """SQLite lets one of them write at a time; the others wait."""

    def store(number: int) -> int:
        with httpx2.Client(base_url=together.address, timeout=patient(30)) as client:
            headers = {"Authorization": f"Bearer {together.keys['lead']}", "Idempotency-Key": f"case-{number // 2}"}
            files, data = {"image": ("x.png", cell_png(number // 2))}, {"external_id": f"case-{number // 2}"}
            return int(client.post("/v1/cases", headers=headers, files=files, data=data).status_code)

    with ThreadPoolExecutor(CALLERS) as pool:
        statuses = list(pool.map(store, range(40)))  # each is sent twice
    assert set(statuses) <= {200, 201}
    found = json.loads(asked(together, "/v1/cases?limit=200", together.keys["lead"]))
    assert sorted(case["external_id"] for case in found["items"]) == sorted(f"case-{number}" for number in range(20))
    assert together.run("db", "verify").returncode == 0


@pytest.mark.parametrize("processes", ["0", "65", "two"])
def test_a_number_of_processes_that_cannot_be_is_refused(tmp_path: Path, processes: str) -> None:
    refused = Installation(tmp_path / "home").run("serve", "--processes", processes, check=False)
    assert refused.returncode != 0
    assert "processes" in refused.stderr.lower()


PEOPLE = [f"annotator-{number}" for number in range(8)]


def fill(url: str, n: int) -> None:
    """Cases with one open request each, as uploads would have left them."""
    database = Database(url)
    with database.write() as session:
        account = session.execute(select(Account.id).limit(1)).scalar_one()
        made, ids, key = utc_now(), [new_id() for _ in range(n)], DerivedKey(b"", b"coin:")
        shared: dict[str, Any] = {
            "created_at": made, "case_metadata": {}, "image_sha256": "0" * 64, "stored_sha256": "0" * 64, "width": 8,
            "height": 8, "partition": "evaluation", "created_by": account, "pi": 0.1, "need": 0.5, "waiting": True,
        }  # fmt: skip
        session.execute(
            insert(Case),
            [shared | {"id": i, "external_id": str(i), "u": uniform_draw(key, str(i))} for i in ids],
        )
        request = {
            "created_at": made, "ordinal": 1, "round": "planned", "arm": "first", "u": 0.5, "pi": 1.0, "due_at": made,
            "policy_version": 1, "due_on": made.date().isoformat(), "state": "open",
        }  # fmt: skip
        session.execute(
            insert(ReadRequest),
            [request | {"id": new_id(), "case_id": i, "shuffle": uuid.UUID(int=i.int).int % (2**31 - 1)} for i in ids],
        )
    database.engine.dispose()


def read_until_empty(address: str, key: str, taken: list[str], statuses: Counter[int]) -> None:
    with httpx2.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}, timeout=patient(30)) as client:
        while True:
            answer = client.post("/v1/reads", headers={"Idempotency-Key": uuid.uuid4().hex})
            statuses[answer.status_code] += 1
            if answer.status_code == 204:
                return
            if answer.status_code == 201:
                taken.append(answer.json()["case_id"])
                end(client, answer.json()["id"])


def end(client: httpx2.Client, read: str) -> None:
    """Close the request of a read for everybody, however often the database asks to try again."""
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    while True:
        answer = client.post(f"/v1/reads/{read}/decline", headers=headers, json={"reason": "cannot_tell"})
        assert answer.status_code in {200, 503}, answer.text
        if answer.status_code == 200:
            return


@pytest.mark.parametrize("n", [pytest.param(80, marks=pytest.mark.slow), pytest.param(10_000, marks=pytest.mark.heavy)])
def test_no_request_is_handed_out_twice(postgres: PostgresServer, tmp_path: Path, tiny_release: Path, n: int) -> None:
    url = postgres.url(postgres.create())
    servers = [Installation(tmp_path / "home", url) for _ in range(2)]
    keys = servers[0].prepare(tiny_release, **dict.fromkeys(PEOPLE, "annotator"))
    fill(servers[0].sqlalchemy_url, n)
    taken: list[list[str]] = [[] for _ in PEOPLE]
    statuses: Counter[int] = Counter()
    try:
        for server in servers:
            server.start()
        threads = [
            threading.Thread(target=read_until_empty, args=(servers[i % 2].address, keys[who], taken[i], statuses))
            for i, who in enumerate(PEOPLE)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for server in servers:
            server.stop()
    assert set(statuses) <= {201, 204, 503}, statuses
    assert sum(len(part) for part in taken) == n
    database = Database(servers[0].sqlalchemy_url)
    with database.read() as session:
        assert session.execute(select(func.count(Read.request_id.distinct()))).scalar_one() == n
        assert session.execute(select(func.count()).select_from(Read)).scalar_one() == n
        assert session.execute(select(func.count()).where(ReadRequest.state == "closed")).scalar_one() == n
    database.engine.dispose()
    assert min(len(part) for part in taken) > 0


@pytest.mark.slow
def test_a_name_is_that_of_an_account_or_of_an_outside_annotator_and_never_both(
    postgres: PostgresServer, tmp_path: Path, tiny_release: Path
) -> None:
    """An outside system labels under a name through one process while the other makes the account of that name."""
    url = postgres.url(postgres.create())
    one, other = servers = [Installation(tmp_path / "home", url) for _ in range(2)]
    keys = one.prepare(tiny_release, lead="admin", program="service")
    lead, program = ({"Authorization": f"Bearer {keys[who]}"} for who in ("lead", "program"))
    names, together = [f"person {chr(ord('a') + number)}" for number in range(20)], threading.Barrier(2)
    labels: list[Future[int]] = []

    def label(name: str) -> int:
        body, key = {"label": case["prediction"]["classes"][0], "annotator": name.title(), "blind": True}, uuid.uuid4()
        headers = program | {"Idempotency-Key": key.hex}
        together.wait(patient(20))
        path = f"{one.address}/v1/cases/{case['id']}/labels"
        return httpx2.post(path, headers=headers, json=body, timeout=patient(20)).status_code

    def add(name: str) -> int:
        together.wait(patient(20))
        body = {"name": name, "role": "annotator"}
        return httpx2.post(f"{other.address}/people", headers=lead, data=body, timeout=patient(20)).status_code

    try:
        for server in servers:
            server.start()
        files, headers = {"image": ("x.png", cell_png(1))}, lead | {"Idempotency-Key": uuid.uuid4().hex}
        case = httpx2.post(
            f"{one.address}/v1/cases", headers=headers, files=files, data={"external_id": "x"}, timeout=patient(30)
        ).json()
        with ThreadPoolExecutor(2) as pool:
            for name in names:
                labels.append(pool.submit(label, name))
                pool.submit(add, name).result()
    finally:
        for server in servers:
            server.stop()
    labelled = [answer.result() for answer in labels]
    assert set(labelled) <= {201, 403}
    database = Database(one.sqlalchemy_url)
    with database.read() as session:
        accounts = set(session.execute(select(Account.name).where(Account.role == "annotator")).scalars())
        outside = set(session.execute(select(Annotator.name).where(Annotator.account_id.is_(None))).scalars())
    database.engine.dispose()
    assert outside == {name.title() for name, status in zip(names, labelled, strict=True) if status == 201}
    assert accounts == {name for name, status in zip(names, labelled, strict=True) if status == 403}
