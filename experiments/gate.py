"""Operating characteristics of the gate: how often it passes candidates whose worth is known.

    python -m experiments.gate --runs 1000 --save

Five annotators, 1,000 cases in each partition, a tenth read twice for certain and a tenth of the others for audit
(experiments/worlds/gate_worlds.py). The candidates are judged by the code that the service calls. A run that was ended
goes on where it stopped when it is asked for again.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import altair as alt
import numpy as np
from altair.typing import ChartType
from scipy.stats import norm

from app.recalibration.gate_decision import FALSE_REFUSALS
from experiments import RESULTS
from experiments.worlds.gate_trials import Looks, leaning, passes
from experiments.worlds.gate_worlds import N_ANNOTATORS, World, worlds
from ml.charts.reliability import GREY, apply_chart_style, write_chart
from ml.charts.results import SERIES
from ml.metrics.jackknife import binomial_interval

LOOKS: dict[Looks, str] = {
    "new": "new labels each time",
    "growing": "all labels so far",
    "same": "the same labels again",
}
#: Runs after which the next world has its turn, and runs of each world in which the rule of stability is read twice.
ROUND, READINGS = 100, 200
#: Standard errors at which both readings of the rule of stability are compared.
LIMITS = (2.0, float(norm.isf(FALSE_REFUSALS / (2 * N_ANNOTATORS))))


@dataclass(frozen=True)
class PassRow:
    """Pass rate of a gate for candidates of one kind.

    Attributes:
        world: what the candidates are.
        share: of runs that passed.
        low: lower end of its 95 % interval.
        high: upper end.
        wanted_low: least share that is wanted.
        wanted_high: largest share.
    """

    world: str
    share: float
    low: float
    high: float
    wanted_low: float
    wanted_high: float


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


def simulate(world: World, known: Passed | None, runs: int, looks: Looks) -> Passed:
    """Try the gate in further independent runs of a world, until there are so many."""
    began, first = time.process_time(), 0 if known is None else known.runs
    found = np.zeros(world.attempts + 1, dtype=np.int64)
    for seed in range(first, runs):
        found[passes(world, seed, looks)] += 1
    by_attempt = found[1:] + (0 if known is None else np.array(known.by_attempt))
    seconds = time.process_time() - began + (0.0 if known is None else known.cpu_seconds)
    passed, goal = int(by_attempt.sum()), world.passes
    return Passed(world.name, LOOKS[looks], world.attempts, runs, passed, *goal, by_attempt.tolist(), round(seconds, 1))


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


def gate_chart(rows: Sequence[PassRow]) -> ChartType:
    """Share of candidates that a gate passes, with 95 % bars; in grey what is wanted."""
    base = alt.Chart(alt.Data(values=[asdict(row) for row in rows])).encode(
        y=alt.Y("world:N", sort=None, title=None, axis=alt.Axis(labelLimit=300))
    )
    scale = alt.Scale(domain=[0, 1])
    x = alt.X("share:Q", title="share of runs that pass", scale=scale, axis=alt.Axis(format="%"))
    target_bars = base.mark_bar(opacity=0.25, color=GREY, height=14).encode(
        x=alt.X("wanted_low:Q", scale=scale), x2="wanted_high:Q"
    )
    bars = base.mark_rule(color=SERIES[0]).encode(x="low:Q", x2="high:Q")
    points = base.mark_point(filled=True, size=60, color=SERIES[0], opacity=1).encode(x=x)
    return apply_chart_style(alt.layer(target_bars, bars, points).properties(width=380, height=26 * len(rows)))


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
    """Try all worlds, a round of runs each in turn, and keep after each what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1_000, help="of each world")
    parser.add_argument("--looks-runs", type=int, default=0, help="of ten attempts on the same and on growing labels")
    parser.add_argument("--save", action="store_true", help="keep numbers, table and chart in benchmarks/results")
    asked = parser.parse_args()
    command = f"python -m experiments.gate --runs {asked.runs} --looks-runs {asked.looks_runs} --save"
    out = RESULTS / f"{date.today().isoformat()}_gate"
    kept = json.loads((out / "gate.json").read_text()) if asked.save and (out / "gate.json").is_file() else {}
    rows = {(row["world"], row["looks"]): Passed(**row) for row in kept.get("worlds", [])}
    wanted: list[tuple[World, Looks, int]] = [(world, "new", asked.runs) for world in worlds()]
    several = [world for world in worlds() if world.attempts > 1]
    wanted += [(world, looks, asked.looks_runs) for world in several for looks in ("same", "growing")]
    stability = kept.get("stability") or [
        readings(world, min(asked.runs, READINGS))
        for world in worlds()
        if world.passes[0] > 0 or world.name == "lives on one annotator"
    ]
    for until in range(ROUND, max(runs for _, _, runs in wanted) + ROUND, ROUND):
        for world, looks, runs in wanted:
            known = rows.get((world.name, LOOKS[looks]))
            if (known.runs if known else 0) < min(until, runs):
                rows[world.name, LOOKS[looks]] = simulate(world, known, min(until, runs), looks)
                print(table([rows[world.name, LOOKS[looks]]]).splitlines()[-1], file=sys.stderr, flush=True)
            if asked.save:
                order = [(one.name, LOOKS[kind]) for one, kind, _ in wanted]
                save(out, command, [rows[name] for name in order if name in rows], stability)
    print(table(list(rows.values())), readings_table(stability), sep="\n\n")


if __name__ == "__main__":
    main()
