"""The worker as a process: it does what requests asked for, and takes up what a kill -9 interrupted."""

import io
import json
import os
import signal
import urllib.error
import urllib.request
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from app.imports.import_job import BATCH
from tests.support.forked import ForkedCommand
from tests.support.postgres import PostgresServer
from tests.support.process import METRICS_TOKEN, Installation
from tests.support.service import cell_png
from tests.support.waiting import patient, wait_until


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


def worker(made: Installation) -> ForkedCommand:
    return made.spawn("worker")


def wait_for(made: Installation, key: str, job_id: str, *states: str, seconds: float = 40) -> dict[str, Any]:
    def job() -> dict[str, Any] | None:
        found: dict[str, Any] = call(made, key, "GET", f"/v1/jobs/{job_id}")
        return found if found["state"] in states else None

    return cast(
        "dict[str, Any]",
        wait_until(job, seconds, lambda: f"{call(made, key, 'GET', f'/v1/jobs/{job_id}')}\n{made.log}"),
    )


def archive(n: int) -> bytes:
    """An import of n different cells of n / 3 patients."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        rows = ["file,external_id,patient"]
        for number in range(n):
            packed.writestr(f"cell {number}.png", cell_png(number))
            rows.append(f"cell {number}.png,case {number},p{number // 3}")
        packed.writestr("manifest.csv", "\n".join(rows))
    return buffer.getvalue()


def send(made: Installation, key: str, data: bytes) -> str:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/zip"}
    headers["Idempotency-Key"] = uuid.uuid4().hex
    request = urllib.request.Request(f"{made.address}/v1/imports", data=data, headers=headers, method="POST")
    with urllib.request.urlopen(request, timeout=patient(20)) as answer:
        return str(json.loads(answer.read())["id"])


def wait_for_more(made: Installation, key: str, job_id: str, progress: float) -> dict[str, Any]:
    """Wait until an import is further than it was; gives the job as it is then."""

    def job() -> dict[str, Any] | None:
        row: dict[str, Any] = call(made, key, "GET", f"/v1/jobs/{job_id}")
        return row if row["progress"] > progress else None

    return cast("dict[str, Any]", wait_until(job, 60, lambda: made.log))


@pytest.mark.slow
def test_an_import_survives_two_deaths_of_its_worker_and_does_each_row_once(
    running: tuple[Installation, str],
) -> None:
    installation, key = running
    n = 5 * BATCH
    job_id = send(installation, key, archive(n))
    progress = 0.0
    for number in (1, 2):
        doomed = worker(installation)
        seen = wait_for_more(installation, key, job_id, progress)
        assert seen["attempts"] == number
        doomed.send_signal(signal.SIGKILL)
        doomed.wait()
        seen = call(installation, key, "GET", f"/v1/jobs/{job_id}")
        assert seen["state"] == "running", "the job was over before it could be killed"
        progress = seen["progress"]
    last = worker(installation)
    done = wait_for(installation, key, job_id, "succeeded")
    assert done["attempts"] == 3
    assert done["result"] == {"n_rows": n, "created": n, "known": 0, "failed": 0, "ignored": 0, "differs": 0}
    last.send_signal(signal.SIGTERM)
    assert last.wait(patient(20)) == 0
    seen_ids: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = call(installation, key, "GET", f"/v1/cases?limit=100{cursor and '&cursor=' + cursor}")
        seen_ids += [case["external_id"] for case in page["items"]]
        cursor = page["next_cursor"]
    assert sorted(seen_ids) == sorted(f"case {number}" for number in range(n))


@pytest.mark.slow
def test_ctrl_c_leaves_a_commands_job_to_the_next_worker_and_says_so(running: tuple[Installation, str]) -> None:
    installation, key = running
    source = installation.home.parent / "cells.zip"
    source.write_bytes(archive(6 * BATCH))
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
    worker(installation)
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
    assert "jobs wait" in ready(installation)["worker"]
    process = worker(installation)
    wait_until(lambda: ready(installation)["worker"] == "ok", 60, "no worker lives")
    process.send_signal(signal.SIGTERM)
    assert process.wait(patient(20)) == 0
    assert "jobs wait" in ready(installation)["worker"]
    token = {"Authorization": f"Bearer {METRICS_TOKEN}"}
    scrape = urllib.request.Request(f"{installation.address}/metrics", headers=token)
    with urllib.request.urlopen(scrape, timeout=patient(20)) as answer:
        assert b"secondread_workers 0.0" in answer.read()


def test_a_worker_whose_server_died_while_it_was_starting_ends(tmp_path: Path, tiny_release: Path) -> None:
    made = Installation(tmp_path / "home")
    made.prepare(tiny_release)
    assert made.run("worker", "--parent", "1").returncode == 0


def _children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if parent == pid:
                found.append(int(entry.name))
    return found


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@pytest.mark.slow
def test_a_worker_goes_on_with_the_new_key_once_it_was_rotated(running: tuple[Installation, str]) -> None:
    made, key = running
    process = worker(made)
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
