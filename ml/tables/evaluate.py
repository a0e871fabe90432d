"""Evaluation of label and prediction tables, matched by case and by class name, with reliability diagrams."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ml.arrays import FloatArray, IntArray
from ml.metrics import Evaluation
from ml.metrics import evaluate as evaluate_arrays
from ml.metrics.binning import Debias
from ml.metrics.reader_test import reader_test
from ml.named_columns import column_names
from ml.tables.files import (
    Labels,
    Predictions,
    TableError,
    TableSource,
    align,
    case_column,
    fail_at,
    place_of,
    read_labels,
    read_predictions,
)

#: Column of LABELS with the number of the planned read that a label answers.
PLANNED_READ = "planned_read"
#: p value at or below which annotators are called different, and the random signs that it rests on.
_DIFFERENT, _TURNS = 0.01, 199


def evaluate(
    labels: TableSource | npt.ArrayLike,
    predictions: TableSource | npt.ArrayLike,
    disagreement_probs: npt.ArrayLike | None = None,
    *,
    n_bins: int = 15,
    debias: Debias = "pair",
    weights: str | npt.ArrayLike | None = None,
    weights2: str | npt.ArrayLike | None = None,
    cluster: str | npt.ArrayLike | None = None,
    classes: list[str] | None = None,
) -> Evaluation:
    """Every metric with its interval: of tables matched by ``case_id`` and class name, or of arrays.

    Args:
        labels: LABELS, long or wide (a file, or a table of pandas, polars, Arrow or a mapping of columns), or label
            histograms (N, K).
        predictions: PREDICTIONS, of the same kinds, or class probabilities (N, K).
        disagreement_probs: (N,) DPEs with arrays; a table has them in a column.
        n_bins: equal-width bins of [0, 1].
        debias: form of CL, ``pair``, ``paper`` or None.
        weights: inverse probabilities of having a label: a column of LABELS, or (N,) with arrays.
        weights2: the same of having two labels.
        cluster: patient of each case: a column of LABELS, or (N,) with arrays.
        classes: names of the K classes of arrays.

    Returns:
        Counts, metrics, reliability tables and warnings; its ``to_dict()`` is the document of ``evaluate --json``.

    Raises:
        ValueError: tables or arrays that cannot be used; of a table the message names row and column.

    >>> labels = {"case_id": ["a", "a", "b"], "annotator": ["r", "s", "r"], "label": ["yes", "no", "yes"]}
    >>> predictions = {"case_id": ["b", "a"], "prob:yes": [0.75, 0.5], "prob:no": [0.25, 0.5]}
    >>> evaluate(labels, predictions).metrics["L"].value
    0.3125
    >>> evaluate([[1, 1], [1, 0]], [[0.5, 0.5], [0.75, 0.25]]).metrics["L"].value
    0.3125
    """
    if _has_cases(labels) != _has_cases(predictions):
        lacking = "predictions have" if _has_cases(labels) else "labels have"
        raise ValueError(f"{lacking} no column 'case_id' to match cases by: give it to both tables, or to neither")
    if not _has_cases(labels):
        return evaluate_arrays(
            labels,  # type: ignore[arg-type]
            predictions,  # type: ignore[arg-type]
            disagreement_probs,
            n_bins=n_bins,
            debias=debias,
            weights=weights,
            weights2=weights2,
            cluster=cluster,
            classes=classes,
        )
    if disagreement_probs is not None or classes is not None:
        raise ValueError("tables name their classes and disagreement_prob in columns: leave both arguments out")
    return evaluate_tables(
        labels,  # type: ignore[arg-type]
        predictions,  # type: ignore[arg-type]
        n_bins=n_bins,
        debias=debias,
        weights=weights,  # type: ignore[arg-type]
        weights2=weights2,  # type: ignore[arg-type]
        cluster=cluster,  # type: ignore[arg-type]
    )


def _has_cases(source: Any) -> bool:
    """Whether something is a file or a table whose rows are named by ``case_id``."""
    return isinstance(source, str | Path) or "case_id" in (column_names(source) or ())


def evaluate_tables(
    labels: TableSource,
    predictions: TableSource,
    *,
    n_bins: int = 15,
    debias: Debias = "pair",
    weights: str | None = None,
    weights2: str | None = None,
    cluster: str | None = None,
) -> Evaluation:
    """Evaluate a PREDICTIONS table against a LABELS table.

    Args:
        labels: LABELS, long or wide; a file or a table in memory.
        predictions: PREDICTIONS, the same.
        n_bins: equal-width bins.
        debias: form of CL.
        weights: column of LABELS with inverse probabilities of having a label.
        weights2: the same of having two labels.
        cluster: column of LABELS that names the patient.

    Returns:
        What ``ml.metrics.evaluate`` returns.

    Raises:
        TableError: a table cannot be used; the message names file, row and column.
    """
    for name, column in (("weights", weights), ("weights2", weights2), ("cluster", cluster)):
        if column is not None and not isinstance(column, str):
            raise TableError(f"{name} must name a column of LABELS, got {type(column).__name__}")
    place = place_of(labels, "LABELS")
    predicted = read_predictions(predictions)
    labelled = read_labels(labels, predicted.classes)
    rows = align(labelled, predicted, place)
    evaluation = evaluate_arrays(
        aligned_counts(labelled, rows),
        predicted.class_probs,
        predicted.disagreement_probs,
        first_label_counts=aligned_first_counts(labelled, rows, place),
        n_bins=n_bins,
        debias=debias,
        weights=aligned_weights(labelled, weights, rows, place),
        weights2=aligned_weights(labelled, weights2, rows, place),
        cluster=aligned_clusters(labelled, predicted, cluster, rows, place),
        classes=predicted.classes,
    )
    return replace(evaluation, warnings=(*evaluation.warnings, *_reader_warnings(labelled, cluster, place)))


def _reader_warnings(labels: Labels, cluster: str | None, place: Path) -> list[str]:
    """A warning where annotators use the classes differently, by what they said of the same cases."""
    if not labels.annotators:
        return []
    number: dict[str, int] = {}
    annotator = np.array([number.setdefault(name, len(number)) for name in labels.annotators])
    groups = None
    if cluster is not None:
        names = [str(value) for value in case_column(labels, cluster, place)]
        groups = np.unique(names, return_inverse=True)[1][labels.rows]
    test = reader_test(labels.rows, annotator, labels.numbers, groups, permutations=_TURNS)
    if test.p_value > _DIFFERENT:
        return []
    return [
        f"annotators use the classes differently (p = {test.p_value:.3f}): the intervals, which leave out cases, speak "
        "for these annotators, not for others"
    ]


def aligned_counts(labels: Labels, rows: npt.NDArray[np.intp]) -> IntArray:
    """Label histograms (N, K) of predictions, given the row of LABELS of each or −1."""
    if not labels.case_ids:
        return np.zeros((len(rows), len(labels.classes)), dtype=np.int64)
    return np.asarray(np.where(rows[:, None] >= 0, labels.counts[rows], 0), dtype=np.int64)


def aligned_first_counts(labels: Labels, rows: npt.NDArray[np.intp], path: Path) -> IntArray | None:
    """Labels (N, K) that metrics which need one label use: answers to the first planned reads; None for all.

    They are the labels whose column ``planned_read``, where there is one, is 1.

    Raises:
        TableError: a number of a planned read is missing, or is none.
    """
    if PLANNED_READ not in labels.columns or not labels.numbers.size:
        return None
    values = labels.columns[PLANNED_READ]
    problem = "not the number of a planned read (1, 2, …; 0 of none):"
    fail_at(path, [not str(value).isdecimal() for value in values], PLANNED_READ, problem, values)
    first = np.array([int(value) == 1 for value in values], dtype=bool)
    counts = np.zeros_like(labels.counts)
    np.add.at(counts, (labels.rows[first], labels.numbers[first]), 1)
    return aligned_counts(replace(labels, counts=counts), rows)


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


def write_diagrams(evaluation: Evaluation, folder: Path) -> list[Path]:
    """Draw reliability diagrams of every class and of disagreement as SVG, and return their paths."""
    from ml.charts.reliability import reliability_diagram, write_chart

    charts = {
        f"reliability_{row.name}": reliability_diagram(row.bins, title=row.name, what="probability")
        for row in evaluation.classes
    }
    charts["reliability_all_classes"] = reliability_diagram(
        evaluation.class_bins, title="All classes", what="probability"
    )
    charts["reliability_disagreement"] = reliability_diagram(
        evaluation.disagreement_bins, title="Disagreement of two annotators", what="disagreement"
    )
    paths = []
    for name, chart in charts.items():
        safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
        paths.append(folder / f"{safe}.svg")
        write_chart(chart, paths[-1])
    return paths
