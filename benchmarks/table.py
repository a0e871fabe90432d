"""Every goal of speed in one table: what was reached, beside the best peer and the limit, from the newest results.

    python -m benchmarks.table            # the table of benchmarks/results
    python -m benchmarks.table --run      # run every benchmark of it first, one after the other, and save
    python -m benchmarks.table --quick    # run them with few rounds and save nothing: whether they still run

Each figure is a ratio, or a count, of one run; where it is a time, the goal is one.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
DEMO = "app/demo/cells/release"
Document = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A goal.

    Attributes:
        job: what is done.
        stem: of the results file, ``DATE_STEM.json``.
        goal: what should be reached.
        reached: finds it in the document.
        most: whether the goal is the most that may be, not the least that must be.
        peer: the best peer's figure in the same run, in words; empty where there is none.
        limit: what nothing can do better than, in words.
    """

    job: str
    stem: str
    goal: float
    reached: Callable[[Document], float]
    most: bool = False
    peer: Callable[[Document], str] = lambda _: ""
    limit: str = ""

    def holds(self, value: float) -> bool:
        """Whether a figure is as good as the goal."""
        return value <= self.goal if self.most else value >= self.goal


@dataclass(frozen=True)
class Benchmark:
    """A benchmark of the table.

    Attributes:
        stem: of its results, and its module.
        full: arguments of a run that is kept.
        quick: arguments of one that shows that it runs.
    """

    stem: str
    full: Sequence[str] = ("--save",)
    quick: Sequence[str] | None = None


def _at(*keys: str) -> Callable[[Document], float]:
    """Finds a figure by the keys that lead to it."""

    def found(document: Document) -> float:
        place: Any = document
        for key in keys:
            place = place[key]
        return float(place)

    return found


def _peers(clients: int) -> Callable[[Document], str]:
    def said(found: Document) -> str:
        names = ("plain FastAPI", "LitServe")
        shares = {name: found["servers"][name][str(clients)]["of raw"] for name in names}
        best = max(shares, key=lambda name: shares[name])
        return f"{best} {shares[best]:.2f}"

    return said


BENCHMARKS = (
    Benchmark("serving", quick=("--rounds", "1", "--seconds", "0.7")),
    Benchmark("evaluation"),
    Benchmark("calibration"),
    Benchmark("training"),
    Benchmark("snapshot", (DEMO, "--save"), (DEMO, "--cases", "2000")),
    Benchmark("report", (DEMO, "--save"), (DEMO, "--cases", "200")),
    Benchmark("reading", (DEMO, "--save")),
    Benchmark("writers", quick=("--rounds", "1", "--seconds", "0.3")),
    Benchmark("scaling", quick=("--quick",)),
    Benchmark("int8", quick=("--quick",)),
)
ROWS = (
    *(
        Row(
            f"predict, raw body, {n} clients: of ONNX Runtime alone",
            "serving",
            0.34,
            _at("servers", "raw body", str(n), "of raw"),
            peer=_peers(n),
            limit="1",
        )
        for n in (8, 32)
    ),
    *(
        Row(
            f"predict, multipart, {n} clients: of ONNX Runtime alone",
            "serving",
            0.28,
            _at("servers", "multipart", str(n), "of raw"),
            peer=_peers(n),
            limit="1",
        )
        for n in (8, 32)
    ),
    Row("predict, multipart, 8 clients: of LitServe", "serving", 1.6, _at("servers", "multipart", "8", "of LitServe")),
    *(
        Row(
            f"predict, {n} clients: p99 of p50",
            "serving",
            3.0,
            _at("servers", "raw body", str(n), "p99 of p50"),
            most=True,
        )
        for n in (8, 32)
    ),
    Row("fit the concentration head: of Adam", "calibration", 50, _at("ratio", "head")),
    Row("fit the temperature: of Adam", "calibration", 100, _at("ratio", "temperature")),
    Row(
        "a training step: of plain float32",
        "training",
        2.5,
        lambda found: max(float(row["ratio"]) for row in found["rows"].values()),
    ),
    Row(
        "GET /v1/metrics, 10⁶ cases, evaluation (s)",
        "snapshot",
        1.0,
        _at("figures", "GET /v1/metrics, evaluation, from the snapshot (s)"),
        most=True,
    ),
    Row(
        "GET /v1/metrics, 10⁶ cases, all (s)",
        "snapshot",
        1.0,
        _at("figures", "GET /v1/metrics, all, from the snapshot (s)"),
        most=True,
    ),
    Row(
        "the worker's report, 10⁵ cases (CPU s)",
        "report",
        10.0,
        _at("figures", "the worker's job, 100,000 cases (CPU s)"),
        most=True,
    ),
    Row(
        "eight writers of events: of the growth of bare inserts",
        "writers",
        0.8,
        _at("commits_per_second", "0 ms", "sealed", "share"),
        limit="1",
    ),
    Row(
        "eight writers, commits of 5 ms: of one writer",
        "writers",
        3.0,
        _at("commits_per_second", "5 ms", "sealed", "growth"),
        limit="8",
    ),
    Row(
        "an int8 release, VGG16, JPEG to prediction: of float32",
        "int8",
        3.3,
        _at("speed", "VGG16", "end to end"),
        limit="3.9",
    ),
)


def newest(stem: str) -> tuple[str, Document] | None:
    """Date and document of the newest results; None where there are none."""
    paths = sorted(RESULTS.glob(f"20*_{stem}.json"))
    return (paths[-1].name[:10], json.loads(paths[-1].read_text())) if paths else None


def table() -> Table:
    """Goals and what was reached."""
    made = Table("job", "goal", "reached", "", "best peer", "limit", "of")
    for row in ROWS:
        found = newest(row.stem)
        if found is None:
            made.add_row(row.job, _goal(row), "–", "", "", row.limit, "not yet run")
            continue
        day, document = found
        value = row.reached(document)
        made.add_row(
            row.job,
            _goal(row),
            f"{value:.3g}",
            "" if row.holds(value) else "missed",
            row.peer(document),
            row.limit,
            day,
        )
    return made


def _goal(row: Row) -> str:
    return f"{'at most' if row.most else 'at least'} {row.goal:g}"


def run(*, quick: bool) -> list[str]:
    """Run the benchmarks, each as a process; gives the modules of those that failed."""
    failed = []
    for benchmark in BENCHMARKS:
        arguments = benchmark.quick if quick else benchmark.full
        if arguments is None:
            continue
        print(f"\n== {benchmark.stem} {' '.join(arguments)}", flush=True)
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{benchmark.stem}", *arguments], check=False)
        print(f"== {benchmark.stem}: {time.monotonic() - began:.0f} s", flush=True)
        if done.returncode:
            failed.append(benchmark.stem)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="run every benchmark and save its results")
    parser.add_argument("--quick", action="store_true", help="run them shortly and save nothing")
    options = parser.parse_args()
    failed = run(quick=options.quick) if options.run or options.quick else []
    if not options.quick:
        console = Console()
        Console(width=max(console.width, 132)).print(table())
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
