"""The helpers of the tests do what failing tests rely on: processes end, waiting ends, the first cause is named."""

import tempfile
from pathlib import Path

import pytest

from tests.support import process
from tests.support.postgres import PostgresServer
from tests.support.process import Installation
from tests.support.shared import build_once
from tests.support.waiting import patient, wait_until


def test_whatever_an_installation_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stubborn = """
import signal, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("I am up", flush=True)
subprocess.run(["sleep", "600"])
"""
    with Installation(tmp_path / "home") as made:
        started = made.spawn("worker", code=stubborn)
        wait_until(lambda: "I am up" in made.log, what=lambda: made.log)
        assert made in process.RUNNING
        monkeypatch.setattr(process, "patient", lambda _: 0.2)
    assert started.returncode is not None
    assert made not in process.RUNNING


def test_waiting_gives_the_answer_or_says_what_did_not_come() -> None:
    answers = iter([None, 0, "", "there"])
    assert wait_until(lambda: next(answers)) == "there"
    with pytest.raises(AssertionError, match="s: the bus"):
        wait_until(lambda: False, 0.05, "the bus")
    with pytest.raises(AssertionError, match="the last log"):
        wait_until(lambda: False, 0.0, lambda: "the last log")
    assert patient(2) >= 2


def test_a_damaged_postgresql_is_named_with_what_it_said() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        fake = Path(folder) / "initdb"
        fake.write_text("#!/bin/sh\necho 'could not load library plpgsql.so' >&2\nexit 1\n")
        fake.chmod(0o755)
        with pytest.raises(RuntimeError, match=r"PostgreSQL does not work(.|\n)*plpgsql\.so"):
            PostgresServer(Path(folder))


def test_what_is_expensive_is_built_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    built: list[Path] = []

    def build(path: Path) -> None:
        built.append(path)
        path.write_text("done")

    def fails(path: Path) -> None:
        raise RuntimeError("no")

    name = f"thing {id(built)}"
    with pytest.raises(RuntimeError, match="no"):
        build_once(tmp_path_factory, name, fails)
    paths = {build_once(tmp_path_factory, name, build) for _ in range(2)}
    assert [path.read_text() for path in paths] == ["done"]
    assert len(built) == 1
