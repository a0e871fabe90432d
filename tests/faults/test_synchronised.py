"""System calls of a server under strace: synchronised before an answer (F2), and failing as a broken disk does (F3)."""

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import func, select

from app.audit.verify import verify_all
from app.database.tables import Label
from tests.conftest import missing
from tests.faults.rounds import Rounds
from tests.faults.test_broken_connections import Client, uploaded
from tests.support.process import Installation
from tests.support.waiting import wait_until

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
    assert strace is not None
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
    """Whether somebody traces every thread of a process."""
    statuses = [path.read_text() for path in Path(f"/proc/{process}/task").glob("*/status")]
    return all("TracerPid:\t0\n" not in status for status in statuses)


def note(made: Installation, fault: str, what: str, client: Client) -> None:
    """Compare what was acknowledged with the database."""
    with made.parts() as context, context.database.read() as session:
        stored = [str(row) for row in session.execute(select(Label.id)).scalars()]
        readers = session.execute(select(func.count(Label.annotator_id.distinct()))).scalar_one()
        faults = verify_all(session, context).faults
    Rounds(
        fault=fault,
        what=what,
        database="sqlite",
        rounds=LABELS,
        acknowledged=len(client.acknowledged),
        lost=len(set(client.acknowledged) - set(stored)),
        duplicates=len(stored) - readers,
        server_errors=sum(n for status, n in client.statuses.items() if status >= 500 and status not in {503, 507}),
    ).note()
    assert sorted(stored) == sorted(client.acknowledged)
    assert readers == LABELS
    assert faults == []


@pytest.mark.slow
def test_there_is_a_synchronisation_for_each_acknowledged_label(made: Installation, tmp_path: Path) -> None:
    client, calls, seen = Client(made.address, made.keys["lis"]), tmp_path / "calls", 0
    case = uploaded(client)
    with traced(made, calls):
        for number in range(LABELS):
            client.label(case, number)
            synchronised = len(_SYNC.findall(calls.read_text()))
            assert synchronised > seen, f"label {number} was acknowledged without a synchronisation"
            seen = synchronised
    note(made, "F2", f"{seen} synchronisations counted by strace", client)


@pytest.mark.heavy
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_disk_that_fails_to_synchronise_acknowledges_nothing(made: Installation, tmp_path: Path, error: str) -> None:
    client, calls = Client(made.address, made.keys["lis"]), tmp_path / "calls"
    case = uploaded(client)
    with traced(made, calls, "-e", f"inject=fsync,fdatasync:error={error}:when=2+3"):
        for number in range(LABELS):
            client.label(case, number)
    injected = len(_INJECTED.findall(calls.read_text()))
    assert injected > LABELS / 4
    assert set(client.statuses) <= {201, 503, 507}, client.statuses
    assert client.statuses[503] + client.statuses[507] > 0
    note(made, "F3", f"{injected} synchronisations fail with {error}", client)
