"""Four servers and two workers, each with an empty HOME, on one PostgreSQL and one bucket, killed while they work.

Whoever was killed begins again with another empty HOME, as a container without a disk does.
"""

import itertools
import random
import signal
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr
from sqlalchemy import select

from app.audit.installation import claim_database
from app.context import build_context
from app.database.migration import upgrade_schema
from app.database.tables import Case, Job, Label
from app.imports.import_job import BATCH
from app.jobs.service import count_living_workers
from app.releases.registration import add_release
from app.settings import Settings
from app.storage.bucket import BucketStore
from tests.faults.client import Client, assert_kept
from tests.support.homes import process
from tests.support.postgres import PostgresServer
from tests.support.process import Installation
from tests.support.service import KEY, add_people, show_at_once
from tests.support.waiting import patient, wait_until
from tests.support.workplace import packed_cells

SERVERS, WORKERS, CLIENTS = 4, 2, 8
HTML = {"Accept": "text/html"}
# what the minute's upkeep and the half minute's copies do, done every second
_BRISK = """
from app.job_table import SCHEDULES, refresh_snapshots
from app.jobs.executor import JobSchedule
from app.maintenance import cache
from app.job_table import run_maintenance
SCHEDULES.clear()
SCHEDULES["snapshots"] = JobSchedule("* * * * * *", refresh_snapshots)
SCHEDULES["tidying"] = JobSchedule("* * * * * *", run_maintenance)
cache._EVERY_SECONDS = 1.0
"""


class Machine:
    """One of the processes, which has another HOME after each death."""

    def __init__(self, folder: Path, kind: str, settings: Settings, keys: dict[str, str]) -> None:
        self._folder, self._kind, self._settings, self._keys, self.kills = folder, kind, settings, keys, 0
        self.name = folder.name
        folder.mkdir()
        self.begin()

    def begin(self) -> None:
        """Begin, not yet ready, with an empty HOME."""
        self.made = Installation(self._folder / f"home-{self.kills}", self._settings.database_url)
        self.made.environment |= {
            "SECONDREAD_STORAGE_URL": str(self._settings.storage_url),
            "SECONDREAD_SECRET_KEY": KEY,
            "SECONDREAD_WORKER": "false",
            "SECONDREAD_EXECUTOR_ID": self.name,
            "SECONDREAD_MIN_FREE_BYTES": "0",
            "SECONDREAD_RATE_LIMIT": "0",
        }
        self.made.keys = self._keys
        self.process = self.made.spawn(self._kind, log=f"{self._kind}.log", code=_BRISK)

    def kill(self) -> None:
        """End it as a power cut does, and begin again."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.made.close()
        self.kills += 1
        self.begin()

    @property
    def ready(self) -> bool:
        try:
            return httpx2.get(f"{self.made.address}/readyz", timeout=patient(5)).status_code == 200
        except httpx2.TransportError:
            return False

    def get(self, path: str, who: str = "viewer", **options: Any) -> httpx2.Response:
        return self.made.call(who, "GET", path, **options)


class Site:
    """All of them, and a seventh HOME that only looks."""

    def __init__(self, folder: Path, settings: Settings, release: Path) -> None:
        self.settings = settings
        self.context = context = build_context(settings)
        upgrade_schema(context.database.engine)
        show_at_once(context.database)
        claim_database(context.database, context.keys.audit)
        add_release(context.database, context.keys.audit, release, context.folders)
        self.keys = add_people(context)
        self.servers = [Machine(folder / f"server-{i}", "serve", settings, self.keys) for i in range(SERVERS)]
        self.workers = [Machine(folder / f"worker-{i}", "worker", settings, self.keys) for i in range(WORKERS)]
        wait_until(lambda: all(server.ready for server in self.servers), 120, lambda: self.log)
        wait_until(lambda: self.living() == WORKERS, 120, lambda: self.log)

    @property
    def log(self) -> str:
        return "\n".join(machine.made.log for machine in self.servers + self.workers)

    def living(self) -> int:
        with self.context.database.read() as session:
            return count_living_workers(session)

    def close(self) -> None:
        for machine in self.servers + self.workers:
            machine.made.close()
        self.context.database.engine.dispose()

    def client(self, first: int) -> Client:
        """Somebody who asks one server after another."""
        turn = itertools.cycle(self.servers[first:] + self.servers[:first])
        return Client(lambda: next(turn).made.address, self.keys)

    def wait_for_job(self, path: str) -> Any:
        """Wait until an import or an evaluation has succeeded; gives what any server says of it."""

        def said() -> Any:
            return next(server for server in self.servers if server.ready).get(path, "admin").json()

        def succeeded() -> bool:
            job = said()
            job = job.get("job", job)
            assert job["state"] not in {"failed", "cancelled"}, f"{job['error']}\n{self.log}"
            return bool(job["state"] == "succeeded")

        wait_until(succeeded, 180, lambda: self.log)
        return said()


@pytest.fixture
def site(postgres: PostgresServer, bucket: str, tiny_release: Path, tmp_path: Path) -> Iterator[Site]:
    settings = Settings(
        home=tmp_path / "looking",
        database_url=postgres.url(postgres.create()),
        storage_url=bucket,
        secret_key=SecretStr(KEY),
        min_free_bytes=0,
        allowed_hosts=["testserver"],
    )
    site = Site(tmp_path, settings, tiny_release)
    try:
        yield site
    finally:
        site.close()


def work(client: Client, who: int, n: int) -> None:
    for number in range(n):
        fields = {"patient": f"p{who} {number // 3}", "site": f"s{number % 3}"}
        case = client.add_case(f"of {who}: {number}", who * n + number, "admin", **fields)
        code = case["prediction"]["classes"][number % 2]
        client.label(case["id"], f"reader {number % 4}", code, "outside")


def kill_them(site: Site, clients: list[Client], kills: int, n: int) -> None:
    """Kill one after another while the clients work: each of them at least once."""
    rng, order = random.Random(kills), site.servers + site.workers
    for number in range(kills):
        if number % len(order) == 0:
            rng.shuffle(order)
        enough = n * (number + 1) // (kills + 1)
        wait_until(
            lambda enough=enough: sum(len(client.acknowledged) for client in clients) >= enough,  # type: ignore[misc]
            300,
            lambda: f"{[client.statuses for client in clients]}\n{site.log}",
        )
        order[number % len(order)].kill()


def import_with_a_kill(site: Site, rows: int) -> list[str]:
    """Import cells through one server, and kill the worker that does it in the middle; gives the cases' ids."""
    sent = {"content": packed_cells(50_000, rows), "headers": {"Content-Type": "application/zip"}}
    import_id = uuid.UUID(site.client(1).send("admin", "/v1/imports", **sent).json()["id"])
    path = f"/v1/imports/{import_id}"

    def doing() -> Machine | None:
        job = site.servers[0].get(path, "admin").json()["job"]
        assert job["state"] != "succeeded", "the import was too fast to be interrupted"
        if not job["progress"]:
            return None
        with site.context.database.read() as session:
            executor = session.get_one(Job, import_id).executor_id
        return next((worker for worker in site.workers if worker.name == executor), None)

    wait_until(lambda: doing() is not None, 120, lambda: site.log)
    worker = doing()
    assert worker is not None
    worker.kill()
    shown = site.wait_for_job(path)
    assert shown["job"]["result"]["created"] == rows
    assert shown["job"]["attempts"] > 1
    bucket = BucketStore(str(site.settings.storage_url))
    wait_until(lambda: not list(bucket.under("imports")), 60, "the archive is still there")
    with site.context.database.read() as session:
        names = select(Case.id).where(Case.external_id.like("case %"))
        return [str(row) for row in session.execute(names).scalars()]


def assert_all_say_the_same(site: Site) -> None:
    """A frozen evaluation and the images of some cases are the same everywhere."""
    asked = site.client(2).send("admin", "/v1/evaluations", json={"partition": "all"})
    path = f"/v1/evaluations/{asked.json()['id']}"
    site.wait_for_job(path)
    pages = {server.get(path, headers=HTML).content for server in site.servers}
    assert len(pages) == 1
    assert b"<svg" in pages.pop()
    with site.context.database.read() as session:
        some = session.execute(select(Case.id).limit(20)).scalars().all()
    for case_id in some:
        images = {server.get(f"/v1/cases/{case_id}/image").content for server in site.servers}
        assert len(images) == 1
        assert images.pop().startswith(b"\x89PNG")


def assert_metrics_are_those_of_one_process(site: Site, folder: Path, n_labels: int) -> None:
    """By the snapshots that one worker wrote, and by one process that has no snapshot and reads every row."""
    path, params = "/v1/metrics", {"partition": "all", "group_by": "site"}

    def newest(machine: Machine) -> set[str]:
        return {path.name for path in machine.made.home.glob("snapshots/*/[0-9]*")}

    shared = {name.rpartition("/")[2] for name in site.context.folders.shared("snapshots")}
    assert shared
    wait_until(lambda: all(newest(machine) == shared for machine in site.servers + site.workers), 60, "no snapshots")
    with process(site.settings.model_copy(update={"home": folder / "alone", "storage_url": None}), site.keys) as alone:
        expected = alone.document(path, **params)
    assert not (folder / "alone" / "snapshots").exists()
    assert expected["n_labels"] == n_labels
    assert max(furthest(server.get(path, params=params).json(), expected) for server in site.servers) <= 1e-12


def furthest(found: Any, expected: Any) -> float:
    """The largest difference of two documents' numbers, relative above 1; infinite where anything else differs."""
    if isinstance(found, dict) and isinstance(expected, dict) and found.keys() == expected.keys():
        return max((furthest(found[key], expected[key]) for key in found), default=0.0)
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        return max((furthest(*pair) for pair in zip(found, expected, strict=True)), default=0.0)
    if isinstance(found, float) and isinstance(expected, float):
        return abs(found - expected) / max(1.0, abs(expected))
    return 0.0 if found == expected else float("inf")


@pytest.mark.parametrize(
    ("n", "kills"), [pytest.param(48, 6, marks=pytest.mark.slow), pytest.param(2000, 24, marks=pytest.mark.heavy)]
)
def test_killed_with_homes_of_their_own_they_lose_nothing_and_say_the_same(
    site: Site, tmp_path: Path, n: int, kills: int
) -> None:
    clients = [site.client(who % SERVERS) for who in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        working = [pool.submit(work, client, who, n // CLIENTS) for who, client in enumerate(clients)]
        kill_them(site, clients, kills, 2 * n)
    for one in working:
        one.result()
    assert sum(len(client.acknowledged) for client in clients) == 2 * n
    assert all(machine.kills for machine in site.servers + site.workers)
    wait_until(lambda: all(server.ready for server in site.servers), 120, lambda: site.log)
    imported = import_with_a_kill(site, 3 * BATCH)
    assert_all_say_the_same(site)
    what = "servers and workers with empty HOMEs killed (SIGKILL) during uploads and labels; PostgreSQL and a bucket"
    n_kills = sum(machine.kills for machine in site.servers + site.workers)
    assert_kept(site.context, clients, "F21", what, n_kills, imported, (Case, Label))
    assert_metrics_are_those_of_one_process(site, tmp_path, n)
