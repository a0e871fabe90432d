"""Rows of a report on real labels, where only the labels themselves tell how good predictions are."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from ml.calibration.calibrators import Calibration, calibrate
from ml.calibration.scaling import Method, Scaling
from ml.charts.rows import TriagePoint
from ml.distributions.families import PredictiveDistribution, has_concentration
from ml.metrics import evaluate
from ml.metrics.jackknife import EstimateDocument
from ml.metrics.posterior_gain import posterior_epistemic_loss, posterior_gain
from ml.metrics.triage_curves import triage_recall, uncertainty_scores
from ml.util.arrays import IntArray


class ScoredRow(TypedDict):
    """A method with its metrics by name."""

    method: str
    metrics: dict[str, EstimateDocument]


#: Row of the calibration that a release has.
SERVED = "Raw+ts+α served"
METRICS = ("agreement", "L", "skill", "EL", "CE", "DL", "L_D", "skill_D", "CE_D")
_STEPS: dict[str, Method] = {"+ts": "temperature", "+vector": "vector", "+matrix": "matrix"}


def calibration_steps(
    logits: npt.ArrayLike, features: npt.ArrayLike, counts: IntArray, groups: list[str]
) -> dict[str, Calibration]:
    """Fit every calibration step on the given cases."""
    calibrations = {"Raw": Calibration(Scaling(), None)}
    calibrations["Raw+α"] = calibrate(logits, features, counts, groups, method="none", refined=False).calibration
    for step, method in _STEPS.items():
        for suffix, alpha in (("", False), ("+α", True)):
            fitted = calibrate(logits, features, counts, groups, method=method, alpha=alpha, refined=False)
            calibrations[f"Raw{step}{suffix}"] = fitted.calibration
    calibrations[SERVED] = calibrate(logits, features, counts, groups).calibration
    return calibrations


def scored_rows(
    counts: IntArray, distributions: Mapping[str, PredictiveDistribution], cluster: npt.ArrayLike | None
) -> list[ScoredRow]:
    """Metrics with intervals, and what one expert label gains, for each method."""
    rows: list[ScoredRow] = []
    many = bool((counts.sum(axis=1) >= 3).all())
    for method, distribution in distributions.items():
        evaluation = evaluate(counts, distribution.class_probs, distribution.disagreement_probs, cluster=cluster)
        values = {name: evaluation.metrics[name].to_dict() for name in METRICS}
        if has_concentration(distribution):
            values["gain"] = posterior_gain(counts, distribution, cluster=cluster).to_dict()
            if many:
                values["EL_posterior"] = posterior_epistemic_loss(counts, distribution, cluster=cluster).to_dict()
        rows.append({"method": method, "metrics": values})
    return rows


def markdown_table(header: str, rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, its header with bars between the columns."""
    lines = [f"| {header} |", "|---" * (header.count(" | ") + 1) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def markdown(rows: Sequence[ScoredRow]) -> str:
    """A table with one row per method; values with their standard errors."""
    names = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    titles = {"L_D": "L_φ", "skill_D": "skill_φ", "CE_D": "CE_φ", "gain": "gain EL − EL′", "EL_posterior": "EL′"}
    header = " | ".join(["method", *(titles.get(name, name) for name in names)])
    return markdown_table(header, [[row["method"], *(_cell(row["metrics"].get(n)) for n in names)] for row in rows])


def _cell(estimate: EstimateDocument | None) -> str:
    if estimate is None or estimate["value"] is None:
        return "–"
    if estimate["clipped"]:
        return f"0 (at most {estimate['high']:.4f})"
    error = "" if estimate["se"] is None else f" ± {estimate['se']:.4f}"
    return f"{estimate['value']:.4f}{error}"


def triage_rows(
    counts: IntArray, distribution: PredictiveDistribution, cluster: npt.ArrayLike | None
) -> list[TriagePoint]:
    """Operating curves of φ and of the two simple rules."""
    capacities = np.linspace(0, 1, 41)
    scores = {"disagreement probability": distribution.disagreement_probs}
    scores |= uncertainty_scores(distribution.class_probs)
    rows: list[TriagePoint] = []
    for name, score in scores.items():
        curve = triage_recall(counts, score, capacities, cluster=cluster)
        rows += [
            {"score": name, "capacity": float(capacity), "value": recall.value, "low": recall.low, "high": recall.high}
            for capacity, recall in zip(capacities, curve, strict=True)
        ]
    return rows
