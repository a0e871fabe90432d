"""Theorem 1 on beneficial and optimal concentrations, compared with a simulation."""

import numpy as np
from altair.typing import ChartType

from ml.calibration.optimal_concentration import (
    Moments,
    disagreement_error,
    disagreement_lower_end,
    disagreement_optimum,
    posterior_epistemic_error,
    posterior_lower_end,
    posterior_optimum,
)
from ml.charts.results import concentration_chart
from ml.charts.rows import ConcentrationPoint, Optimum
from ml.distributions.families import DirichletCpe
from ml.reproduce.setting import Reproduction, Setting
from ml.util.arrays import FloatArray

TRUE_LOG_CONCENTRATION = float(np.log(3.0))
MEAN = np.array([0.5, 0.3, 0.2])
BIASED = np.array([0.4, 0.33, 0.27])
GRID = np.linspace(-4, 5, 91)
SIMULATED_AT = np.linspace(-4, 5, 13)


def _simulated(q: FloatArray, f: FloatArray, a: float, rng: np.random.Generator) -> tuple[float, float]:
    """Squared error of the mean DPE, and EL of the posterior after one label, by drawing labels."""
    prior = DirichletCpe(np.tile(f, (len(q), 1)), np.full(len(q), a))
    label_counts = rng.multinomial(1, q)
    after = float(((prior.posterior(label_counts).class_probs - q) ** 2).sum(axis=1).mean())
    observed = float((1 - (q**2).sum(axis=1)).mean())
    return float((prior.disagreement_probs[0] - observed) ** 2), after


def reproduce(setting: Setting) -> Reproduction:
    """Curves, optima and intervals for a right and for a biased prediction."""
    rng = np.random.default_rng(setting.seeds[0])
    q = rng.dirichlet(np.exp(TRUE_LOG_CONCENTRATION) * MEAN, 20_000 if setting.quick else 200_000)
    rows: list[ConcentrationPoint] = []
    charts: dict[str, ChartType] = {}
    lines = [
        "| prediction | curve | best log α0 | helps from | best of the simulated points |",
        "|---|---|---|---|---|",
    ]
    for done, (name, f) in enumerate((("right", MEAN), ("biased", BIASED))):
        moments = Moments.of(q[:, None, :], f[None])
        points = {float(a): _simulated(q, f, float(a), rng) for a in SIMULATED_AT}
        curve_rows: list[ConcentrationPoint] = []
        optima: list[Optimum] = []
        curves = (
            ("disagreement", disagreement_error, disagreement_optimum, disagreement_lower_end),
            ("posterior", posterior_epistemic_error, posterior_optimum, posterior_lower_end),
        )
        for index, (curve, error, optimum, end) in enumerate(curves):
            best, lowest = float(optimum(moments)[0]), float(end(moments)[0])
            values: list[tuple[float, float, float | None]]
            values = [(float(a), float(error(moments, a)[0]), None) for a in GRID]
            values += [(a, float(error(moments, a)[0]), pair[index]) for a, pair in points.items()]
            curve_rows += [
                {"prediction": name, "curve": curve, "log_concentration": a, "value": v, "simulated": s}
                for a, v, s in sorted(values, key=lambda point: point[0])
            ]
            if np.isfinite(best):
                optima.append({"curve": curve, "log_concentration": best})
            nearest = min(points, key=lambda a: points[a][index])
            lines.append(f"| {name} | {curve} | {best:.2f} | {lowest:.2f} | {nearest:.2f} |")
        rows += curve_rows
        charts[f"concentration_{name}"] = concentration_chart(curve_rows, optima)
        setting.observer("simulating", done + 1, 2)
    text = f"True class probabilities from Dir(3 · {MEAN.tolist()}); predictions {MEAN.tolist()} (right) and "
    text += f"{BIASED.tolist()} (biased). ln 3 = {TRUE_LOG_CONCENTRATION:.2f}. Lines: formulas; dots: simulation.\n\n"
    return Reproduction("Theorem 1: optimal log α0", rows, text + "\n".join(lines), charts)
