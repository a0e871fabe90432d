"""Simulation study of estimator bias and interval coverage with known truth.

A simulation with known truth.

Four panels: independent cases and cases of patients who share an error, all read twice or more; and cases of patients
of which a service reads a fifth twice, by the all-or-audit design and by the graded one, weighted back.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ml.charts.results import coverage_chart
from ml.charts.rows import CoverageRow
from ml.metrics.jackknife import Estimate, ModelAssisted
from ml.reproduce.coverage_worlds import Simulated, designs, draw, estimate_service_design, of_everybody, truths
from ml.reproduce.setting import Reproduction, Setting

SIZES, SERVICE_SIZES = (100, 1_000), (500, 2_000)
RUNS, SERVICE_RUNS, QUICK_RUNS = 1_000, 4_000, 40
LARGE, QUICK_LARGE = 4_000_000, 40_000

Estimates = Mapping[str, Estimate | ModelAssisted]


@dataclass
class Tally:
    """Estimates of one estimator in run after run, and on which side their intervals missed."""

    values: list[float] = field(default_factory=list)
    low: int = 0
    high: int = 0

    def add(self, estimate: Estimate | ModelAssisted, truth: float) -> None:
        """Count one run."""
        self.values.append(estimate.value)
        self.low += estimate.low is None or truth < estimate.low
        self.high += estimate.high is None or truth > estimate.high

    def row(self, name: str, n_cases: int, panel: str, truth: float) -> CoverageRow:
        """Summarise the runs as a row."""
        runs, spread = len(self.values), float(np.std(self.values, ddof=1))
        bias = float(np.mean(self.values) - truth)
        covered = 1 - (self.low + self.high) / runs
        error = spread / float(np.sqrt(runs))
        return CoverageRow(
            name, n_cases, panel, truth, bias, error, spread, covered, self.high / runs, self.low / runs, runs
        )


def simulate(
    panel: str,
    n_cases: int,
    runs: int,
    one: Callable[[int], Simulated],
    estimates: Callable[[Simulated], Estimates],
    aims: Mapping[str, float],
    observer: Any = lambda what, done, total: None,
) -> list[CoverageRow]:
    """Estimate everything in run after run.

    Args:
        panel: name.
        n_cases: N.
        runs: how many.
        one: draws N cases.
        estimates: of them.
        aims: truth of each estimator.
        observer: told what is being done.
    """
    tallies: dict[str, Tally] = {}
    for done in range(runs):
        for name, estimate in estimates(one(n_cases)).items():
            tallies.setdefault(name, Tally()).add(estimate, aims[name])
        observer(f"N = {n_cases}, {panel}", done + 1, runs)
    return [tally.row(name, n_cases, panel, aims[name]) for name, tally in tallies.items()]


def run(seed: int = 0, *, quick: bool = False, observer: Any = lambda what, done, total: None) -> list[CoverageRow]:
    """Simulate every estimator at every size: without patients, with them, and by the designs of a service."""
    runs, large = (QUICK_RUNS, QUICK_LARGE) if quick else (RUNS, LARGE)
    rows, aims = [], {}
    for clustered, panel in ((False, "independent cases"), (True, "by patient")):
        rng = np.random.default_rng([seed, clustered])
        aims = truths(draw(large, rng, clustered=clustered))
        for n_cases in SIZES:
            one = drawing(rng, clustered=clustered)
            rows += simulate(panel, n_cases, runs, one, of_everybody, aims, observer)
    return rows + run_service(seed, aims, quick=quick, observer=observer)


def run_service(
    seed: int, aims: Mapping[str, float], *, quick: bool = False, observer: Any = lambda what, done, total: None
) -> list[CoverageRow]:
    """Simulate what a service estimates under both designs, patients of ten cases each; ``aims`` of such cases."""
    runs, sizes = (QUICK_RUNS, SERVICE_SIZES[:1]) if quick else (SERVICE_RUNS, SERVICE_SIZES)
    rows = []
    for panel, design in designs(np.random.default_rng([seed, 2]), QUICK_LARGE).items():
        rng = np.random.default_rng([seed, 3])
        for n_cases in sizes:
            one = drawing(rng, clustered=True, design=design)
            rows += simulate(panel, n_cases, runs, one, estimate_service_design, aims, observer)
    return rows


def drawing(rng: np.random.Generator, **options: Any) -> Callable[[int], Simulated]:
    """Draw as many cases as asked for, with the options of ``draw``."""
    return lambda n_cases: draw(n_cases, rng, **options)


def reproduce(setting: Setting) -> Reproduction:
    """Table and figure of bias and coverage."""
    rows = run(setting.seeds[0], quick=setting.quick, observer=setting.observer)
    columns = ("panel", "estimator", "cases", "runs", "truth", "bias (in its own error)", "spread", "coverage")
    lines = [f"| {' | '.join(columns)} | truth above, below |", "|---" * 9 + "|"]
    for row in rows:
        bias = f"{row.bias:+.5f} ({row.bias / row.bias_se:+.1f})"
        lines.append(
            f"| {row.panel} | {row.estimator} | {row.n_cases:,} | {row.runs:,} | {row.truth:.4f} | {bias} | "
            f"{row.spread:.4f} | {row.coverage:.3f} | {row.above:.3f}, {row.below:.3f} |"
        )
    return Reproduction(
        what="Bias of the estimators and coverage of their 95 % intervals",
        rows=[asdict(row) for row in rows],
        text="\n".join(lines),
        charts={"coverage": coverage_chart(rows)},
    )
