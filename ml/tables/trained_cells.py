"""PREDICTIONS of cells that a release was trained on, left out before they are compared with labels."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ml.tables.files import Labels, Predictions, TableError, fail_at

#: Column of PREDICTIONS that ``secondread score`` and exports write.
TRAINED_ON = "trained_on"
_ANSWERS = {"yes", "no", "unknown"}


def trained_cells(predictions: Predictions, path: Path) -> npt.NDArray[np.bool_]:
    """Mask (N,) of the cells that the release was trained on; of none where no column says so.

    Raises:
        TableError: another word than yes, no and unknown.
    """
    given = predictions.columns.get(TRAINED_ON)
    if given is None:
        return np.zeros(len(predictions.case_ids), dtype=bool)
    fail_at(path, [answer not in _ANSWERS for answer in given], TRAINED_ON, "must be yes, no or unknown, not", given)
    return np.array([answer == "yes" for answer in given], dtype=bool)


def without_trained_cells(
    labels: Labels, predictions: Predictions, path: Path
) -> tuple[Labels, Predictions, list[str]]:
    """Both tables without the cells that the release was trained on, and a sentence about how many these were.

    Args:
        labels: LABELS.
        predictions: PREDICTIONS; its column ``trained_on``, where there is one, says yes, no or unknown.
        path: of PREDICTIONS, for messages.

    Raises:
        TableError: the release was trained on every cell.
    """
    trained = trained_cells(predictions, path)
    n, n_unknown = int(trained.sum()), predictions.columns.get(TRAINED_ON, []).count("unknown")
    warnings = []
    if n_unknown:
        warnings.append(f"whether the release was trained on {n_unknown:,} of {len(trained):,} cells is unknown")
    if not n:
        return labels, predictions, warnings
    if trained.all():
        raise TableError(f"{path}: the release was trained on all {n:,} cells, so that nothing is left to judge it by")
    warnings.append(f"{n:,} of {len(trained):,} cells are left out because the release was trained on them")
    left_out = {case for case, out in zip(predictions.case_ids, trained.tolist(), strict=True) if out}
    return _labels_without(labels, left_out), _predictions_at(predictions, np.flatnonzero(~trained)), warnings


def _predictions_at(predictions: Predictions, rows: npt.NDArray[np.intp]) -> Predictions:
    return replace(
        predictions,
        case_ids=[predictions.case_ids[row] for row in rows],
        class_probs=predictions.class_probs[rows],
        disagreement_probs=predictions.disagreement_probs[rows],
        columns={name: [values[row] for row in rows] for name, values in predictions.columns.items()},
    )


def _labels_without(labels: Labels, left_out: set[str]) -> Labels:
    """LABELS of the other cases, numbered anew."""
    kept = np.array([case not in left_out for case in labels.case_ids], dtype=bool)
    number = np.cumsum(kept) - 1
    rows = np.flatnonzero(kept[labels.rows]) if len(labels.rows) else np.empty(0, dtype=np.intp)
    return replace(
        labels,
        case_ids=[case for case in labels.case_ids if case not in left_out],
        counts=labels.counts[kept],
        rows=number[labels.rows[rows]],
        columns={name: [values[row] for row in rows] for name, values in labels.columns.items()},
        annotators=[labels.annotators[row] for row in rows] if labels.annotators else [],
        numbers=labels.numbers[rows] if len(labels.numbers) else labels.numbers,
    )
