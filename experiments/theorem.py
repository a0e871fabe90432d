"""Theorem 1 on beneficial and optimal concentrations: its formulas, compared with a simulation.

For a case with prediction f and unknown true class probabilities q, three moments decide: ``predicted`` G = 1 − Σf²,
the disagreement that f itself implies; ``observed`` U = E[1 − Σq²], the disagreement of two annotators; ``epistemic``
V = E[Σ_k (q_k − f_k)²], the error of f. (The paper's v_Q lacks the sum over k.) If f is the mean of q, U = G − V, and
both optima are α0 = U/V. Every formula gives a log concentration; −∞ and +∞ are valid answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import altair as alt
import numpy as np
import numpy.typing as npt
from altair.typing import ChartType

from experiments import reproduce_from_arguments
from ml.charts.reliability import apply_chart_style
from ml.charts.results import series_colour
from ml.distributions.families import DirichletCpe, gini
from ml.reproduce.report import Reproduction, Setting
from ml.util.arrays import FloatArray, as_class_probs


@dataclass(frozen=True)
class Moments:
    """The three moments that decide, each (N,) or a number."""

    predicted: FloatArray
    observed: FloatArray
    epistemic: FloatArray

    @classmethod
    def of(cls, true_probs: npt.ArrayLike, class_probs: npt.ArrayLike) -> "Moments":
        """Moments over draws of q (M, N, K) for predictions f (N, K)."""
        q, f = as_class_probs(true_probs, "true_probs"), as_class_probs(class_probs)
        return cls(gini(f), gini(q).mean(axis=0), ((q - f) ** 2).sum(axis=-1).mean(axis=0))


def _log_odds(share: FloatArray) -> FloatArray:
    """Logit of shares clipped to [0, 1]."""
    inside = np.clip(share, 0.0, 1.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(inside) - np.log1p(-inside))


def disagreement_optimum(moments: Moments) -> FloatArray:
    """The log α0 that minimises E(φ − φ_q)² for φ = σ(log α0) G: σ = U/G, or +∞ where U ≥ G."""
    return _log_odds(np.asarray(moments.observed / moments.predicted))


def disagreement_lower_end(moments: Moments) -> FloatArray:
    """The log α0 from which upwards φ is no worse than G itself: σ ≥ 2U/G − 1 (Theorem 1, DPE)."""
    return _log_odds(np.asarray(2 * moments.observed / moments.predicted - 1))


def posterior_optimum(moments: Moments) -> FloatArray:
    """The log α0 that minimises the posterior's EL after any number of labels: ln(U/V)."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(moments.observed) - np.log(moments.epistemic))


def posterior_lower_end(moments: Moments, n_labels: int = 1) -> FloatArray:
    """The log α0 from which upwards the posterior is no worse than the prior: α0 ≥ (U − nV)/(2V)."""
    with np.errstate(divide="ignore"):
        excess = np.maximum(moments.observed - n_labels * moments.epistemic, 0.0)
        return np.asarray(np.log(excess) - np.log(2 * moments.epistemic))


def disagreement_error(moments: Moments, log_concentration: npt.ArrayLike) -> FloatArray:
    """(φ − U)² for φ = σ(log α0) G: what α0 can change of E(φ − φ_q)²; the rest is the variance of φ_q."""
    share = 1 / (1 + np.exp(-np.asarray(log_concentration, dtype=np.float64)))
    return np.asarray((share * moments.predicted - moments.observed) ** 2)


def posterior_epistemic_error(moments: Moments, log_concentration: npt.ArrayLike, n_labels: int = 1) -> FloatArray:
    """EL of the posterior after n labels: γ²V + (1 − γ)²U/n, γ = α0/(α0 + n)."""
    prior = 1 / (1 + np.exp(np.log(n_labels) - np.asarray(log_concentration, dtype=np.float64)))
    return np.asarray(prior**2 * moments.epistemic + (1 - prior) ** 2 * moments.observed / n_labels)


class Optimum(TypedDict):
    """Where a curve over the log concentration is lowest."""

    curve: str
    log_concentration: float


class ConcentrationPoint(TypedDict):
    """A squared error at one log concentration by formula and, at some of them, by simulation."""

    prediction: str
    curve: str
    log_concentration: float
    value: float
    simulated: float | None


def concentration_chart(rows: Sequence[ConcentrationPoint], optima: Sequence[Optimum]) -> ChartType:
    """Error of the DPE and of the posterior against log α0, with the optima of Theorem 1 and simulated points."""
    names = list(dict.fromkeys(row["curve"] for row in rows))
    x = alt.X("log_concentration:Q", title="log concentration log α0")
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, color=series_colour("curve", names))
    lines = base.mark_line().encode(
        y=alt.Y("value:Q", title="squared error"), strokeDash=alt.StrokeDash("curve:N", sort=names, legend=None)
    )
    simulated = [row for row in rows if row["simulated"] is not None]
    dots = (
        alt.Chart(alt.Data(values=simulated))
        .mark_circle(size=35)
        .encode(x=x, y="simulated:Q", color=series_colour("curve", names))
    )
    rules = (
        alt.Chart(alt.Data(values=optima))
        .mark_rule(strokeDash=[4, 4])
        .encode(x="log_concentration:Q", color=series_colour("curve", names))
    )
    return apply_chart_style((rules + lines + dots).properties(width=440, height=280))


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


def main() -> None:
    reproduce_from_arguments("theorem-1", __doc__, reproduce)


if __name__ == "__main__":
    main()
