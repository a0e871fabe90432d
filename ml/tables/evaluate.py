"""Stage 4: label and prediction tables → every metric, with reliability diagrams."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ml.arrays import FloatArray, IntArray
from ml.metrics import evaluate
from ml.metrics.binning import Debias
from ml.tables.files import Labels, Predictions, TableError, align, case_column, read_labels, read_predictions


def evaluate_tables(
    labels_path: Path,
    predictions_path: Path,
    *,
    n_bins: int = 15,
    debias: Debias = "pair",
    weights: str | None = None,
    weights2: str | None = None,
    cluster: str | None = None,
) -> dict[str, Any]:
    """Evaluate a PREDICTIONS table against a LABELS table.

    Args:
        labels_path: LABELS, long or wide.
        predictions_path: PREDICTIONS.
        n_bins: equal-width bins.
        debias: form of CL.
        weights: column of LABELS with inverse probabilities of having a label.
        weights2: the same of having two labels.
        cluster: column of LABELS that names the patient.

    Returns:
        The document of ``ml.metrics.evaluate``.

    Raises:
        TableError: a table cannot be used; the message names file, row and column.
    """
    predictions = read_predictions(predictions_path)
    labels = read_labels(labels_path, predictions.classes)
    rows = align(labels, predictions, labels_path)
    counts = aligned_counts(labels, rows)
    return evaluate(
        counts,
        predictions.class_probs,
        predictions.disagreement_probs,
        n_bins=n_bins,
        debias=debias,
        weights=aligned_weights(labels, weights, rows, labels_path),
        weights2=aligned_weights(labels, weights2, rows, labels_path),
        cluster=aligned_clusters(labels, predictions, cluster, rows, labels_path),
        classes=predictions.classes,
    ).to_dict()


def aligned_counts(labels: Labels, rows: npt.NDArray[np.intp]) -> IntArray:
    """Label histograms (N, K) of predictions, given the row of LABELS of each or −1."""
    if not labels.case_ids:
        return np.zeros((len(rows), len(labels.classes)), dtype=np.int64)
    return np.asarray(np.where(rows[:, None] >= 0, labels.counts[rows], 0), dtype=np.int64)


def _aligned_column(
    labels: Labels, name: str | None, rows: npt.NDArray[np.intp], path: Path
) -> npt.NDArray[Any] | None:
    if name is None or not labels.case_ids:
        return None
    values = case_column(labels, name, path)
    return np.where(rows >= 0, values[rows], values[0])  # the filler is never used: such a case has no label


def aligned_clusters(
    labels: Labels, predictions: Predictions, name: str | None, rows: npt.NDArray[np.intp], path: Path
) -> npt.NDArray[Any] | None:
    """Patient (N,) of each prediction, None where no column is named.

    Of a case without labels the patient stands in the column of the same name in PREDICTIONS; without one it is its
    own cluster. It matters for the Horvitz–Thompson form of CL, which counts the pairs of all cases.
    """
    if name is None or not labels.case_ids:
        return None
    values = [str(value) for value in case_column(labels, name, path)]
    others = predictions.columns.get(name) or [f"case {case_id}" for case_id in predictions.case_ids]
    return np.array([values[row] if row >= 0 else str(others[i]) for i, row in enumerate(rows.tolist())])


def aligned_weights(labels: Labels, name: str | None, rows: npt.NDArray[np.intp], path: Path) -> FloatArray | None:
    """Weights (N,) of predictions from a column of LABELS, None where no column is named.

    Raises:
        TableError: weights that are no numbers or not positive.
    """
    values = _aligned_column(labels, name, rows, path)
    if values is None:
        return None
    try:
        numbers = values.astype(np.float64)
    except ValueError as exc:
        raise TableError(f"{path}: column {name!r}: weights must be numbers: {exc}") from exc
    if not (np.isfinite(numbers).all() and (numbers > 0).all()):
        raise TableError(f"{path}: column {name!r}: weights must be positive")
    return numbers


def write_diagrams(document: dict[str, Any], folder: Path) -> list[Path]:
    """Draw reliability diagrams of every class and of disagreement as SVG, and return their paths."""
    from ml.charts.reliability import reliability_diagram, write_chart

    charts = {
        f"reliability_{row['class']}": reliability_diagram(row["bins"], title=row["class"], what="probability")
        for row in document["classes"]
    }
    charts["reliability_all_classes"] = reliability_diagram(
        document["class_bins"], title="All classes", what="probability"
    )
    charts["reliability_disagreement"] = reliability_diagram(
        document["disagreement_bins"], title="Disagreement of two annotators", what="disagreement"
    )
    paths = []
    for name, chart in charts.items():
        safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
        paths.append(folder / f"{safe}.svg")
        write_chart(chart, paths[-1])
    return paths
