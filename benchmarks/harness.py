"""One way to measure: works take turns in rounds, medians count, and every benchmark has the same options and results.

A benchmark ends with ``main(__doc__, {"name": measure})``. A measurement gets whether it is a quick run, and returns
figures: numbers nested by name. ``--save`` keeps them as ``results/DATE_name.json``.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

from app.settings import Settings
from tests.support.postgres import PostgresServer, find_binaries

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
DEMO = ROOT / "app" / "demo" / "cells" / "release"
CORES = len(os.sched_getaffinity(0))
Figures = dict[str, Any]
Measurement = Callable[[bool], Figures]
_Item = TypeVar("_Item")
_TICK = os.sysconf("SC_CLK_TCK")


def main(description: str, measurements: Mapping[str, Measurement]) -> None:
    """Run measurements as the command line asks, print their figures, and keep them.

    Args:
        description: of the module.
        measurements: by the name of their results.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="a short run that shows that it runs; its figures mean nothing"
    )
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    parser.add_argument("--only", choices=sorted(measurements), help="one measurement of several")
    options = parser.parse_args()
    if options.quick and options.save:
        parser.error("a quick run has no figures worth keeping: leave --quick or --save out")
    for name, measure in measurements.items():
        if options.only in (None, name):
            about = describe_machine()
            figures = measure(options.quick)
            print(f"{name}\n{printed(figures)}", flush=True)
            if options.save:
                save(name, about, figures)


def describe_machine() -> Figures:
    """Processor, cores, and how busy the machine was in the last minute."""
    return {"machine": platform.machine(), "cores": CORES, "load": os.getloadavg()[0]}


def save(name: str, about: Figures, figures: Figures) -> Path:
    """Keep figures as the newest results of a name."""
    path = RESULTS / f"{date.today()}_{name}.json"
    document = {"benchmark": name, "date": str(date.today())} | about | {"figures": figures}
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return path


def printed(figures: Figures, path: str = "") -> str:
    """A line for each figure, with the names that lead to it.

    >>> print(printed({"a": {"b": 1.5}, "n": 20_000}))
             1.5  a > b
           20000  n
    """
    lines = []
    for name, value in figures.items():
        if isinstance(value, dict):
            lines.append(printed(value, f"{path}{name} > "))
        elif isinstance(value, int | float):
            lines.append(f"{value:12.5g}  {path}{name}")
    return "\n".join(lines)


@dataclass(frozen=True)
class Spent:
    """Seconds of a work on the clock and of this process's processor time."""

    clock: float
    processor: float


def spend(work: Callable[[], object]) -> Spent:
    """Do some work once."""
    clock, processor = time.perf_counter(), time.process_time()
    work()
    return Spent(time.perf_counter() - clock, time.process_time() - processor)


def in_turn(items: Sequence[_Item], rounds: int) -> Iterator[list[_Item]]:
    """The items in each round, beginning with another one each time, so that none is always last.

    >>> list(in_turn((1, 2, 4), 2))
    [[1, 2, 4], [2, 4, 1]]
    """
    for number in range(rounds):
        at = number % len(items)
        yield [*items[at:], *items[:at]]


def interleaved(works: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median processor seconds of each work; works take turns in every round."""
    seen: dict[str, list[float]] = {name: [] for name in works}
    for order in in_turn(list(works), rounds):
        for name in order:
            seen[name].append(spend(works[name]).processor)
    return {name: statistics.median(seconds) for name, seconds in seen.items()}


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each figure's median over the rounds that have it."""
    names = dict.fromkeys(name for row in rounds for name in row)
    return {name: statistics.median(row[name] for row in rounds if name in row) for name in names}


def median_clock(work: Callable[[], object], repeats: int) -> float:
    """Median seconds on the clock."""
    return statistics.median(spend(work).clock for _ in range(repeats))


def processor_seconds(pid: int) -> float:
    """User and system time of a process, of its children, and of those that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = children_of(pid)
    except (FileNotFoundError, ProcessLookupError):  # it has just ended, and its parent has its time
        return 0.0
    return sum(map(int, fields[11:15])) / _TICK + sum(map(processor_seconds, children))


def children_of(pid: int) -> set[int]:
    """Processes that a process started and that still run."""
    tasks = list(Path(f"/proc/{pid}/task").glob("*/children"))
    return {int(child) for task in tasks for child in task.read_text().split()}


def shared_mb(pid: int) -> float:
    """Proportional share of memory (Pss) of a process and its children in megabytes: what they share counts once."""
    line = next(row for row in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if row.startswith("Pss:"))
    return int(line.split()[1]) / 1000 + sum(map(shared_mb, children_of(pid)))


@contextmanager
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL in memory without fsync, until the end of the block."""
    binaries = find_binaries()
    if binaries is None:
        sys.exit("PostgreSQL is missing (Debian package postgresql)")
    server = PostgresServer(binaries)
    try:
        yield server
    finally:
        server.stop()


def postmaster(server: PostgresServer) -> int:
    """The first process of a PostgreSQL, whose children do its work."""
    return int((server.data / "postmaster.pid").read_text().split()[0])


@contextmanager
def fresh_settings(server: PostgresServer) -> Iterator[Settings]:
    """Settings of a service with an empty home and an empty database."""
    with tempfile.TemporaryDirectory() as home:
        url = server.url(server.create())
        yield Settings(home=Path(home), database_url=url, min_free_bytes=0, allowed_hosts=["testserver"])
