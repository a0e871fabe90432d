"""Reliability diagrams and triage curves as charts, which notebooks show and ``save`` writes as SVG, PNG or JSON."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ml.charts.rows import TriagePoint
from ml.dataframes import by_class, has_cases, same_rows
from ml.distributions.families import gini
from ml.metrics import Evaluation, triage_recall, uncertainty_scores
from ml.tables.evaluate import EvaluationOptions, match_one
from ml.tables.reading import TableSource
from ml.util.arrays import FloatArray, IntArray, as_class_probs, as_label_counts, as_vector

if TYPE_CHECKING:
    from altair.typing import ChartType

__all__ = ["plot_reliability", "plot_triage"]

#: Shares of the cases for which a triage curve is computed.
_CAPACITIES = np.linspace(0.05, 1.0, 20)


def plot_reliability(evaluation: Evaluation, of: str = "all classes") -> "ChartType":
    """Draw observed frequency against predicted probability, with 95 % intervals, over a histogram of the cases.

    Args:
        evaluation: result of ``secondread.evaluate``.
        of: a class, ``all classes`` pooled, or ``disagreement`` of two annotators.

    Returns:
        An Altair chart: ``chart.save("reliability.svg")``.

    Raises:
        ValueError: no evaluation, or it has no such class.

    Examples:
        >>> from secondread import evaluate, plot_reliability
        >>> evaluation = evaluate([[2, 1], [0, 3]], [[0.7, 0.3], [0.2, 0.8]], classes=["benign", "malignant"])
        >>> plot_reliability(evaluation, "malignant").to_dict()["vconcat"][0]["title"]
        'malignant'
    """
    if not isinstance(evaluation, Evaluation):
        raise ValueError(f"evaluation must be what secondread.evaluate returns, got {type(evaluation).__name__}")
    diagrams = {"all classes": evaluation.class_bins, "disagreement": evaluation.disagreement_bins}
    diagrams |= {row.name: row.bins for row in evaluation.classes}
    if of not in diagrams:
        raise ValueError(f"there is no reliability diagram of {of!r}; there are {', '.join(diagrams)}")
    _require_charts()
    from ml.charts.reliability import reliability_diagram

    pooled = diagrams[of] is evaluation.disagreement_bins
    title = "Disagreement of two annotators" if pooled else of
    return reliability_diagram(diagrams[of], title=title, what="disagreement" if pooled else "probability")


def plot_triage(
    labels: TableSource | npt.ArrayLike,
    predictions: TableSource | npt.ArrayLike,
    disagreement_probs: npt.ArrayLike | None = None,
    *,
    cluster: str | npt.ArrayLike | None = None,
) -> "ChartType":
    """Draw the share of disagreements caught against the share of cases sent for a second read, with 95 % bands.

    Cases are sent by the probability that two annotators disagree, and by the two common rules for comparison.

    Args:
        labels: LABELS or label counts (N, K), as for ``secondread.evaluate``.
        predictions: PREDICTIONS or class probabilities (N, K).
        disagreement_probs: (N,) DPEs with arrays; a table has them in a column.
        cluster: patient of each case: a column of LABELS, or (N,) with arrays.

    Returns:
        An Altair chart: ``chart.save("triage.svg")``.

    Raises:
        ValueError: tables or arrays that cannot be used, or no two labels of a case that differ.

    Examples:
        >>> from secondread import plot_triage
        >>> chart = plot_triage([[2, 0], [1, 1], [0, 2]], [[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]])
        >>> len(chart.to_dict()["layer"])
        3
    """
    counts, probs, dpe, groups = _triage_inputs(labels, predictions, disagreement_probs, cluster)
    _require_charts()
    from ml.charts.results import triage_chart

    scores = {"probability of disagreement": dpe} | uncertainty_scores(probs)
    return triage_chart([row for name, score in scores.items() for row in _curve(name, counts, score, groups)])


def _triage_inputs(
    labels: Any, predictions: Any, disagreement_probs: npt.ArrayLike | None, cluster: str | npt.ArrayLike | None
) -> tuple[IntArray, FloatArray, FloatArray, npt.NDArray[Any] | None]:
    """Label counts, class probabilities, DPEs and patients of the same cases."""
    if has_cases(labels):
        if disagreement_probs is not None:
            raise ValueError("tables have disagreement_prob in a column: leave the argument out")
        options = EvaluationOptions(cluster=cluster)  # type: ignore[arg-type]
        cases = match_one(labels, predictions, options, hint="plot one finding at a time")
        given = cases.predictions
        return cases.counts, given.class_probs, given.disagreement_probs, cases.cluster
    if isinstance(cluster, str):
        raise ValueError("cluster names a column of LABELS: with arrays give the patient of each case")
    same_rows(labels=labels, predictions=predictions, disagreement_probs=disagreement_probs, cluster=cluster)
    label_counts, class_probs, _ = by_class(labels, predictions)
    counts, probs = as_label_counts(label_counts), as_class_probs(class_probs)
    if counts.shape != probs.shape:
        raise ValueError(f"labels {counts.shape} and predictions {probs.shape} must have one shape (N, K)")
    if disagreement_probs is None:
        dpe = gini(probs)
    else:
        dpe = as_vector(disagreement_probs, len(probs), "disagreement_probs", 0.0, 1.0)
    return counts, probs, dpe, None if cluster is None else np.asarray(cluster)


def _curve(name: str, counts: npt.ArrayLike, score: npt.ArrayLike, groups: Any) -> list[TriagePoint]:
    recall = triage_recall(counts, score, _CAPACITIES, cluster=groups)
    return [
        {"score": name, "capacity": float(share), "value": point.value, "low": point.low, "high": point.high}
        for share, point in zip(_CAPACITIES, recall, strict=True)
    ]


def _require_charts() -> None:
    if find_spec("altair") is None:
        raise ImportError("charts need the package altair: pip install 'secondread-cells[charts]'")
