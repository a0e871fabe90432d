"""API processes and workers, one to four, on one PostgreSQL and one bucket: used by ``scaling.py``.

Each process has a HOME of its own and the same secret by setting. PostgreSQL runs in memory without fsync. No worker
runs beside the API.
"""

import itertools
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
from pydantic import SecretStr
from rich.progress import Progress
from sqlalchemy import func, select

from app.accounts import people as auth
from app.audit.installation import claim_database
from app.context import ServiceContext, build_context
from app.database.migration import upgrade_schema
from app.database.tables import Case, CasePrediction, Label
from app.jobs import service
from app.jobs.queries import jobs_where
from app.jobs.service import count_living_workers
from app.releases.queries import class_codes
from app.settings import Settings
from benchmarks.harness import in_turn, postmaster, processor_seconds
from benchmarks.pictures import numbered_png
from benchmarks.scaling_files import Window, watched
from benchmarks.service import Bench
from tests.support.bucket import BucketServer
from tests.support.postgres import PostgresServer
from tests.support.process import Installation
from tests.support.service import KEY, put_release, show_at_once
from tests.support.waiting import wait_until

CLIENTS, SIDE = 8, 96
PARTS = 4  # of the old cases: one for each of the most workers
_WAITING = 80.0  # cases that should wait to be read per second of a window: more than two cores can label
_PARTS_AND_NO_UPKEEP = """
from app.job_table import SCHEDULES
from app.recalibration import predict_old_cases
predict_old_cases.PART_CASES = {cases}
SCHEDULES.clear()  # what begins with a minute would be in some rounds and not in others
"""
Rounds = list[dict[int, Window]]


class Machinery:
    """PostgreSQL, a bucket and a release: what all processes share.

    Args:
        folder: for HOMEs and logs.
        server: PostgreSQL.
        buckets: server of buckets.
        release: release folder.
    """

    def __init__(self, folder: Path, server: PostgresServer, buckets: BucketServer, release: Path) -> None:
        self.folder, self.server, self.release = folder, server, release
        self._buckets, self._postmaster = buckets, postmaster(server)
        self._names = itertools.count()

    def settings(self, database: str) -> Settings:
        """Those of the process that prepares and looks, on a database of this name and a bucket of its own."""
        return Settings(
            home=self.folder / f"looking-{next(self._names)}",
            database_url=self.server.url(database),
            storage_url=self._buckets.create(),
            secret_key=SecretStr(KEY),
            min_free_bytes=0,
        )

    def installation(self, settings: Settings) -> Installation:
        """A process, not yet started, with an empty HOME."""
        folder = self.folder / f"process-{next(self._names)}"
        folder.mkdir()
        made = Installation(folder / "home", settings.database_url)
        made.environment |= {
            "SECONDREAD_STORAGE_URL": str(settings.storage_url),
            "SECONDREAD_SECRET_KEY": KEY,
            "SECONDREAD_RATE_LIMIT": "0",
            "SECONDREAD_INFERENCE_THREADS": "1",
            "SECONDREAD_MIN_FREE_BYTES": "0",
        }
        return made

    def meters(self, processes: Sequence[Installation], *, bucket: bool) -> dict[str, Callable[[], float]]:
        """Processor seconds so far: of these processes, PostgreSQL, the bucket if it has work, and this process."""

        def own() -> float:
            return sum(processor_seconds(process.pid) for made in processes for process in made.processes)

        meters = {"process": own, "PostgreSQL": lambda: processor_seconds(self._postmaster)}
        if bucket:
            meters["bucket"] = lambda: processor_seconds(self._buckets.pid)
        return meters | {"generator": time.process_time}


def publish(context: ServiceContext, release_id: uuid.UUID) -> None:
    """Put a release into the bucket, where processes with other HOMEs find it."""
    name = f"releases/{release_id}"
    context.folders.publish(name, context.settings.home / name)


class Api:
    """API processes that all run all the time, of which the first ones are asked.

    Args:
        machinery: what they share.
        most: how many there are.
    """

    def __init__(self, machinery: Machinery, most: int) -> None:
        self._machinery = machinery
        settings = machinery.settings(machinery.server.create())
        self.context = build_context(settings)
        self._keys = self._prepare(machinery.release)
        self._pool = ThreadPoolExecutor(CLIENTS)
        self._clients = [httpx2.Client(timeout=60) for _ in range(CLIENTS)]
        self._numbers = itertools.count()
        self.acknowledged = {"cases": 0, "labels": 0}
        self.processes = [machinery.installation(settings) for _ in range(most)]
        for made in self.processes:
            made.start()

    def _prepare(self, release: Path) -> dict[str, str]:
        """Tables, a release that lies in the bucket, and an account for each client and for storing; gives keys."""
        context, audit = self.context, self.context.keys.audit
        upgrade_schema(context.database.engine)
        show_at_once(context.database)
        claim_database(context.database, audit)
        with context.database.write() as session:
            row = put_release(session, audit, release, context.settings.releases_folder)
            self._codes = class_codes(row)
            people = {"admin": "admin"} | {f"reader {who}": "annotator" for who in range(CLIENTS)}
            for name, role in people.items():
                auth.add_account(session, audit, name, role)
            keys = {name: auth.add_key(session, audit, name, [])[1] for name in people}
        publish(context, row.id)
        return keys

    def close(self) -> None:
        """End processes, connections and threads."""
        self._pool.shutdown()
        for client in self._clients:
            client.close()
        for made in self.processes:
            made.close()
        self.context.database.engine.dispose()

    def _post(self, who: int, account: str, address: str, **body: Any) -> Any:
        headers = {"Authorization": f"Bearer {self._keys[account]}", "Idempotency-Key": uuid.uuid4().hex}
        answer = self._clients[who].post(address, headers=headers, **body)
        answer.raise_for_status()
        assert answer.status_code != 204, "nothing waits to be read"
        return answer.json()

    def _picture(self, number: int) -> dict[str, Any]:
        return {"image": ("cell.png", numbered_png(number, SIDE))}

    def predict(self, who: int, address: str) -> None:
        """A prediction that leaves nothing behind."""
        self._post(who, "admin", f"{address}/v1/predictions", files=self._picture(next(self._numbers)))

    def store(self, who: int, address: str) -> None:
        """A case of a patient with four."""
        number = next(self._numbers)
        fields = {"external_id": f"case {number}", "patient": f"patient {number // 4}"}
        self._post(who, "admin", f"{address}/v1/cases", files=self._picture(number), data=fields)

    def label(self, who: int, address: str) -> None:
        """A lease and the answer to it, by the client's own annotator."""
        reader = f"reader {who}"
        read = self._post(who, reader, f"{address}/v1/reads")
        code = self._codes[next(self._numbers) % len(self._codes)]
        self._post(who, reader, f"{address}/v1/reads/{read['id']}/labels", json={"label": code})

    def together(self, do: Callable[[int, str], None], n: int, enough: Callable[[int], bool]) -> int:
        """Let every client do something again and again at its one of the first n processes.

        Args:
            do: with the client's number and the process's address.
            n: processes that are asked.
            enough: gets how often a client has done it.

        Returns:
            How often it was done in all.
        """

        def client(who: int) -> int:
            done, address = 0, self.processes[who % n].address
            while not enough(done):
                do(who, address)
                done += 1
            return done

        return sum(self._pool.map(client, range(CLIENTS)))

    def count(self, do: Callable[[int, str], None], done: int) -> int:
        """Note what was acknowledged; gives its number."""
        if do == self.store:
            self.acknowledged["cases"] += done
        elif do == self.label:
            self.acknowledged["labels"] += done
        return done

    def have_waiting(self, wanted: float) -> None:
        """Store cases until so many wait for a first read."""
        missing = wanted - (self.acknowledged["cases"] - self.acknowledged["labels"])
        if missing > 0:
            done = self.together(self.store, len(self.processes), lambda done: done >= missing / CLIENTS)
            self.count(self.store, done)

    def window(self, do: Callable[[int, str], None], n: int, seconds: float) -> Window:
        """Some seconds of work at n processes.

        Args:
            do: ``predict``, ``store`` or ``label``.
            n: processes that are asked.
            seconds: until the last request begins.
        """
        if do == self.label:
            self.have_waiting(_WAITING * seconds + CLIENTS)
        meters = self._machinery.meters(self.processes, bucket=do == self.store)
        end = time.perf_counter() + seconds
        return watched(meters, lambda: self.count(do, self.together(do, n, lambda _: time.perf_counter() > end)))

    def stored(self) -> dict[str, int]:
        """What is in the database: predictions are those of cases, since the others leave nothing."""
        tables = {"cases": Case, "labels": Label, "predictions of cases": CasePrediction}
        with self.context.database.read() as session:
            return {
                name: session.execute(select(func.count()).select_from(table)).scalar_one()
                for name, table in tables.items()
            }


def over_http(
    machinery: Machinery, counts: Sequence[int], rounds: int, seconds: float, bar: Progress
) -> tuple[dict[str, Rounds], dict[str, dict[str, int]]]:
    """Windows of predictions, cases and labels, and what was acknowledged next to what is stored."""
    api = Api(machinery, max(counts))
    try:
        kinds = {"predictions": api.predict, "cases": api.store, "labels": api.label}
        seen: dict[str, Rounds] = {name: [] for name in kinds}
        task = bar.add_task("requests", total=rounds * len(counts) * len(kinds))
        api.have_waiting(len(counts) * CLIENTS)
        for do in kinds.values():  # what only the first requests of a process cost, and their connections
            for n in counts:
                api.count(do, api.together(do, n, lambda done: done >= 1))
        for order in in_turn(counts, rounds):
            for name, do in kinds.items():
                windows = {}
                for n in order:
                    windows[n] = api.window(do, n, seconds)
                    bar.advance(task)
                seen[name].append(windows)
        stored = api.stored()
        counted = api.acknowledged | {"predictions of cases": api.acknowledged["cases"]}
        return seen, {name: {"acknowledged": counted[name], "stored": stored[name]} for name in counted}
    finally:
        api.close()


class OldCases:
    """A database of old cases with outputs of a network and without predictions, copied for each measurement.

    Args:
        machinery: what processes share.
        n_cases: how many there are.
    """

    def __init__(self, machinery: Machinery, n_cases: int) -> None:
        self._machinery, self.n_cases = machinery, n_cases
        self._template = machinery.server.create()
        self._settings = machinery.settings(self._template)
        context = build_context(self._settings)
        bench = Bench(context, machinery.release)
        self._release_id = bench.release.id
        publish(context, self._release_id)
        bench.fill(n_cases)
        with context.database.write() as session:
            bench.store_outputs(session)
        context.database.engine.dispose()  # PostgreSQL copies no database that has a connection

    @contextmanager
    def workers(self, n: int) -> Iterator[tuple[ServiceContext, list[Installation]]]:
        """That many workers on a copy."""
        copy = self._machinery.server.url(self._machinery.server.create(self._template))
        settings = self._settings.model_copy(update={"database_url": copy})
        context = build_context(settings)
        with ExitStack() as stack:
            stack.callback(context.database.engine.dispose)
            code = _PARTS_AND_NO_UPKEEP.format(cases=-(-self.n_cases // PARTS))
            processes = [stack.enter_context(self._machinery.installation(settings)) for _ in range(n)]
            for made in processes:
                made.spawn("worker", code=code)

            def all_live() -> bool:
                with context.database.read() as session:
                    return count_living_workers(session) == n

            wait_until(all_live, 60, lambda: "\n".join(made.log for made in processes))
            yield context, processes
            for process in (process for made in processes for process in made.processes):
                process.kill()  # their database is used no more, and an orderly end takes a second each

    def predict(self, n: int) -> tuple[Window, int]:
        """Predict all of them by n workers; gives the predictions that are in the database then as well."""
        with self.workers(n) as (context, processes):

            def ended() -> bool:
                with context.database.read() as session:
                    jobs = list(jobs_where(session))
                assert all(job.error is None for job in jobs), jobs
                return len(jobs) == PARTS and all(job.state == "succeeded" for job in jobs)

            def work() -> int:
                with context.database.write() as session:
                    service.submit_job(session, context, "prediction", {"release": str(self._release_id)}, None)
                wait_until(ended, 300, lambda: "\n".join(made.log for made in processes))
                with context.database.read() as session:
                    return sum(job.result["n_predicted"] for job in jobs_where(session))

            window = watched(self._machinery.meters(processes, bucket=True), work)
            with context.database.read() as session:
                return window, session.execute(select(func.count()).select_from(CasePrediction)).scalar_one()


def predicting_again(
    machinery: Machinery, counts: Sequence[int], rounds: int, n_cases: int, bar: Progress
) -> tuple[Rounds, dict[str, int]]:
    """Old cases predicted by workers, and how many were acknowledged and stored in all."""
    old, seen, counted = OldCases(machinery, n_cases), [], {"acknowledged": 0, "stored": 0}
    task = bar.add_task("old cases", total=rounds * len(counts))
    for order in in_turn(counts, rounds):
        windows = {}
        for n in order:
            windows[n], stored = old.predict(n)
            counted["acknowledged"] += windows[n].done
            counted["stored"] += stored
            bar.advance(task)
        seen.append(windows)
    return seen, counted
