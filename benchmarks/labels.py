"""Labels over HTTP by eight annotators, beside bare inserts of the same row by the ORM in the same run.

    python -m benchmarks.labels --save

One server on SQLite, and on PostgreSQL one of one process and one with a process per core. In turns: eight annotators
who lease and label without pause, and eight threads that do nothing but insert rows of labels and commit; then labels
that come at a fixed rate, whenever the last one was answered. Clients and server share the processors of the machine.
"""

import argparse
import http.client
import json
import os
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress
from sqlalchemy import select

from app.cases.ingest import prepare_case, store_case
from app.cases.schemas import CaseIn
from app.context import ServiceContext
from app.database.engine import Database
from app.database.tables import Account, Annotator, Case, Label
from app.http.principal import Principal
from benchmarks.serving import CORES, PER_CORE
from tests.support.postgres import PostgresServer, find_binaries
from tests.support.process import Installation
from tests.support.service import cell_png
from tests.support.tiny_release import write_tiny_release

ANNOTATORS, ROUNDS, SECONDS = 8, 3, 4.0
OFFERED, OFFERED_SECONDS = 100, 3.0
CASES = 900
GOALS = {"commits per second": 250, "p99 of p50": 3.0, "p99 in ms when offered": 25, "of bare": 0.2}


class Reader:
    """An annotator with a connection of their own."""

    def __init__(self, port: int, key: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._key = key
        self.milliseconds: list[float] = []

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The answer of a request that must succeed; None where there is nothing to read.

        Raises:
            RuntimeError: it was refused.
        """
        headers = {"Authorization": f"Bearer {self._key}", "Idempotency-Key": uuid.uuid4().hex}
        headers |= {} if body is None else {"Content-Type": "application/json"}
        self._connection.request("POST", path, None if body is None else json.dumps(body), headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status not in {201, 204}:
            raise RuntimeError(f"{path}: {answer.status} {content.decode()}")
        return json.loads(content) if content else None

    def lease(self) -> Any:
        """The next read."""
        return self.post("/v1/reads")

    def label(self, read: Any, since: float | None = None) -> None:
        """Answer a read, and note how long it took since it was due."""
        begun = time.perf_counter() if since is None else since
        code = read["classes"][len(self.milliseconds) % len(read["classes"])]["code"]
        self.post(f"/v1/reads/{read['id']}/labels", {"label": code})
        self.milliseconds.append(1000 * (time.perf_counter() - begun))


def together(work: Callable[[int], int]) -> float:
    """Calls per second of eight threads, each of which says how many it made."""
    barrier, counts = threading.Barrier(ANNOTATORS + 1), [0] * ANNOTATORS

    def run(index: int) -> None:
        barrier.wait()
        counts[index] = work(index)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(ANNOTATORS)]
    for thread in threads:
        thread.start()
    barrier.wait()
    begun = time.perf_counter()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - begun)


def without_pause(readers: list[Reader], seconds: float) -> float:
    """Commits per second, of leases and of labels, as long as there is something to read."""

    def work(index: int) -> int:
        end, n_commits = time.perf_counter() + seconds, 0
        while time.perf_counter() < end and (read := readers[index].lease()) is not None:
            readers[index].label(read)
            n_commits += 2
        return n_commits

    return together(work)


def offered(readers: list[Reader]) -> None:
    """Labels at a fixed rate, each reader in turn, with the leases taken before they are due."""
    every, start = ANNOTATORS / OFFERED, time.perf_counter() + 0.5

    def work(index: int) -> int:
        due, end = start + index / OFFERED, start + OFFERED_SECONDS
        while due < end and (read := readers[index].lease()) is not None:
            time.sleep(max(0.0, due - time.perf_counter()))
            readers[index].label(read, due)
            due += every
        return 0

    together(work)


class Bare:
    """Rows of labels, and nothing else, by the ORM: one per case and annotator."""

    def __init__(self, url: str) -> None:
        self.database = Database(url)
        with self.database.read() as session:
            self.account = session.execute(select(Account.id).limit(1)).scalar_one()
            self.cases = list(session.execute(select(Case.id)).scalars())

    def rate(self, seconds: float) -> float:
        """Commits per second of eight threads."""
        with self.database.write() as session:
            annotators = [Annotator(name=uuid.uuid4().hex) for _ in range(ANNOTATORS)]
            session.add_all(annotators)
            session.flush()

        def work(index: int) -> int:
            end, n_commits = time.perf_counter() + seconds, 0
            while time.perf_counter() < end and n_commits < len(self.cases):
                with self.database.write() as session:
                    session.add(self._label(annotators[index].id, self.cases[n_commits]))
                n_commits += 1
            return n_commits

        return together(work)

    def _label(self, annotator_id: uuid.UUID, case_id: uuid.UUID) -> Label:
        return Label(
            case_id=case_id,
            annotator_id=annotator_id,
            kind="label",
            class_code="blast",
            blind=True,
            round="planned",
            reading_seconds=1.0,
            created_by=self.account,
        )


def fill(context: ServiceContext) -> None:
    """Cases with an image and a patient of their own, and the prediction of one."""
    with context.database.read() as session:
        account = session.execute(select(Account).where(Account.role == "admin")).scalars().one()
    admin = Principal(account.id, account.name, "admin", frozenset({"cases:write"}))
    template = prepare_case(context, CaseIn(external_id="template", patient="q", metadata={}), cell_png())
    for number in range(0, CASES, 100):
        with context.database.write() as session:
            for index in range(number, number + 100):
                fields = CaseIn(external_id=f"case {index}", patient=f"patient {index}", metadata={})
                name = uuid.uuid4().bytes * 2
                own = replace(
                    template,
                    fields=fields,
                    picture=replace(template.picture, digest=name),
                    stored_sha256=name.hex(),
                )
                store_case(session, context, admin, own)


def measure(made: Installation, release: Path, bar: Progress, *, quick: bool) -> dict[str, float]:
    """Figures of one server."""
    rounds, seconds = (1, 0.5) if quick else (ROUNDS, SECONDS)
    names = [f"annotator-{index}" for index in range(ANNOTATORS)]
    keys = made.prepare(release, admin="admin", **dict.fromkeys(names, "annotator"))
    with made.parts() as context:
        fill(context)
    made.start()
    bare = Bare(made.sqlalchemy_url)
    readers = [Reader(made.port, keys[name]) for name in names]
    for reader in readers:  # what only the first one costs
        reader.label(reader.lease())
        reader.milliseconds.clear()
    rates, bares = [], []
    for _ in bar.track(range(rounds), description="without pause"):
        bares.append(bare.rate(seconds / 2))
        rates.append(without_pause(readers, seconds))
    busy = np.concatenate([reader.milliseconds for reader in readers])
    for reader in readers:
        reader.milliseconds.clear()
    offered(readers)
    calm = np.concatenate([reader.milliseconds for reader in readers])
    bare.database.engine.dispose()
    return {
        "commits per second": statistics.median(rates),
        "bare commits per second": statistics.median(bares),
        "of bare": statistics.median(rate / other for rate, other in zip(rates, bares, strict=True)),
        "p50 in ms": float(np.quantile(busy, 0.5)),
        "p99 in ms": float(np.quantile(busy, 0.99)),
        "p99 of p50": float(np.quantile(busy, 0.99) / np.quantile(busy, 0.5)),
        "p50 in ms when offered": float(np.quantile(calm, 0.5)),
        "p99 in ms when offered": float(np.quantile(calm, 0.99)),
        "labels": float(busy.size + calm.size),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--quick", action="store_true", help="one short round: whether it runs")
    options = parser.parse_args()
    binaries, figures = find_binaries(), {}
    with tempfile.TemporaryDirectory() as parent, Progress(transient=True) as bar:
        release = write_tiny_release(Path(parent) / "release")
        server = None if binaries is None else PostgresServer(binaries)
        try:
            kinds: dict[str, tuple[str | None, int]] = {"sqlite": (None, 1)}
            if server is not None:
                kinds["postgresql"] = (server.url(server.create()), 1)
                kinds[f"postgresql{PER_CORE}"] = (server.url(server.create()), CORES)
            for number, (kind, (url, processes)) in enumerate(kinds.items()):
                with Installation(Path(parent) / str(number) / "home", url) as made:
                    made.environment |= {"SECONDREAD_RATE_LIMIT": "0", "SECONDREAD_MIN_FREE_BYTES": "0"}
                    made.environment |= {"SECONDREAD_PROCESSES": str(processes)}
                    figures[kind] = measure(made, release, bar, quick=options.quick)
        finally:
            if server is not None:
                server.stop()
    for kind, row in figures.items():
        print(kind, {name: round(value, 2) for name, value in row.items()})
    print("goals:", GOALS)
    if options.save:
        out = Path(__file__).parent / "results" / f"{date.today()}_labels.json"
        out.write_text(json.dumps({"cores": os.cpu_count(), "figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
