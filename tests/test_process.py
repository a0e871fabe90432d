"""Commands, workers and migrations as processes: they do what was asked for, and take up what a kill interrupted."""

import json
import os
import signal
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

import migrations
from app.database.engine import Database
from app.database.migration import (
    alembic_config,
    check_schema,
    downgrade_schema,
    require_current_schema,
    upgrade_schema,
)
from app.imports.import_job import BATCH
from app.worker import BEAT
from tests.security.test_key_ring import contents
from tests.support.postgres import PostgresServer
from tests.support.process import METRICS_TOKEN, Installation
from tests.support.service import cell_png
from tests.support.tiny_release import write_tiny_release
from tests.support.waiting import patient, wait_until
from tests.support.workplace import packed_cells


@pytest.fixture(params=["sqlite", "postgresql"])
def running(request: pytest.FixtureRequest, tmp_path: Path, tiny_release: Path) -> Iterator[tuple[Installation, str]]:
    url = None
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.url(server.create())
    made = Installation(tmp_path / "home", url)
    key = made.prepare(tiny_release, lead="admin")["lead"]
    made.environment["SECONDREAD_WORKER"] = "false"
    made.start()
    yield made, key
    made.close()


def call(made: Installation, key: str, method: str, path: str, body: Any = None) -> Any:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    headers["Idempotency-Key"] = uuid.uuid4().hex
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(made.address + path, data=data, headers=headers, method=method)
    with urllib.request.urlopen(request, timeout=patient(20)) as answer:
        return json.loads(answer.read())


def wait_for(made: Installation, key: str, job_id: str, *states: str, seconds: float = 40) -> dict[str, Any]:
    def job() -> dict[str, Any] | None:
        found: dict[str, Any] = call(made, key, "GET", f"/v1/jobs/{job_id}")
        return found if found["state"] in states else None

    return cast(
        "dict[str, Any]",
        wait_until(job, seconds, lambda: f"{call(made, key, 'GET', f'/v1/jobs/{job_id}')}\n{made.log}"),
    )


@pytest.mark.slow
def test_ctrl_c_leaves_a_commands_job_to_the_next_worker_and_says_so(running: tuple[Installation, str]) -> None:
    installation, key = running
    source = installation.home.parent / "cells.zip"
    source.write_bytes(packed_cells(0, 6 * BATCH))
    command = installation.spawn("import", str(source), "--account", "lead", log="command.log")

    def job() -> dict[str, Any] | None:
        jobs = call(installation, key, "GET", "/v1/jobs")["items"]
        return next((row for row in jobs if row["progress"] > 0), None)

    job_id = cast("dict[str, Any]", wait_until(job, 60, lambda: installation.log))["id"]
    command.send_signal(signal.SIGINT)
    assert command.wait(patient(15)) == 130
    said = (installation.home.parent / "command.log").read_text()
    assert f"the job {job_id} is not cancelled" in said
    assert "Traceback" not in said
    assert call(installation, key, "GET", f"/v1/jobs/{job_id}")["state"] == "running"
    installation.spawn("worker")
    assert wait_for(installation, key, job_id, "succeeded")["result"]["created"] == 6 * BATCH


@pytest.mark.slow
def test_serve_on_sqlite_keeps_a_worker_alive_and_takes_it_down(tmp_path: Path, tiny_release: Path) -> None:
    made = Installation(tmp_path / "home")
    key = made.prepare(tiny_release, lead="admin")["lead"]
    made.start()
    job_id = call(made, key, "POST", "/v1/evaluations", {})["id"]
    assert wait_for(made, key, job_id, "succeeded")["result"] == {"evaluation": job_id}
    assert ready(made)["worker"] == "ok"
    assert made.server is not None
    (first,) = _children(made.server.pid)
    os.kill(first, signal.SIGKILL)
    job_id = call(made, key, "POST", "/v1/evaluations", {})["id"]
    wait_for(made, key, job_id, "succeeded")
    (second,) = _children(made.server.pid)
    assert second != first
    made.stop(signal.SIGKILL)  # nobody is left to tell the worker
    wait_until(lambda: not _alive(second), what="the worker outlives its server")


def ready(made: Installation) -> dict[str, Any]:
    with urllib.request.urlopen(f"{made.address}/readyz", timeout=patient(20)) as answer:
        body: dict[str, Any] = json.loads(answer.read())
        return body


@pytest.mark.slow_on_second_database
def test_without_a_worker_the_service_is_ready_and_says_that_jobs_wait(running: tuple[Installation, str]) -> None:
    installation, _ = running
    assert ready(installation)["worker"] == "no worker is running; jobs wait"
    process = installation.spawn("worker")
    wait_until(lambda: ready(installation)["worker"] == "ok", 60, "no worker is running")
    process.send_signal(signal.SIGTERM)
    assert process.wait(patient(20)) == 0
    assert ready(installation)["worker"] == "no worker is running; jobs wait"
    token = {"Authorization": f"Bearer {METRICS_TOKEN}"}
    scrape = urllib.request.Request(f"{installation.address}/metrics", headers=token)
    with urllib.request.urlopen(scrape, timeout=patient(20)) as answer:
        assert b"secondread_workers 0.0" in answer.read()


def test_a_worker_whose_server_died_while_it_was_starting_ends(tmp_path: Path, tiny_release: Path) -> None:
    made = Installation(tmp_path / "home")
    made.prepare(tiny_release)
    assert made.run("worker", "--parent", "1").returncode == 0


def _children(pid: int) -> list[int]:
    """Processes that any thread of a process began."""
    lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for text in lists for child in text.split()]


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@pytest.mark.slow
def test_a_worker_goes_on_with_the_new_key_once_it_was_rotated(running: tuple[Installation, str]) -> None:
    made, key = running
    process = made.spawn("worker")
    wait_until(lambda: made.log.count("worker started") == 1, 40, lambda: made.log)
    made.run("db", "rotate-key", "--reason", "an administrator left")
    wait_until(lambda: made.log.count("worker started") == 2, 40, lambda: made.log)
    with pytest.raises(urllib.error.HTTPError, match="503"):  # the server waits for whoever runs it
        call(made, key, "POST", "/v1/evaluations", {"partition": "all"})
    made.stop()
    made.start()
    job = call(made, key, "POST", "/v1/evaluations", {"partition": "all"})
    wait_for(made, key, job["id"], "succeeded", "failed")
    process.terminate()
    process.wait(patient(40))
    assert made.run("db", "verify").returncode == 0


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Tables and nothing in them: for commands that fail and so leave it as it is."""
    made = Installation(tmp_path_factory.mktemp("upgraded") / "home")
    made.run("db", "upgrade")
    return made


@pytest.mark.slow
def test_releases_are_promoted_and_rolled_back_by_alias(tiny_release: Path, tmp_path: Path) -> None:
    installation = Installation(tmp_path / "home")
    installation.run("db", "upgrade")
    installation.run("release", "add", tiny_release)
    write_tiny_release(tmp_path / "second", name="second")

    def champions() -> list[str]:
        listed = json.loads(installation.run("release", "list", "--json").stdout)
        return [release["id"] for release in listed if release["aliases"]]

    first = json.loads(installation.run("release", "list", "--json").stdout)[0]
    second = json.loads(installation.run("release", "add", tmp_path / "second", "--json").stdout)
    installation.run("release", "promote", second["id"], "--reason", "better", "--despite-gate")
    assert champions() == [second["id"]]
    installation.run("release", "promote", first["id"], "--reason", "worse after all", "--despite-gate")
    assert champions() == [first["id"]]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("release add nowhere", "no card.json"),
        ("key add nobody", "no account"),
        ("user add x --role king", "unknown role"),
        ("release promote 01890000-0000-7000-8000-000000000000 --reason x", "no such release"),
        ("predict nowhere x.png", "no card.json"),
        ("train --data nonsense --out run", "neither a folder nor"),
        ("calibrate nowhere", "no such folder"),
        ("export nowhere --out x", "no such folder"),
    ],
)
def test_failures_are_one_line_and_status_1(command: str, words: str, upgraded: Installation) -> None:
    done = upgraded.run(*command.split(), check=False)
    assert (done.returncode, words in done.stderr.strip().splitlines()[-1]) == (1, True), done.stderr
    assert "Traceback" not in done.stderr


def test_predict_and_score_from_the_command_line(small_release: Path, tmp_path: Path) -> None:
    made = Installation(tmp_path / "home")
    images = tmp_path / "images"
    images.mkdir()
    for number in range(3):
        (images / f"cell{number}.png").write_bytes(cell_png(number))
    rows = json.loads(made.run("predict", small_release, *sorted(images.iterdir()), "--json").stdout)
    assert len(rows) == 3
    assert sum(rows[0]["class_probs"].values()) == pytest.approx(1)
    (images / "bad.png").write_text("no picture")
    scored = made.run("score", small_release, "--images", images, "--out", tmp_path / "p.parquet", "--json")
    report = json.loads(scored.stdout)
    assert (report["n_cases"], report["n_errors"]) == (3, 1)
    failed = made.run("predict", small_release, images / "bad.png", check=False)
    assert (failed.returncode, "bad.png" in failed.stderr) == (1, True)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return Database(f"sqlite:///{tmp_path / 'empty.db'}")
    server: PostgresServer = request.getfixturevalue("postgres")
    return Database(server.url(server.create()))


def test_the_start_asks_for_the_newest_migration() -> None:
    assert ScriptDirectory.from_config(alembic_config()).get_heads() == [migrations.HEAD]


def test_up_check_down_up(empty: Database) -> None:
    with pytest.raises(ValueError, match="db upgrade"):
        require_current_schema(empty.engine)
    upgrade_schema(empty.engine)
    check_schema(empty.engine)
    require_current_schema(empty.engine)
    tables = set(inspect(empty.engine).get_table_names())
    downgrade_schema(empty.engine, "base")
    assert set(inspect(empty.engine).get_table_names()) == {"alembic_version"}
    upgrade_schema(empty.engine)
    assert set(inspect(empty.engine).get_table_names()) == tables
    upgrade_schema(empty.engine)  # again changes nothing
    empty.engine.dispose()


#: Every way to open a database.
COMMANDS = ("db upgrade", "db verify", "db rotate-key --reason test", "user list", "demo", "serve", "worker")


@pytest.mark.slow
def test_a_database_of_a_development_version_is_refused_and_stays_as_it_is(empty: Database, tmp_path: Path) -> None:
    made = Installation(tmp_path / "home", empty.engine.url.render_as_string(hide_password=False))
    made.run("db", "upgrade")
    with empty.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '0038'"))
    before = everything(empty, tmp_path)
    for command in COMMANDS:
        done = made.run(*command.split(), check=False)
        line = "was made by a development version: export it, start a new HOME"
        assert (done.returncode, line in done.stderr, done.stderr.count("\n")) == (1, True, 1), (command, done.stderr)
        assert everything(empty, tmp_path) == before, command


def everything(database: Database, folder: Path) -> tuple[object, dict[str, bytes]]:
    """Every row, and every file but the sign of life of a worker, once the database is closed."""
    rows = contents(database)
    database.engine.dispose()
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != BEAT]
    return rows, {str(path.relative_to(folder)): path.read_bytes() for path in paths}
