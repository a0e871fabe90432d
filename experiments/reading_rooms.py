"""A day of up to 10⁴ annotators in four cities, simulated event by event: who waits for what, and which wall is first.

    python -m experiments.reading_rooms --save

Costs per request are those of ``unit_costs.py``. Assumed, not measured: reading takes log-normal time with a median of
6 s; a city reads for ten hours from eight o'clock local time, a quarter of the annotators in each; twenty scanners send
10,000 cells per hour together (or, in the other variant, as many as the annotators can read); every fifth cell is read
twice; requests take exponential processor time, and the processes of the API serve one queue in turn. Networks take no
time. Simulated are the busiest minutes of the day, in which the most cities overlap.
"""

import argparse
import heapq
import json
import math
from collections import deque
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
from rich.progress import Progress

from app.database.engine import MAX_OVERFLOW, POOL_SIZE
from experiments import RESULTS

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "reading_rooms.svg"
CITIES = {"Helsinki": 2, "São Paulo": -3, "San Francisco": -8, "Tokyo": 9}  # hours from UTC in winter
OPENS, HOURS = 8, 10
READERS = (100, 1_000, 10_000)
MEDIAN_SECONDS, SPREAD = 6.0, 0.6
CELLS_PER_HOUR, TWICE = 10_000.0, 0.2
REQUESTS, WARM_UP = 60_000, 0.2
MAX_CONNECTIONS = 97  # of PostgreSQL's default of 100 three are for its owner
WORKER_CONNECTIONS = 26  # of one worker: sessions, jobs, its lock
BUSY = 0.7  # share of a core that is planned for
_DONE, _READ, _CELL = range(3)


def newest(name: str) -> Any:
    """The newest result of a benchmark.

    Args:
        name: of the benchmark.

    Raises:
        SystemExit: there is none yet.
    """
    found = max(RESULTS.glob(f"*_{name}.json"), default=None)
    if found is None:
        raise SystemExit(f"no result of {name} in {RESULTS}: run `python -m benchmarks.{name} --save` first")
    return json.loads(found.read_text())


@dataclass(frozen=True)
class Costs:
    """Processor time per request in seconds.

    Attributes:
        read: of an API process for a lease and a label.
        case: of an API process for storing a case.
        postgres_read: of PostgreSQL for a lease and a label.
        postgres_case: of PostgreSQL for a case.
    """

    read: float
    case: float
    postgres_read: float
    postgres_case: float

    @classmethod
    def measured(cls) -> "Costs":
        """Those of the newest result of ``unit_costs.py``."""
        costs = newest("unit_costs")["figures"]
        read, case = costs["lease and label"], costs["store a case"]
        return cls(read["api_seconds"], case["api_seconds"], read["postgres_seconds"], case["postgres_seconds"])


@dataclass
class Seen:
    """What happened after the warm-up.

    Attributes:
        waits: seconds that requests of annotators waited for an API process.
        case_waits: seconds that cells did.
        empty: seconds that annotators waited for a cell to read.
        seconds: simulated.
        busy: process-seconds of the API.
        reading: mean number of annotators who read at a time.
    """

    waits: list[float] = field(default_factory=list)
    case_waits: list[float] = field(default_factory=list)
    empty: list[float] = field(default_factory=list)
    seconds: float = 0.0
    busy: float = 0.0
    reading: float = 0.0


class Room:
    """Annotators, scanners and API processes; one queue, served in order of arrival.

    Args:
        readers: annotators who are there.
        cells: that scanners send per second.
        processes: of the API.
        costs: of requests.
        seed: of everything that is drawn.
    """

    def __init__(self, readers: int, cells: float, processes: int, costs: Costs, seed: int) -> None:
        self._costs, self._cells, self._free = costs, cells, processes
        self._rng = np.random.default_rng(seed)
        self._events: list[tuple[float, int, int, bool]] = []  # when, in order of making, what, whether of a reader
        self._queue: deque[tuple[float, bool]] = deque()
        self._idle: deque[float] = deque()
        self._made, self._to_read = 0, 0
        self._seen = Seen()
        mean = MEDIAN_SECONDS * math.exp(SPREAD**2 / 2)
        for moment in self._rng.exponential(mean, readers):
            self._plan(float(moment), _READ)
        self._plan(float(self._rng.exponential(1 / cells)), _CELL)

    def _plan(self, moment: float, what: int, reads: bool = False) -> None:
        self._made += 1
        heapq.heappush(self._events, (moment, self._made, what, reads))

    def run(self, requests: int, warm_up: float = WARM_UP) -> Seen:
        """Go on until so many requests have been answered.

        Args:
            requests: of annotators and scanners together.
            warm_up: share of them that is not counted.
        """
        done, began = 0, 0.0
        while done < requests:
            moment, _, what, reads = heapq.heappop(self._events)
            if what == _CELL:
                self._ask(moment, False)
                self._plan(moment + float(self._rng.exponential(1 / self._cells)), _CELL)
            elif what == _READ:
                self._ask(moment, True)
            else:
                self._answer(moment, reads)
                done += 1
                if done == int(warm_up * requests):
                    self._seen, began = Seen(), moment
        self._seen.seconds = moment - began
        return self._seen

    def _ask(self, moment: float, reads: bool) -> None:
        if self._free:
            self._free -= 1
            self._serve(moment, moment, reads)
        else:
            self._queue.append((moment, reads))

    def _serve(self, moment: float, since: float, reads: bool) -> None:
        cost = self._costs.read if reads else self._costs.case
        seconds = float(self._rng.exponential(cost))
        self._seen.busy += seconds
        (self._seen.waits if reads else self._seen.case_waits).append(moment - since)
        self._plan(moment + seconds, _DONE, reads)

    def _answer(self, moment: float, reads: bool) -> None:
        if reads:
            self._idle.append(moment)
        else:
            self._to_read += 1 + int(self._rng.random() < TWICE)
        while self._idle and self._to_read:
            self._to_read -= 1
            self._seen.empty.append(moment - self._idle.popleft())
            seconds = float(self._rng.lognormal(math.log(MEDIAN_SECONDS), SPREAD))
            self._seen.reading += seconds
            self._plan(moment + seconds, _READ)
        if self._queue:
            self._serve(moment, *self._queue.popleft())
        else:
            self._free += 1


def erlang_c(rate: float, cost: float, processes: int) -> float:
    """Mean wait in seconds of an open queue with exponential arrivals and service (Erlang's C formula).

    Args:
        rate: requests per second.
        cost: mean seconds of one.
        processes: that serve.
    """
    load = rate * cost
    blocked = 1.0
    for n in range(1, processes + 1):
        blocked = load * blocked / (n + load * blocked)
    waits = blocked / (1 - load / processes * (1 - blocked))
    return waits * cost / (processes - load)


def most_present() -> tuple[float, int]:
    """The largest share of annotators who are there at one time, and at which hour of UTC."""
    there = [sum((hour + away - OPENS) % 24 < HOURS for away in CITIES.values()) for hour in range(24)]
    return max(there) / len(CITIES), int(np.argmax(there))


def reads_per_second(readers: float, costs: Costs) -> float:
    """What annotators ask for who never wait."""
    return readers / (MEDIAN_SECONDS * math.exp(SPREAD**2 / 2) + costs.read)


def demand(reads: float, costs: Costs) -> dict[str, float]:
    """Busy cores by kind of process, where so many reads per second are asked for and as many cells come as they need.

    Args:
        reads: per second.
        costs: of requests.
    """
    cells = reads / (1 + TWICE)
    return {
        "api": reads * costs.read + cells * costs.case,
        "postgres": reads * costs.postgres_read + cells * costs.postgres_case,
    }


def simulated(readers: int, scaled: bool, costs: Costs) -> dict[str, float]:
    """A row of the table: the busiest minutes with as many processes as are planned for.

    Args:
        readers: on the staff.
        scaled: whether scanners send as many cells as the annotators can read.
        costs: of requests.
    """
    present = round(readers * most_present()[0])
    reads = reads_per_second(present, costs)
    cells = reads / (1 + TWICE) if scaled else CELLS_PER_HOUR / 3600
    needed = demand(min(reads, cells * (1 + TWICE)), costs)
    processes = math.ceil(needed["api"] / BUSY)
    # a little more than they can read, so that the worklist is not empty by chance
    seen = Room(present, 1.02 * cells if scaled else cells, processes, costs, seed=readers).run(REQUESTS)
    waits, empty = np.array(seen.waits), np.array(seen.empty)
    return {
        "readers": readers,
        "present": present,
        "reads_per_second": len(waits) / seen.seconds,
        "reading": seen.reading / seen.seconds,
        "processes": processes,
        "connections": processes * (POOL_SIZE + MAX_OVERFLOW) + WORKER_CONNECTIONS,
        "api_utilisation": seen.busy / seen.seconds / processes,
        "postgres_cores": needed["postgres"],
        "wait_median": float(np.median(waits)),
        "wait_99": float(np.quantile(waits, 0.99)),
        "no_cell_median": float(np.median(empty)),
    }


def walls(costs: Costs) -> dict[str, float]:
    """Annotators on the staff at which each wall stands, where cells come as fast as they are read."""
    each = demand(reads_per_second(most_present()[0], costs), costs)
    processes = (MAX_CONNECTIONS - WORKER_CONNECTIONS) // (POOL_SIZE + MAX_OVERFLOW)
    return {
        "one API process": BUSY / each["api"],
        "connections": processes * BUSY / each["api"],
        "16 cores of PostgreSQL": 16 * BUSY / each["postgres"],
        "64 cores of PostgreSQL": 64 * BUSY / each["postgres"],
    }


def draw(costs: Costs, found: dict[str, float], out: Path) -> None:
    """Busy cores by kind of process over the number of annotators, and where the walls stand.

    Args:
        costs: of requests.
        found: the walls.
        out: SVG to write.
    """
    names = {"api": "API processes", "postgres": "PostgreSQL"}
    share = most_present()[0]
    lines = [
        {"readers": float(readers), "cores": cores, "of": names[kind]}
        for readers in np.geomspace(100, 100_000, 31)
        for kind, cores in demand(reads_per_second(share * readers, costs), costs).items()
    ]
    axes = {
        "x": alt.X("readers:Q", scale=alt.Scale(type="log"), title="annotators on the staff", axis=alt.Axis(grid=False))
    }
    scale = alt.Scale(type="log")
    base = alt.Chart(alt.Data(values=lines)).mark_line()
    cores = base.encode(
        **axes,
        y=alt.Y("cores:Q", scale=scale, title="busy cores at the busiest hour", axis=alt.Axis(grid=False)),
        color=alt.Color("of:N", title=None),
    )
    marks = alt.Data(values=[{"readers": readers, "wall": name} for name, readers in found.items()])
    rules = alt.Chart(marks).mark_rule(strokeDash=[3, 3]).encode(**axes)
    words = alt.Chart(marks).mark_text(angle=270, align="left", dy=-6).encode(**axes, y=alt.value(330), text="wall:N")
    (cores + rules + words).properties(width=560, height=340).save(str(out))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help="keep figures and picture")
    arguments = parser.parse_args()
    costs, rows = Costs.measured(), []
    with Progress(transient=True) as bar:
        for scaled, readers in bar.track([(scaled, readers) for scaled in (False, True) for readers in READERS]):
            rows.append({"cells": "as read" if scaled else "fixed"} | simulated(readers, scaled, costs))
    for row in rows:
        shown = (
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
        )
        print(", ".join(shown))
    found = walls(costs)
    for name, readers in found.items():
        print(f"{readers:12.0f} annotators: {name}")
    if arguments.save:
        document: dict[str, Any] = {"costs": vars(costs), "rows": rows, "walls": found}
        (RESULTS / f"{date.today()}_reading_rooms.json").write_text(json.dumps(document, indent=1) + "\n")
        draw(costs, found, PICTURE)


if __name__ == "__main__":
    main()
