"""Steady load leaves the service as it was (F13): no error, nothing lost, memory and descriptors level."""

import itertools
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import altair as alt
import httpx2
import numpy as np
import pytest
from rich.progress import track
from sqlalchemy import func, select

from app.database.tables import Case, Label
from ml.charts.reliability import apply_chart_style, write_chart
from tests.faults.rounds import Rounds, results_folder
from tests.support.process import Installation
from tests.support.service import cell_png
from tests.support.waiting import patient


@pytest.mark.parametrize(
    "minutes", [pytest.param(0.2, marks=pytest.mark.slow), pytest.param(30, marks=pytest.mark.heavy)]
)
def test_steady_load_leaves_the_service_as_it_was(tmp_path: Path, tiny_release: Path, minutes: float) -> None:
    with Installation(tmp_path / "home") as made:
        keys = made.prepare(tiny_release, admin="admin", viewer="viewer", outside="service")
        made.start()
        seen = run(made, keys, 60 * minutes, samples=round(max(12, 6 * minutes)))
        with made.parts() as context, context.database.read() as session:
            n_labels, n_cases = (session.execute(select(func.count(row.id))).scalar_one() for row in (Label, Case))
    written = [(n_labels, seen.statuses["label 201"]), (n_cases - FIRST_CASES, seen.statuses["upload 201"])]
    Rounds(
        "F13",
        "steady load of labels, uploads and predictions",
        "sqlite",
        rounds=1,
        acknowledged=sum(acknowledged for _, acknowledged in written),
        lost=sum(max(0, acknowledged - stored) for stored, acknowledged in written),
        duplicates=sum(max(0, stored - acknowledged) for stored, acknowledged in written),
        server_errors=sum(n for kind, n in seen.statuses.items() if kind.split()[1] >= "500"),
    ).note()
    if (folder := results_folder()) is not None and minutes > 1:
        save(seen, minutes, folder / "soak")
    assert set(seen.statuses) == {"label 201", "upload 201", "prediction 200"}, seen.statuses
    assert all(stored == acknowledged for stored, acknowledged in written), written
    assert seen.faults == []
    if minutes < 1:
        return
    for name in ("memory", "descriptors"):
        before, after = seen.later(name)
        assert after < 1.1 * before, (name, before, after)


LABELS, UPLOADS, PREDICTIONS = 20.0, 2.0, 5.0
#: Labels of a case, so that there are always cases to label.
PER_CASE, FIRST_CASES = 10, 20
Request = tuple[str, str, dict[str, Any]]


@dataclass(frozen=True)
class Sample:
    """State of server and worker at a moment."""

    seconds: float
    memory: float
    descriptors: int
    label_p99: float | None


@dataclass
class Soak:
    """What was seen."""

    statuses: Counter[str] = field(default_factory=Counter)
    label_seconds: list[float] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def later(self, name: str) -> tuple[float, float]:
        """Median of a series in the second and in the last quarter of the time: alike, where nothing leaks."""
        values = np.array([getattr(sample, name) for sample in self.samples])
        quarter = max(1, len(values) // 4)
        return float(np.median(values[quarter : 2 * quarter])), float(np.median(values[-quarter:]))


def family(pid: int) -> Iterator[Path]:
    """Folders in /proc of a process and of everything it has started."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has just ended
    todo = [pid]
    while todo:
        current = todo.pop()
        yield Path("/proc") / str(current)
        todo += [child for child, parent in parents.items() if parent == current]


def usage(pid: int) -> tuple[float, int]:
    """Resident MiB and open files of a process and of everything it has started."""
    memory, descriptors = 0, 0
    for folder in family(pid):
        try:
            memory += int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            descriptors += len(os.listdir(folder / "fd"))
        except OSError:
            continue
    return memory / 2**20, descriptors


class Stream(threading.Thread):
    """Sends requests of a kind at a rate, those that are late at once, until it is over."""

    def __init__(
        self,
        soak: Soak,
        made: Installation,
        kind: str,
        rate: float,
        request: Callable[[int], Request],
        answered: Callable[[dict[str, Any]], None] = lambda document: None,
    ) -> None:
        super().__init__(daemon=True)
        self._soak, self._made, self._kind, self._rate = soak, made, kind, rate
        self._request, self._answered = request, answered
        self.over = threading.Event()

    def run(self) -> None:
        began = time.monotonic()
        with httpx2.Client(base_url=self._made.address, timeout=patient(60)) as client:
            for number in itertools.count():
                if self.over.wait(max(0.0, began + number / self._rate - time.monotonic())):
                    return
                self._send(client, number)

    def _send(self, client: httpx2.Client, number: int) -> None:
        path, key, body = self._request(number)
        headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": f"{self.name} {number}"}
        started = time.perf_counter()
        try:
            answer = client.post(path, headers=headers, **body)
        except httpx2.TransportError as error:
            self._soak.statuses[f"{self._kind} 999 {type(error).__name__}"] += 1
            return
        if self._kind == "label":
            self._soak.label_seconds.append(time.perf_counter() - started)
        self._soak.statuses[f"{self._kind} {answer.status_code}"] += 1
        if answer.is_success:
            self._answered(answer.json())


def streams(soak: Soak, made: Installation, keys: dict[str, str]) -> list[Stream]:
    """Four for labels, since each waits for its answer, two for predictions and one for uploads."""
    cases: list[str] = []
    codes: list[str] = []

    def upload(number: int) -> Request:
        files = {"image": ("cell.png", cell_png(number % 40))}
        return "/v1/cases", keys["admin"], {"files": files, "data": {"external_id": f"cell {number}"}}

    def stored(document: dict[str, Any]) -> None:
        codes[:] = document["prediction"]["classes"]
        cases.append(document["id"])

    def predict(number: int) -> Request:
        return "/v1/predictions", keys["viewer"], {"files": {"image": ("cell.png", cell_png(number % 40))}}

    def label(stream: int, number: int) -> Request:
        place = (4 * number + stream) // PER_CASE
        # somebody else's opinion of an older case, should uploads be late
        reader = f"reader {(4 * number + stream) % PER_CASE}" if place < len(cases) else f"late {stream} {number}"
        body = {"label": codes[number % 3], "annotator": reader, "blind": True}
        return f"/v1/cases/{cases[place % len(cases)]}/labels", keys["outside"], {"json": body}

    first = Stream(soak, made, "upload", UPLOADS, lambda number: upload(-1 - number), stored)
    with httpx2.Client(base_url=made.address, timeout=patient(60)) as client:
        for number in range(FIRST_CASES):
            first._send(client, number)
    return [
        *(Stream(soak, made, "label", LABELS / 4, lambda number, k=k: label(k, number)) for k in range(4)),
        *(Stream(soak, made, "prediction", PREDICTIONS / 2, predict) for _ in range(2)),
        Stream(soak, made, "upload", UPLOADS, upload, stored),
    ]


def run(made: Installation, keys: dict[str, str], seconds: float, samples: int = 180) -> Soak:
    assert made.server is not None
    soak = Soak()
    everybody = streams(soak, made, keys)
    soak.statuses.clear()
    began = time.monotonic()
    for stream in everybody:
        stream.start()
    seen = 0
    for number in track(range(samples), description="soak"):
        time.sleep(max(0.0, began + (number + 1) * seconds / samples - time.monotonic()))
        memory, descriptors = usage(made.server.pid)
        since, seen = soak.label_seconds[seen:], len(soak.label_seconds)
        p99 = 1000 * float(np.percentile(since, 99)) if since else None
        soak.samples.append(Sample(time.monotonic() - began, memory, descriptors, p99))
    for stream in everybody:
        stream.over.set()
    for stream in everybody:
        stream.join(patient(60))
    soak.faults = json.loads(made.run("db", "verify", "--json", check=False).stdout)["faults"]
    return soak


def save(soak: Soak, minutes: float, folder: Path) -> None:
    """Write the figures, and draw memory, descriptors and slowest labels over time."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "minutes": minutes,
        "answers": dict(sorted(soak.statuses.items())),
        "label_p99_ms": 1000 * float(np.percentile(soak.label_seconds, 99)),
        "memory_mib_second_and_last_quarter": soak.later("memory"),
        "descriptors_second_and_last_quarter": soak.later("descriptors"),
        "faults": soak.faults,
        "samples": [asdict(sample) for sample in soak.samples],
    }
    (folder / "soak.json").write_text(json.dumps(document, indent=1) + "\n")
    titles = {"memory": "memory, MiB", "descriptors": "open descriptors", "label_p99": "99th percentile of labels, ms"}
    rows = [asdict(sample) | {"minutes": sample.seconds / 60} for sample in soak.samples]
    panels = [
        alt.Chart(alt.Data(values=rows), width=260, height=180)
        .mark_line()
        .encode(x=alt.X("minutes:Q", title="minutes"), y=alt.Y(f"{name}:Q", title=title, scale=alt.Scale(domainMin=0)))
        for name, title in titles.items()
    ]
    write_chart(apply_chart_style(alt.hconcat(*panels)), folder / "soak.svg")
