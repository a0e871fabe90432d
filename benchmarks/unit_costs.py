"""Cost of one case, label, event, image or key: processor time, bytes, statements and requests to the bucket.

    python -m benchmarks.unit_costs --save

A server on PostgreSQL and a bucket is asked over HTTP, one request at a time; processor time is user and system time of
the processes involved, from ``/proc``, whatever else the machine does. A stage goes in blocks, and the cost is the
median block. PostgreSQL runs without fsync and full page images, so that its log is counted without the latter.
``docs/scale.md`` multiplies these figures.
"""

import os
import re
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import obstore
import psycopg
from obstore.store import from_url
from rich.progress import Progress

from app.context import ServiceContext, build_context
from app.metrics.snapshot import write_snapshot
from app.releases.queries import all_releases, class_codes
from app.settings import Settings
from app.storage.bucket import BucketStore
from benchmarks.harness import Figures, main, postgres, postmaster, processor_seconds
from benchmarks.scaling_files import SIDE, write_list, write_tables
from benchmarks.service import Bench
from ml.scoring.evaluation_shards import evaluate_shard
from ml.scoring.shards import score_shard
from ml.scoring.table import ScoreRequest
from ml.tables.evaluate import EvaluationOptions
from ml.tables.streaming import Streaming
from tests.support.bucket import BucketServer, bucket_server
from tests.support.postgres import PostgresServer
from tests.support.process import Installation
from tests.support.service import cell_png
from tests.support.tiny_release import write_tiny_release


@dataclass(frozen=True)
class Size:
    """How much is measured: what a job costs by itself goes out with the difference of a few and of many.

    Attributes:
        blocks: of calls over HTTP.
        block: calls of each.
        old_cases: that a job predicts, few and many.
        images: that are scored.
        rows: that are evaluated.
        keys: that are listed.
    """

    blocks: int = 24
    block: int = 25
    old_cases: tuple[int, int] = (1_000, 11_000)
    images: tuple[int, int] = (64, 1_088)
    rows: tuple[int, int] = (20_000, 220_000)
    keys: int = 3_000


QUICK = Size(blocks=1, block=5, old_cases=(100, 300), images=(8, 32), rows=(100, 1_000), keys=1_100)
_FIRST = 10
_SIZES = (
    "SELECT coalesce(sum(pg_table_size(relid)), 0), coalesce(sum(pg_indexes_size(relid)), 0) FROM pg_stat_user_tables"
)


class Site:
    """One server on PostgreSQL and a bucket, and meters on all of them."""

    def __init__(self, folder: Path, server: PostgresServer, buckets: BucketServer) -> None:
        self.server, self.log = server, folder / "bucket.log"
        self.bucket, self.url = buckets.create(), server.url(server.create())
        self.release = write_tiny_release(folder / "release")
        self.made = Installation(folder / "home", self.url)
        self.made.environment |= {
            "SECONDREAD_STORAGE_URL": self.bucket,
            "SECONDREAD_RATE_LIMIT": "0",
            "SECONDREAD_INFERENCE_THREADS": "1",
            "SECONDREAD_MIN_FREE_BYTES": "0",
        }
        self.keys = self.made.prepare(self.release, admin="admin", anna="annotator")
        self.context = build_context(Settings(home=folder / "home", database_url=self.url, storage_url=self.bucket))
        for path in (folder / "home" / "releases").iterdir():
            self.context.folders.publish(f"releases/{path.name}", path)
        self.connection = psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True)
        self.made.start()
        self.client = httpx2.Client(base_url=self.made.address, timeout=60)

    def close(self) -> None:
        """End the server and the connections."""
        self.client.close()
        self.connection.close()
        self.made.close()
        self.context.database.engine.dispose()

    def post(self, who: str, path: str, **body: Any) -> Any:
        """The answer of a request that must succeed."""
        headers = {"Authorization": f"Bearer {self.keys[who]}", "Idempotency-Key": uuid.uuid4().hex}
        answer = self.client.post(path, headers=headers, **body)
        answer.raise_for_status()
        return answer.json()

    def row(self, statement: str) -> tuple[Any, ...]:
        """The only row of a query."""
        values = self.connection.execute(statement).fetchone()  # type: ignore[call-overload]
        assert values is not None
        return tuple(values)

    def postgres_seconds(self) -> float:
        """Processor time of all processes of PostgreSQL so far."""
        return processor_seconds(postmaster(self.server))

    def read_meters(self) -> dict[str, float]:
        """All counters, of which differences count."""
        table, index = self.row(_SIZES)
        assert self.made.server is not None
        return {
            "api_seconds": processor_seconds(self.made.server.pid),
            "postgres_seconds": self.postgres_seconds(),
            "table_bytes": float(table),
            "index_bytes": float(index),
            "wal_bytes": float(self.row("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")[0]),
        } | {f"bucket_{verb.lower()}s": float(n) for verb, n in self.bucket_requests().items()}

    def bucket_requests(self) -> dict[str, int]:
        """Requests that the bucket has answered so far, by verb."""
        log = self.log.read_text(errors="replace")
        return {verb: len(re.findall(rf'"{verb} /bucket-', log)) for verb in ("PUT", "GET", "HEAD")}

    @contextmanager
    def every_statement(self) -> Iterator[list[str]]:
        """The statements of the block, from PostgreSQL's own log."""
        seen: list[str] = []
        self._log_statements("all")
        before = (self.server.folder / "log").stat().st_size
        yield seen
        text = (self.server.folder / "log").read_bytes()[before:].decode(errors="replace")
        self._log_statements("none")
        seen += re.findall(r"LOG:  (?:statement|execute [^:]*): (.*)", text)

    def _log_statements(self, which: str) -> None:
        self.connection.execute(f"ALTER SYSTEM SET log_statement = '{which}'")  # type: ignore[call-overload]
        self.connection.execute("SELECT pg_reload_conf()")
        time.sleep(0.5)  # until every backend has read it


def stage(site: Site, do: Callable[[int], None], size: Size, bar: Progress, name: str) -> dict[str, float]:
    """Costs of one call over HTTP: median of blocks in seconds, means of bytes and requests."""
    n = size.blocks * size.block
    do(-1)  # what only the first one costs
    blocks: list[dict[str, float]] = []
    first = before = site.read_meters()
    for block in bar.track(range(size.blocks), description=name):
        for index in range(size.block):
            do(block * size.block + index)
        now = site.read_meters()
        blocks.append({meter: now[meter] - before[meter] for meter in now})
        before = now
    costs = {meter: (before[meter] - first[meter]) / n for meter in before}
    for meter in ("api_seconds", "postgres_seconds"):
        seconds = [block[meter] / size.block for block in blocks]
        costs |= {meter: statistics.median(seconds), f"{meter}_least": min(seconds), f"{meter}_most": max(seconds)}
    with site.every_statement() as statements:
        for index in range(5):
            do(n + index)
    return costs | {"statements": len(statements) / 5, "n": n}


def over_http(site: Site, size: Size, bar: Progress) -> dict[str, dict[str, float]]:
    """A case stored, a prediction, and a label with the lease before it."""

    def picture(index: int) -> dict[str, Any]:
        return {"image": ("cell.png", cell_png(index + 1, SIDE))}

    def store(index: int) -> None:
        fields = {"external_id": f"case {index}", "patient": f"patient {index // 4}"}
        site.post("admin", "/v1/cases", files=picture(index), data=fields)

    def predict(index: int) -> None:
        site.post("admin", "/v1/predictions", files=picture(index))

    def label(index: int) -> None:
        read = site.post("anna", "/v1/reads")
        site.post("anna", f"/v1/reads/{read['id']}/labels", json={"label": codes[index % len(codes)]})

    with site.context.database.read() as session:
        codes = class_codes(all_releases(session)[0])
    work = (("store a case", store), ("predict", predict), ("lease and label", label))
    return {name: stage(site, do, size, bar, name) for name, do in work}


def snapshot_bytes(site: Site) -> dict[str, float]:
    """Bytes of a snapshot per case, without the headers of its files."""
    with site.context.database.read() as session:
        release = all_releases(session)[0]
        codes = class_codes(release)
    write_snapshot(site.context.database, site.context.folders, release.id, codes)
    folder = site.context.settings.home / "snapshots"
    arrays = [np.load(path, mmap_mode="r") for path in folder.rglob("*.npy")]
    (n_cases,) = site.row("SELECT count(*) FROM cases")
    return {"bytes": sum(array.nbytes for array in arrays) / n_cases, "n": n_cases}


def listing(site: Site, keys: int) -> dict[str, float]:
    """Listing a prefix with so many keys, per 1,000 of them."""
    store, writer = BucketStore(site.bucket), from_url(site.bucket, client_options={"allow_http": True})
    for index in range(keys):
        obstore.put(writer, f"listed/{index:064x}", b"x")
    before, own = site.bucket_requests()["GET"], time.process_time()
    assert sum(1 for _ in store.under("listed")) == keys
    seconds, requests = time.process_time() - own, site.bucket_requests()["GET"] - before
    return {"seconds_per_1000": 1000 * seconds / keys, "requests_per_1000": 1000 * requests / keys, "n": keys}


def repredicting(folder: Path, server: PostgresServer, release: Path, size: Size) -> dict[str, float]:
    """A new release's predictions of old cases from stored outputs: the difference of two jobs."""
    context: ServiceContext = build_context(
        Settings(home=folder / "old", database_url=server.url(server.create()), min_free_bytes=0)
    )
    bench, seconds = Bench(context, release), []
    database = postmaster(server)
    few, many = size.old_cases
    for total in (_FIRST, few, many):  # the first one pays for what is loaded
        bench.fill(total)
        own, theirs = time.process_time(), processor_seconds(database)
        bench.predict_again()
        seconds.append((time.process_time() - own, processor_seconds(database) - theirs))
    context.database.engine.dispose()
    extra = (many - few) - (few - _FIRST)  # each job predicts what was added
    worker, postgres = (float(later - before) / extra for before, later in zip(*seconds[1:], strict=True))
    return {"worker_seconds": worker, "postgres_seconds": postgres, "n": extra}


def scoring(folder: Path, release: Path, images: tuple[int, int]) -> dict[str, float]:
    """Scoring images in a shard: the difference of a long list and a short one."""
    seconds = []
    for rows in (1, *images):  # the first one pays for what is loaded
        listed = write_list(folder, rows)
        before = time.process_time()
        score_shard(ScoreRequest(release, listed), folder / f"scored-{rows}", (1, 1))
        seconds.append(time.process_time() - before)
    _, few, many = seconds
    return {"seconds": (many - few) / (images[1] - images[0]), "n": images[1] - images[0]}


def evaluating(folder: Path, sizes: tuple[int, int]) -> dict[str, float]:
    """Evaluating cases with two labels each in a shard, by patients: the difference of long tables and short ones."""
    seconds = []
    for rows in (10, *sizes):  # the first one pays for what is loaded
        paths = write_tables(folder, rows)
        before = time.process_time()
        done = evaluate_shard(Streaming(*paths, EvaluationOptions(cluster="patient")), folder / f"job-{rows}", (1, 1))
        seconds.append(time.process_time() - before)
        assert done.n_cases == rows
    _, few, many = seconds
    return {"seconds": (many - few) / (sizes[1] - sizes[0]), "n": sizes[1] - sizes[0]}


def measure(quick: bool) -> Figures:
    """Every unit cost."""
    size = QUICK if quick else Size()
    with (
        tempfile.TemporaryDirectory() as name,
        bucket_server(Path(name) / "bucket.log") as buckets,
        postgres() as server,
    ):
        os.environ |= buckets.environment
        folder, site = Path(name), Site(Path(name), server, buckets)
        try:
            with Progress(transient=True) as bar:
                costs = over_http(site, size, bar)
            stored = [item.size for item in BucketStore(site.bucket).under("images")]
            costs["store a case"] |= {"bucket_bytes": statistics.fmean(stored)}
            costs |= {"snapshot": snapshot_bytes(site), "list keys": listing(site, size.keys)}
        finally:
            site.close()
        costs["predict an old case"] = repredicting(folder, server, site.release, size)
        costs["score an image"] = scoring(folder, site.release, size.images)
        return costs | {"evaluate a case": evaluating(folder, size.rows), "image": {"side_px": SIDE}}


if __name__ == "__main__":
    main(__doc__, {"unit_costs": measure})
