"""Operating characteristics of the gate: how often it passes candidates whose worth is known.

    python -m benchmarks.gate --runs 1000 --save

Five annotators, 1,000 cases in each partition, a tenth read twice for certain and a tenth of the others for audit
(tests/simulation/gate_worlds.py). The candidates are judged by the code that the service calls. Results are kept after
each world, so that a long run may be ended.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import numpy as np
from scipy.stats import norm

from app.recalibration.stability import FALSE_REFUSALS
from ml.charts.reliability import write_chart
from ml.charts.results import gate_chart
from ml.charts.rows import PassRow
from ml.metrics.intervals import binomial_interval
from tests.simulation.gate_trials import Looks, leaning, passes
from tests.simulation.gate_worlds import N_ANNOTATORS, World, worlds

LOOKS: dict[Looks, str] = {
    "new": "new labels each time",
    "growing": "all labels so far",
    "same": "the same labels again",
}
#: Standard errors at which both readings of the rule of stability are compared.
LIMITS = (2.0, float(norm.isf(FALSE_REFUSALS / (2 * N_ANNOTATORS))))


@dataclass(frozen=True)
class Passed:
    """Runs of one world in which the gate passed a candidate."""

    world: str
    looks: str
    attempts: int
    runs: int
    passed: int
    wanted_low: float
    wanted_high: float
    by_attempt: list[int]
    cpu_seconds: float

    @property
    def share(self) -> float:
        return self.passed / self.runs

    @property
    def error(self) -> float:
        """Monte-Carlo standard error of the share."""
        return float(np.sqrt(self.share * (1 - self.share) / self.runs))

    @property
    def met(self) -> bool:
        return self.wanted_low <= self.share <= self.wanted_high

    def row(self) -> PassRow:
        low, high = binomial_interval(np.array([self.share]), np.array([self.runs]))
        name = self.world if self.attempts == 1 else f"{self.world}, {self.attempts} attempts"
        return PassRow(name, self.share, float(low[0]), float(high[0]), self.wanted_low, self.wanted_high)


def simulate(world: World, runs: int, looks: Looks = "new") -> Passed:
    """Try the gate in independent runs of a world."""
    began, found = time.process_time(), np.zeros(world.attempts + 1, dtype=np.int64)
    for seed in range(runs):
        found[passes(world, seed, looks)] += 1
        if seed % 50 == 49:
            print(f"{world.name}, {LOOKS[looks]}: {seed + 1:,} of {runs:,}", file=sys.stderr, flush=True)
    seconds = round(time.process_time() - began, 1)
    goal, passed = world.passes, int(found[1:].sum())
    return Passed(world.name, LOOKS[looks], world.attempts, runs, passed, *goal, found[1:].tolist(), seconds)


def readings(world: World, runs: int) -> dict[str, float | str]:
    """Share of runs that either reading of the rule of stability refuses."""
    found = [leaning(world, seed) for seed in range(runs)]
    row: dict[str, float | str] = {"world": world.name, "runs": runs}
    for limit in LIMITS:
        row[f"leans by {limit:.1f}"] = float(np.mean([one.shift > limit for one in found]))
        row[f"turned by {limit:.1f}"] = float(np.mean([one.turned > limit for one in found]))
    return row


def table(rows: list[Passed]) -> str:
    """The rows as Markdown."""
    lines = ["| candidate | attempts | runs | passes | wanted | |", "|---|---|---|---|---|---|"]
    for row in rows:
        wanted = f"at least {row.wanted_low:.0%}" if row.wanted_high == 1 else f"at most {row.wanted_high:.1%}"
        attempts = "1" if row.attempts == 1 else f"{row.attempts}, {row.looks}"
        lines.append(
            f"| {row.world} | {attempts} | {row.runs:,} | {row.share:.1%} ± {row.error:.1%} | {wanted} | "
            f"{'met' if row.met else 'missed'} |"
        )
    return "\n".join(lines)


def readings_table(rows: list[dict[str, float | str]]) -> str:
    """Both readings of the rule of stability as Markdown."""
    if not rows:
        return ""
    names = [name for name in rows[0] if name not in {"world", "runs"}]
    lines = ["| candidate | runs | " + " | ".join(names) + " |", "|---|---|" + "---|" * len(names)]
    for row in rows:
        shares = " | ".join(f"{float(row[name]):.1%}" for name in names)
        lines.append(f"| {row['world']} | {row['runs']} | {shares} |")
    return "\n".join(lines)


def save(out: Path, command: str, rows: list[Passed], stability: list[dict[str, float | str]]) -> None:
    """Write numbers, table and chart."""
    out.mkdir(parents=True, exist_ok=True)
    document = {"command": command, "worlds": [asdict(row) for row in rows], "stability": stability}
    (out / "gate.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    text = (
        f"# The gate's operating characteristics\n\n`{command}`; ± is the Monte-Carlo standard error.\n\n"
        f"![Share of candidates that pass](gate.svg)\n\n{table(rows)}\n\n## Two readings of the rule of stability\n\n"
        "Share of candidates that are refused because the change without one annotator is worse than the change by all "
        "labels (*leans*), or is itself above zero (*turned*), by more than so many standard errors of their "
        f"difference.\n\n{readings_table(stability)}\n"
    )
    (out / "gate.md").write_text(text)
    write_chart(gate_chart([row.row() for row in rows if row.looks == LOOKS["new"]]), out / "gate.svg")


def main() -> None:
    """Try all worlds, print the table, and keep it where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1_000, help="of each world")
    parser.add_argument("--save", action="store_true", help="keep numbers, table and chart in benchmarks/results")
    asked = parser.parse_args()
    command = f"python -m benchmarks.gate --runs {asked.runs}{' --save' if asked.save else ''}"
    out = Path(__file__).parent / "results" / f"{date.today().isoformat()}_gate"
    rows: list[Passed] = []
    stability: list[dict[str, float | str]] = []
    for world in worlds():
        rows.append(simulate(world, asked.runs))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
        if asked.save:
            save(out, command, rows, stability)
    for world in worlds():
        if world.passes[0] > 0 or world.name == "lives on one annotator":
            stability.append(readings(world, min(asked.runs, 300)))
    for world in (world for world in worlds() if world.attempts > 1):
        rows += [simulate(world, min(asked.runs, 300), looks) for looks in ("growing", "same")]
    print(table(rows), readings_table(stability), sep="\n\n")
    if asked.save:
        save(out, command, rows, stability)


if __name__ == "__main__":
    main()
