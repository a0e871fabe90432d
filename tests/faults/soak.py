"""A service under steady load (F13), watched: 20 labels, 2 uploads and 5 predictions per second.

``python -m tests.faults.soak --minutes 30 --out FOLDER`` writes the figures and draws memory, descriptors and the
slowest labels over time.
"""

import argparse
import itertools
import json
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import altair as alt
import httpx2
import numpy as np
from altair.typing import ChartType
from rich.progress import track

from ml.charts.reliability import apply_chart_style, write_chart
from tests.support.process import Installation
from tests.support.service import cell_png
from tests.support.tiny_release import write_tiny_release
from tests.support.waiting import patient

LABELS, UPLOADS, PREDICTIONS = 20.0, 2.0, 5.0
#: Labels of a case, so that there are always cases to label.
PER_CASE, FIRST_CASES = 10, 20
Request = tuple[str, str, dict[str, Any]]


@dataclass(frozen=True)
class Sample:
    """State of server and worker at a moment.

    Attributes:
        seconds: since the load began.
        memory: resident MiB of server, worker and what they start.
        descriptors: open files of these.
        label_p99: 99th percentile of the labels since the last sample, ms; none without labels.
    """

    seconds: float
    memory: float
    descriptors: int
    label_p99: float | None


@dataclass
class Soak:
    """What was seen.

    Attributes:
        statuses: answers by kind of request and status.
        label_seconds: of each label.
        samples: over time.
        faults: of ``db verify`` afterwards.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    label_seconds: list[float] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def server_errors(self) -> int:
        """Answers of 500 and above, and requests without an answer."""
        return sum(n for kind, n in self.statuses.items() if kind.split()[1] >= "500")

    def later(self, name: str) -> tuple[float, float]:
        """Median of a series in the second and in the last quarter of the time: alike, where nothing leaks."""
        values = np.array([getattr(sample, name) for sample in self.samples])
        quarter = max(1, len(values) // 4)
        return float(np.median(values[quarter : 2 * quarter])), float(np.median(values[-quarter:]))

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON values."""
        p99 = float(np.percentile(self.label_seconds, 99)) * 1000 if self.label_seconds else None
        return {
            "answers": dict(sorted(self.statuses.items())),
            "label_p99_ms": p99,
            "memory_mib_second_and_last_quarter": self.later("memory"),
            "descriptors_second_and_last_quarter": self.later("descriptors"),
            "faults": self.faults,
            "samples": [asdict(sample) for sample in self.samples],
        }


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
    """Sends requests of a kind at a rate, those that are late at once, until it is over.

    Args:
        soak: where to note what was seen.
        made: what to send to.
        kind: of the requests.
        rate: per second.
        request: makes the request of a number.
        answered: is given what came back with success.
    """

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
    """Load a running service for a while.

    Args:
        made: the service.
        keys: of ``admin``, ``viewer`` and ``outside``.
        seconds: how long.
        samples: how often to look at it meanwhile.
    """
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


def chart(soak: Soak) -> ChartType:
    """Memory, descriptors and slowest labels over time."""
    titles = {
        "memory": "memory, MiB",
        "descriptors": "open descriptors",
        "label_p99": "99th percentile of labels, ms",
    }
    rows = [asdict(sample) | {"minutes": sample.seconds / 60} for sample in soak.samples]
    panels = [
        alt.Chart(alt.Data(values=rows), width=260, height=180)
        .mark_line()
        .encode(
            x=alt.X("minutes:Q", title="minutes"),
            y=alt.Y(f"{name}:Q", title=title, scale=alt.Scale(domainMin=0)),
        )
        for name, title in titles.items()
    ]
    return apply_chart_style(alt.hconcat(*panels))


def save(soak: Soak, minutes: float, folder: Path) -> dict[str, Any]:
    """Write the figures and draw them.

    Args:
        soak: what was seen.
        minutes: how long.
        folder: made where it is missing.

    Returns:
        The figures without the samples.
    """
    folder.mkdir(parents=True, exist_ok=True)
    document = {"minutes": minutes} | soak.to_dict()
    (folder / "soak.json").write_text(json.dumps(document, indent=1) + "\n")
    write_chart(chart(soak), folder / "soak.svg")
    return {name: value for name, value in document.items() if name != "samples"}


def main() -> None:
    """Run the soak and write what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results") / f"{date.today().isoformat()}_soak")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_tiny_release(Path(folder) / "release")
        with Installation(Path(folder) / "home") as made:
            keys = made.prepare(Path(folder) / "release", admin="admin", viewer="viewer", outside="service")
            made.start()
            soak = run(made, keys, 60 * arguments.minutes)
            made.stop()
    print(json.dumps(save(soak, arguments.minutes, arguments.out), indent=1))


if __name__ == "__main__":
    main()
