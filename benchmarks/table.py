"""Every goal of speed in one table: figure reached, peers and limit, from the newest results.

    python -m benchmarks.table            # the table of benchmarks/results
    python -m benchmarks.table --run      # run every benchmark that has a goal first, one after the other, and save
    python -m benchmarks.table --quick    # run all of them shortly and save nothing: whether they still run

The goals are in ``goals.toml``.
"""

import argparse
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass, field
from datetime import date

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.harness import RESULTS, ROOT
from tools.document_numbers import NumberError, value_at

#: Modules by whether their measurements have goals; those that have none show how the service grows and holds.
WITH_GOALS = (
    "serving",
    "steady",
    "reading",
    "labels",
    "reports",
    "repredicting",
    "evaluation",
    "calibration",
    "training",
    "int8",
    "ensembles",
    "specimens",
    "start_and_size",
)
WITHOUT_GOALS = ("large_inputs", "service", "unit_costs", "scaling", "health")
HEADS = ("user", "job", "goal", "reached", "", "peers", "limit", "of")


@dataclass(frozen=True)
class Goal:
    """A goal, as in ``goals.toml``."""

    user: str
    job: str
    least: float | None = None
    most: float | None = None
    next: bool = False
    file: str = ""
    at: str = ""
    limit: str = ""
    peers: dict[str, str] = field(default_factory=dict)

    def in_words(self) -> str:
        """The goal itself."""
        return f"at least {self.least:g}" if self.most is None else f"at most {self.most:g}"

    def holds(self, value: float) -> bool:
        """Whether a figure is as good as the goal."""
        return value <= self.most if self.most is not None else value >= (self.least or 0)

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        paths = sorted(RESULTS.glob(f"20*_{self.file}")) if self.file else []
        note, day = "next" if self.next else "", paths[-1].name[:10] if paths else "not measured here"
        try:
            value = value_at(self.file, self.at)
            peers = ", ".join(f"{name} {value_at(self.file, path):.2f}" for name, path in self.peers.items())
        except NumberError:
            day += ", without it" if paths else ""
            return (self.user, self.job, self.in_words(), "–", note, "", self.limit, day)
        reached = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        missed = "" if self.holds(value) or self.next else "missed"
        return (self.user, self.job, self.in_words(), reached, note or missed, peers, self.limit, day)


def goals() -> list[Goal]:
    """All goals."""
    document = tomllib.loads((ROOT / "benchmarks" / "goals.toml").read_text())
    return [Goal(**entry) for entry in document["goals"]]


def as_markdown(rows: list[tuple[str, ...]]) -> str:
    """The table as a document."""
    missed = sum(cells[4] == "missed" for cells in rows)
    lines = [
        "# Goals of speed",
        "",
        f"From the newest results by `python -m benchmarks.table`; {missed} are missed.",
        "",
    ]
    lines += [f"| {' | '.join(HEADS)} |", "|" + " --- |" * len(HEADS)]
    lines += [f"| {' | '.join(cells)} |" for cells in rows]
    return "\n".join(lines) + "\n"


def run(modules: tuple[str, ...], option: str) -> list[str]:
    """Run benchmarks, each as a process; gives the modules of those that failed."""
    failed = []
    for module in modules:
        print(f"\n== {module} {option}", flush=True)
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{module}", option], check=False)
        print(f"== {module}: {time.monotonic() - began:.0f} s", flush=True)
        if done.returncode:
            failed.append(module)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="run the benchmarks with goals and save their results")
    parser.add_argument("--quick", action="store_true", help="run all benchmarks shortly and save nothing")
    parser.add_argument("--save", action="store_true", help="write the table to benchmarks/results/DATE_goals.md")
    options = parser.parse_args()
    if options.quick:
        failed = run(WITH_GOALS + WITHOUT_GOALS, "--quick")
    else:
        failed = run(WITH_GOALS, "--save") if options.run else []
        rows = [goal.cells() for goal in goals()]
        if options.save or options.run:
            (RESULTS / f"{date.today()}_goals.md").write_text(as_markdown(rows))
        table, console = Table(*HEADS), Console()
        for cells in rows:
            table.add_row(*map(escape, cells))
        Console(width=max(console.width, 150)).print(table)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
