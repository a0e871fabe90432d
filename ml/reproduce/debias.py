"""Paper's Figure 2: debiased EL and CL of a perfect predictor are 0."""

from dataclasses import asdict
from typing import Any

import numpy as np

from ml.charts.reliability import debias_figure
from ml.charts.rows import ZeroMeanRow
from ml.metrics.accumulator import Accumulator
from ml.reproduce.report import Observer, Reproduction, Setting, show_nothing
from ml.reproduce.scoring import markdown_table

LABELS = (2, 5)
SIZES = (100, 300, 1_000, 3_000, 10_000)
RUNS, QUICK_RUNS = 200, 30
#: Estimators: name → metric of the accumulator and form of the debiasing.
ESTIMATORS: dict[str, tuple[str, Any]] = {
    "EL, debiased": ("EL", "pair"),
    "EL, plug-in": ("EL_plugin", "pair"),
    "CL, pair": ("CL", "pair"),
    "CL, paper": ("CL", "paper"),
    "CL, plug-in": ("CL_plugin", "pair"),
}


def simulate(n_cases: int, n_labels: int, rng: np.random.Generator) -> dict[str, float]:
    """One run: estimates of a perfect predictor on N cases of two classes."""
    positive = rng.uniform(size=n_cases)
    counts = rng.binomial(n_labels, positive)
    acc = Accumulator(2)
    acc.update(np.stack([counts, n_labels - counts], axis=1), np.stack([positive, 1 - positive], axis=1))
    computed = {form: acc.compute(form) for form in ("pair", "paper")}
    return {name: computed[form][metric] for name, (metric, form) in ESTIMATORS.items()}


def run(seed: int = 0, *, quick: bool = False, observer: Observer = show_nothing) -> list[ZeroMeanRow]:
    """Simulate every number of labels and size; a row for each estimator."""
    runs = QUICK_RUNS if quick else RUNS
    rows = []
    settings = [(labels, size) for labels in LABELS for size in SIZES]
    for done, (labels, size) in enumerate(settings):
        rng = np.random.default_rng([seed, labels, size])
        estimates = [simulate(size, labels, rng) for _ in range(runs)]
        for name in ESTIMATORS:
            values = np.array([estimate[name] for estimate in estimates])
            error = float(values.std(ddof=1) / np.sqrt(runs))
            rows.append(ZeroMeanRow(name, labels, size, float(values.mean()), error))
        observer("simulating", done + 1, len(settings))
    return rows


def reproduce(setting: Setting) -> Reproduction:
    """Simulate and draw Figure 2."""
    rows = run(setting.seeds[0], quick=setting.quick, observer=setting.observer)
    lines: dict[tuple[int, int], list[str]] = {}
    for row in rows:
        line = lines.setdefault((row.n_labels, row.n_cases), [str(row.n_labels), f"{row.n_cases:,}"])
        line.append(f"{row.mean:+.5f} ({row.mean / row.se:+.1f})")
    table = markdown_table("labels per case | cases | " + " | ".join(ESTIMATORS), list(lines.values()))
    return Reproduction(
        what="Figure 2: EL and CL of a perfect predictor, whose truth is 0",
        rows=[asdict(row) for row in rows],
        text=f"In brackets: distance from 0 in Monte-Carlo standard errors.\n\n{table}",
        charts={"debias": debias_figure(rows)},
    )
