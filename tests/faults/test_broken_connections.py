"""Connections reset around a COMMIT (F16), a frozen PostgreSQL (F18), disks under strace (F2, F3)."""

import re
import shutil
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import missing
from tests.faults.client import Client, assert_kept
from tests.faults.proxy import CuttingProxy
from tests.support.postgres import PostgresServer
from tests.support.process import Installation
from tests.support.waiting import patient, wait_until

#: Of what could be cut, how much is; a retry is cut as often.
SHARE = 0.5


def label_through(proxy: CuttingProxy, client: Client, rounds: int) -> None:
    """Send labels while connections are cut on their way, something of each kind."""
    case = client.add_case()["id"]
    client.forget()
    proxy.share = SHARE
    for number in range(rounds):
        client.label(case, f"reader {number}")
    proxy.share = 0.0
    assert min(proxy.cuts["before"], proxy.cuts["after"]) > 0
    assert client.unknown >= proxy.cuts.total() > client.replayed > 0


@pytest.mark.parametrize("rounds", [12, pytest.param(300, marks=pytest.mark.heavy)])
@pytest.mark.slow
def test_a_reset_between_client_and_server_leaves_each_label_once(
    tmp_path: Path, tiny_release: Path, rounds: int
) -> None:
    with Installation(tmp_path / "home") as made, CuttingProxy(made.port, b"/labels ", rounds) as proxy:
        made.keys = made.prepare(tiny_release, lis="service")
        made.environment["SECONDREAD_WORKER"] = "false"
        made.start()
        client = Client(lambda: f"http://127.0.0.1:{proxy.port}", made.keys)
        label_through(proxy, client, rounds)
        cuts = f"reset before ({proxy.cuts['before']}) and after ({proxy.cuts['after']}) a commit"
        with made.parts() as context:
            assert_kept(context, [client], "F16", f"connections from clients {cuts}", rounds)


@pytest.mark.parametrize("rounds", [12, pytest.param(300, marks=pytest.mark.heavy)])
@pytest.mark.slow
def test_a_reset_between_server_and_database_leaves_each_label_once(
    postgres: PostgresServer, tmp_path: Path, tiny_release: Path, rounds: int
) -> None:
    """The server itself does not learn whether its transaction was committed."""
    url = postgres.url(postgres.create())
    with Installation(tmp_path / "home", url) as made, CuttingProxy(postgres.port, b"COMMIT", rounds) as proxy:
        made.keys = made.prepare(tiny_release, lis="service")
        made.environment["SECONDREAD_DATABASE_URL"] = url.replace(str(postgres.port), str(proxy.port))
        made.start()
        client = Client(lambda: made.address, made.keys)
        label_through(proxy, client, rounds)
        made.environment["SECONDREAD_DATABASE_URL"] = url
        cuts = f"reset before ({proxy.cuts['before']}) and after ({proxy.cuts['after']}) a commit"
        with made.parts() as context:
            assert_kept(context, [client], "F16", f"connections to the database {cuts}", rounds)


CLIENTS = 60


@pytest.mark.slow
def test_a_frozen_database_leaves_the_service_alive_and_full_service_comes_back(
    own_postgres: PostgresServer, tmp_path: Path, tiny_release: Path
) -> None:
    with Installation(tmp_path / "home", own_postgres.url(own_postgres.create())) as made:
        made.keys = made.prepare(tiny_release, viewer="viewer")
        made.environment["SECONDREAD_WORKER"] = "false"
        made.start()
        answers: list[int] = []

        def ask(path: str) -> int:
            return made.call("viewer", "GET", path).status_code

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


LABELS = 20
_SYNC = re.compile(r"\b(?:fsync|fdatasync)\(.*= 0$", re.MULTILINE)
_INJECTED = re.compile(r"\(INJECTED\)$", re.MULTILINE)


@pytest.fixture
def made(tmp_path: Path, tiny_release: Path) -> Iterator[Installation]:
    """A server without a worker, whose keys are known."""
    with Installation(tmp_path / "home") as made:
        made.keys = made.prepare(tiny_release, lis="service")
        made.environment["SECONDREAD_WORKER"] = "false"
        made.start()
        yield made


@contextmanager
def traced(made: Installation, calls: Path, *options: str) -> Iterator[None]:
    """Run strace on the server, and write what it saw to a file."""
    strace = shutil.which("strace")
    if strace is None:
        missing("strace (Debian package strace)")
    assert made.server is not None
    pid = made.server.pid
    command = [strace, "-f", "-q", "-e", "trace=fsync,fdatasync", *options, "-o", str(calls), "-p", str(pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as tracer:
        try:
            wait_until(lambda: _is_traced(pid) or tracer.poll() is not None, 20)
            if tracer.poll() is not None:
                missing("the right to trace a process")
            yield
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.communicate()


def _is_traced(process: int) -> bool:
    statuses = [path.read_text() for path in Path(f"/proc/{process}/task").glob("*/status")]
    return all("TracerPid:\t0\n" not in status for status in statuses)


@pytest.mark.slow
def test_there_is_a_synchronisation_for_each_acknowledged_label(made: Installation, tmp_path: Path) -> None:
    client, calls, seen = Client(lambda: made.address, made.keys), tmp_path / "calls", 0
    case = client.add_case()["id"]
    client.forget()
    with traced(made, calls):
        for number in range(LABELS):
            client.label(case, f"reader {number}")
            synchronised = len(_SYNC.findall(calls.read_text()))
            assert synchronised > seen, f"label {number} was acknowledged without a synchronisation"
            seen = synchronised
    with made.parts() as context:
        assert_kept(context, [client], "F2", f"{seen} synchronisations counted by strace", LABELS)


@pytest.mark.heavy
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_disk_that_fails_to_synchronise_acknowledges_nothing(made: Installation, tmp_path: Path, error: str) -> None:
    client, calls = Client(lambda: made.address, made.keys, {503, 507}), tmp_path / "calls"
    case = client.add_case()["id"]
    client.forget()
    with traced(made, calls, "-e", f"inject=fsync,fdatasync:error={error}:when=2+3"):
        for number in range(LABELS):
            client.label(case, f"reader {number}")
    injected = len(_INJECTED.findall(calls.read_text()))
    assert injected > LABELS / 4
    assert client.statuses[503] + client.statuses[507] > 0
    with made.parts() as context:
        assert_kept(context, [client], "F3", f"{injected} synchronisations fail with {error}", LABELS)
