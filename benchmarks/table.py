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
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.serving import PER_CORE

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


def _times(ours: str, theirs: str) -> Callable[[Document], float]:
    """How many times as long as we one of the others takes, of a million cases."""
    return lambda found: float(found["N=1000000"][theirs] / found["N=1000000"][ours])


def _fastest_library(found: Document) -> str:
    names = ("torchmetrics, ECE and accuracy", "scikit-learn, curve and Brier a class")
    known = {name: found["N=1000000"][name] for name in names if name in found["N=1000000"]}
    if not known:
        return ""
    fastest = min(known, key=lambda name: known[name])
    return f"{fastest} {known[fastest]:.2f} s, ours {found['N=1000000']['secondread, all metrics']:.2f} s"


def _bare_rows(found: Document) -> str:
    spent = (found["figures"][f"the same rows bare, {name}, 10⁶ at this rate (s)"] for name in ("PostgreSQL", "SQLite"))
    return "the rows bare: PostgreSQL {:.0f} s, SQLite {:.0f} s".format(*spent)


BENCHMARKS = (
    Benchmark("serving", quick=("--no-peers", "--rounds", "1", "--seconds", "0.4")),
    Benchmark("predicting", ("--network", "vgg16", "--rounds", "5", "--save"), ("--rounds", "1", "--seconds", "0.4")),
    Benchmark("labels", quick=("--quick",)),
    Benchmark("label_studio"),  # not in the quick run, which installs no peers
    Benchmark("answering", quick=("--reads", "5")),
    Benchmark("evaluation", quick=("--quick",)),
    Benchmark("calibration", quick=("--quick",)),
    Benchmark("posteriors", quick=("--cases", "1000", "--rounds", "1")),
    Benchmark("training", quick=("--quick",)),
    Benchmark("input_pipeline", quick=("--images", "100", "--cells", "300", "--epochs", "2", "--rounds", "1")),
    Benchmark("demo_release"),
    Benchmark("start_and_size", quick=("--rounds", "1", "--idle-seconds", "0.5")),
    Benchmark("steady", quick=("--n", "60")),
    Benchmark("flames"),  # not in the quick run: not everybody may look at other processes
    Benchmark("snapshot", (DEMO, "--save"), (DEMO, "--cases", "2000")),
    Benchmark("repredicting", (DEMO, "--save"), (DEMO, "--cases", "1000")),
    Benchmark("report", (DEMO, "--save"), (DEMO, "--cases", "200")),
    Benchmark("reading", (DEMO, "--save")),
    Benchmark("scaling", quick=("--quick",)),
    Benchmark("int8", quick=("--quick",)),
)
ROWS = (
    *(
        Row(
            f"predict, {body}{processes}, {n} clients: of ONNX Runtime alone",
            "serving",
            goal,
            _at("servers", f"{body}{processes}", str(n), "of raw"),
            peer=_peers(n),
            limit="1",
        )
        for processes in ("", PER_CORE)
        for body, goal in (("raw body", 0.34), ("multipart", 0.28))
        for n in (8, 32)
    ),
    *(
        Row(
            f"predict, multipart{processes}, 8 clients: of LitServe",
            "serving",
            1.6,
            _at("servers", f"multipart{processes}", "8", "of LitServe"),
        )
        for processes in ("", PER_CORE)
    ),
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
    Row(
        "predict, VGG16, raw body, 8 clients: of ONNX Runtime alone",
        "predicting_vgg16",
        0.95,
        _at("figures", "raw body, 8 clients", "of_raw"),
        limit="1",
    ),
    Row(
        "predict, VGG16, 32 clients: of ONNX Runtime alone",
        "predicting_vgg16",
        0.95,
        _at("figures", "raw body, 32 clients", "of_raw"),
        limit="1",
    ),
    Row(
        "predict, VGG16, alone: p50 of ONNX Runtime's",
        "predicting_vgg16",
        1.08,
        _at("figures", "raw body, 1 clients", "p50_of_raw"),
        most=True,
        limit="1",
    ),
    Row(
        "predict, VGG16, 32 clients: p99 of p50",
        "predicting_vgg16",
        1.2,
        _at("figures", "raw body, 32 clients", "p99_of_p50"),
        most=True,
        limit="1",
    ),
    Row(
        "memory after 10,000 uploads and predictions",
        "steady",
        1.05,
        _at("figures", "ratio"),
        most=True,
        limit="1",
    ),
    Row(
        "predict and store a case, one process: of predicting alone",
        "scaling",
        0.5,
        lambda found: (
            float(found["processes"]["cases"]["1"]["per second"])
            / float(found["processes"]["predictions"]["1"]["per second"])
        ),
        limit="1",
    ),
    *(
        Row(
            f"labels at an offered 30 per second, {name}: p99 (ms)",
            "labels",
            50,
            _at("figures", name.lower(), "p99 in ms"),
            most=True,
        )
        for name in ("SQLite", "PostgreSQL")
    ),
    Row(
        "next case and label, one annotator, SQLite: of Label Studio",
        "label_studio",
        1.0,
        _at("figures", "of Label Studio"),
        peer=lambda found: f"Label Studio {found['figures']['Label Studio, labels per second']:.0f} per second",
    ),
    Row("an answer in the browser (ms of the server)", "answering", 20.0, _at("figures", "an answer (ms)"), most=True),
    Row(
        "evaluation, N = 10⁶, K = 22: of the authors' code",
        "evaluation",
        9,
        _times("secondread, all metrics", "the authors' code"),
        peer=_fastest_library,
    ),
    Row(
        "intervals by patient, N = 10⁶: of the evaluation",
        "evaluation",
        3.0,
        lambda found: 1 / _times("every interval, by patients of four cases", "secondread, all metrics")(found),
        most=True,
    ),
    Row("posteriors of 10⁶ cases (s)", "posteriors", 2.0, _at("figures", "posteriors (s)"), most=True),
    Row("fit the concentration head: of Adam", "calibration", 50, _at("ratio", "head")),
    Row("fit the temperature: of Adam", "calibration", 100, _at("ratio", "temperature")),
    Row(
        "a training step: of plain float32",
        "training",
        2.5,
        lambda found: max(float(row["ratio"]) for row in found["rows"].values()),
    ),
    Row(
        "input of a training step: share of it",
        "input_pipeline",
        0.1,
        lambda found: max(float(row["later epochs"]) for row in found["share of a step"].values()),
        most=True,
    ),
    Row("images decoded before: of decoding them", "input_pipeline", 10.0, _at("kept of decoded")),
    Row("the simulated demo's release (s)", "demo_release", 20.0, _at("seconds", "all"), most=True),
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
        "recalibrate and predict 10⁶ old cases anew (s)",
        "repredicting",
        10.0,
        _at("figures", "the job without the snapshot, 10⁶ at this rate (s)"),
        most=True,
        peer=_bare_rows,
    ),
    Row(
        "the worker's report, 10⁵ cases (CPU s)",
        "report",
        10.0,
        _at("figures", "the worker's job, 100,000 cases (CPU s)"),
        most=True,
    ),
    *(
        Row(name, "start_and_size", goal, _at("figures", name), most=True)
        for name, goal in (
            ("serve ready (s)", 2.0),
            ("--help (s)", 0.3),
            ("import secondread (s)", 0.5),
            ("idle server and worker, Pss (MB)", 300.0),
            ("installation (MB)", 480.0),
        )
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


HEADS = ("job", "goal", "reached", "", "best peer", "limit", "of")


def rows() -> list[tuple[str, ...]]:
    """Job, goal, what was reached, whether it was missed, best peer, limit and date of each row."""
    found: list[tuple[str, ...]] = []
    for row in ROWS:
        result = newest(row.stem)
        if result is None:
            found.append((row.job, _goal(row), "–", "", "", row.limit, "not yet run"))
            continue
        day, document = result
        try:
            value, peer = row.reached(document), row.peer(document)
        except KeyError:
            found.append((row.job, _goal(row), "–", "", "", row.limit, f"{day}, without it"))
            continue
        missed = "" if row.holds(value) else "missed"
        found.append((row.job, _goal(row), f"{value:.3g}", missed, peer, row.limit, day))
    return found


def table() -> Table:
    """Goals and what was reached."""
    made = Table(*HEADS)
    for cells in rows():
        made.add_row(*map(escape, cells))
    return made


def as_markdown() -> str:
    """The same as a document."""
    missed = sum(cells[3] == "missed" for cells in rows())
    lines = [
        "# Goals of speed",
        "",
        f"From the newest results by `python -m benchmarks.table`; {missed} are missed.",
        "",
    ]
    lines += [f"| {' | '.join(HEADS)} |", "|" + " --- |" * len(HEADS)]
    lines += [f"| {' | '.join(cells)} |" for cells in rows()]
    return "\n".join(lines) + "\n"


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
    parser.add_argument("--save", action="store_true", help="write the table to benchmarks/results/DATE_goals.md")
    options = parser.parse_args()
    failed = run(quick=options.quick) if options.run or options.quick else []
    if options.save or options.run:
        (RESULTS / f"{date.today()}_goals.md").write_text(as_markdown())
    if not options.quick:
        console = Console()
        Console(width=max(console.width, 132)).print(table())
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
