"""Labels over HTTP by eight annotators: at an offered rate, and as many as the server takes; statements of each.

    python -m benchmarks.labels --save

A server on SQLite, one on PostgreSQL, and one on PostgreSQL with a process per core. Eight labels per second are due,
as many as eight people give, then thirty, each with a lease before it; a label that waits counts from the moment when
it was due. Then eight annotators label without a pause: that rate shows how far the offered one is from the most that
the machine does. Clients and server share its processors.
"""

import http.client
import json
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from fastapi.testclient import TestClient
from rich.progress import track
from sqlalchemy import select

from app.cases.ingest import prepare_case, store_case
from app.cases.schemas import CaseIn
from app.context import ServiceContext
from app.database.tables import Account
from app.http.principal import Principal
from app.main import attach_context, create_app
from benchmarks.harness import CORES, Figures, main, postgres
from ml.util.arrays import FloatArray
from tests.support.process import Installation
from tests.support.service import cell_png
from tests.support.statements import counted
from tests.support.tiny_release import write_tiny_release

#: Labels per second in all, for so many seconds, by so many people.
OFFERED, SECONDS, ANNOTATORS = 30, 25.0, 8
#: Labels per second of as many people who look at each cell for a second.
OF_PEOPLE = 8
#: Seconds without a pause, and cases enough for all three.
FULL_SECONDS, CASES, QUICK_CASES = 8.0, 1500, 200


class Reader:
    """An annotator with a connection of their own."""

    def __init__(self, port: int, key: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._key = key
        self.milliseconds: list[float] = []

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The answer of a request that must succeed; None if there is nothing to read.

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


def offer_labels(readers: list[Reader], seconds: float, rate: int = OFFERED) -> FloatArray:
    """Label at a fixed rate, each reader in turn, a lease before its label is due; gives milliseconds since then."""
    every, start = ANNOTATORS / rate, time.perf_counter() + 0.5

    def read_and_label(index: int) -> None:
        readers[index].milliseconds.clear()
        due, end = start + index / rate, start + seconds
        while due < end and (read := readers[index].lease()) is not None:
            time.sleep(max(0.0, due - time.perf_counter()))
            readers[index].label(read, due)
            due += every

    with ThreadPoolExecutor(ANNOTATORS) as threads:
        list(threads.map(read_and_label, range(ANNOTATORS)))
    return np.concatenate([reader.milliseconds for reader in readers])


def label_without_pause(readers: list[Reader], seconds: float) -> float:
    """Labels per second of readers who never wait."""
    end = time.perf_counter() + seconds

    def read_and_label(reader: Reader) -> None:
        reader.milliseconds.clear()
        while time.perf_counter() < end and (read := reader.lease()) is not None:
            reader.label(read)

    with ThreadPoolExecutor(ANNOTATORS) as threads:
        list(threads.map(read_and_label, readers))
    return sum(len(reader.milliseconds) for reader in readers) / seconds


def count_statements(made: Installation, key: str) -> dict[str, float]:
    """Statements of one lease and of one label, with who is calling; ``BEGIN`` is not counted."""
    app = create_app()
    with made.parts() as context:
        attach_context(app, context.settings)
    counts: dict[str, float] = {}
    with TestClient(app, base_url=made.address) as client:

        def post(path: str, body: dict[str, Any] | None = None) -> Any:
            headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": uuid.uuid4().hex}
            return client.post(path, json=body, headers=headers).raise_for_status().json()

        for _ in range(2):  # the first ones load what the process keeps
            with counted(app.state.database) as statements:
                read = post("/v1/reads")
            counts["statements per lease"] = len(statements)
            with counted(app.state.database) as statements:
                post(f"/v1/reads/{read['id']}/labels", {"label": read["classes"][0]["code"]})
            counts["statements per label"] = len(statements)
    return counts


def fill(context: ServiceContext, n_cases: int = CASES) -> None:
    """Cases with an image and a patient of their own, and the prediction of one."""
    with context.database.read() as session:
        account = session.execute(select(Account).where(Account.role == "admin")).scalars().one()
    admin = Principal(account.id, account.name, "admin", frozenset({"cases:write"}))
    template = prepare_case(context, CaseIn(external_id="template", patient="q", metadata={}), cell_png())
    for number in range(0, n_cases, 100):
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


def measure_server(made: Installation, release: Path, *, quick: bool) -> dict[str, float]:
    """Figures of one server."""
    names = [f"annotator-{index}" for index in range(ANNOTATORS)]
    keys = made.prepare(release, admin="admin", **dict.fromkeys(names, "annotator"))
    with made.parts() as context:
        fill(context, QUICK_CASES if quick else CASES)
    counts = count_statements(made, keys[names[0]])
    made.start()
    readers = [Reader(made.port, keys[name]) for name in names]
    for reader in readers:  # what only the first one costs
        reader.label(reader.lease())
    of_people = offer_labels(readers, 2.0 if quick else SECONDS, OF_PEOPLE)
    milliseconds = offer_labels(readers, 2.0 if quick else SECONDS)
    most = label_without_pause(readers, 1.0 if quick else FULL_SECONDS)
    return {
        "p50 in ms": float(np.quantile(milliseconds, 0.5)),
        "p99 in ms": float(np.quantile(milliseconds, 0.99)),
        "labels": float(milliseconds.size),
        f"p99 in ms at {OF_PEOPLE} per second": float(np.quantile(of_people, 0.99)),
        "labels per second without a pause": most,
        **counts,
    }


def measure(quick: bool) -> Figures:
    """Figures by server."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as parent, postgres() as server:
        release = write_tiny_release(Path(parent) / "release")
        kinds: dict[str, tuple[str | None, int]] = {
            "sqlite": (None, 1),
            "postgresql": (server.url(server.create()), 1),
            "postgresql, a process per core": (server.url(server.create()), CORES),
        }
        for number, (kind, (url, processes)) in track(enumerate(kinds.items()), "servers", transient=True):
            with Installation(Path(parent) / str(number) / "home", url) as made:
                made.environment |= {"SECONDREAD_RATE_LIMIT": "0", "SECONDREAD_MIN_FREE_BYTES": "0"}
                made.environment |= {"SECONDREAD_PROCESSES": str(processes)}
                figures[kind] = measure_server(made, release, quick=quick)
    return figures


if __name__ == "__main__":
    main(__doc__, {"labels": measure})
