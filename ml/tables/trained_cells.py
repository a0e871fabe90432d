"""PREDICTIONS of cells that a release was trained on, left out before they are compared with labels."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ml.tables.files import Labels, Place, Predictions, TableError, fail_at

#: Column of PREDICTIONS that ``secondread score`` and exports write.
TRAINED_ON = "trained_on"
_ANSWERS = {"yes", "no", "unknown"}


def without_trained_cells(
    labels: Labels, several: Sequence[tuple[Predictions, Place]]
) -> tuple[Labels, list[Predictions], tuple[str, ...]]:
    """Tables without the cells that a release was trained on, and a sentence about how many these were.

    Args:
        labels: LABELS.
        several: PREDICTIONS that are judged by them, each with what messages call it; the column ``trained_on``, where
            there is one, says yes, no or unknown. A cell that one of them was trained on judges none.

    Returns:
        LABELS, each PREDICTIONS, and what is to be said.

    Raises:
        TableError: another word than these, or nothing is left to judge by.
    """
    trained: set[str] = set()
    said = []
    for predictions, place in several:
        answers = _answers(predictions, place)
        trained |= {case for case, answer in zip(predictions.case_ids, answers, strict=True) if answer == "yes"}
        if "unknown" in answers:
            n = answers.count("unknown")
            said.append(f"{place}: whether the release was trained on {n:,} of {len(answers):,} cells is unknown")
    first, place = several[0]
    found = trained & set(first.case_ids)
    if not found:
        return labels, [predictions for predictions, _ in several], tuple(said)
    if len(found) == len(first.case_ids):
        raise TableError(f"{place}: the release was trained on all {len(found):,} cells: none is left to judge it by")
    said.append(f"{len(found):,} of {len(first.case_ids):,} cells are left out because the release was trained on them")
    kept = [_predictions_without(predictions, trained) for predictions, _ in several]
    return _labels_without(labels, trained), kept, tuple(said)


def _answers(predictions: Predictions, place: Place) -> list[str]:
    """What the column says of each cell; nothing without it."""
    given = predictions.columns.get(TRAINED_ON)
    if given is None:
        return [""] * len(predictions.case_ids)
    fail_at(place, [answer not in _ANSWERS for answer in given], TRAINED_ON, "must be yes, no or unknown, not", given)
    return [str(answer) for answer in given]


def _predictions_without(predictions: Predictions, trained: set[str]) -> Predictions:
    rows = np.array([row for row, case in enumerate(predictions.case_ids) if case not in trained], dtype=np.intp)
    return replace(
        predictions,
        case_ids=[predictions.case_ids[row] for row in rows],
        class_probs=predictions.class_probs[rows],
        disagreement_probs=predictions.disagreement_probs[rows],
        columns={name: [values[row] for row in rows] for name, values in predictions.columns.items()},
    )


def _labels_without(labels: Labels, trained: set[str]) -> Labels:
    """LABELS of the other cases, numbered anew."""
    kept = np.array([case not in trained for case in labels.case_ids], dtype=bool)
    number = np.cumsum(kept) - 1
    rows = np.flatnonzero(kept[labels.rows]) if len(labels.rows) else np.empty(0, dtype=np.intp)
    return replace(
        labels,
        case_ids=[case for case in labels.case_ids if case not in trained],
        counts=labels.counts[kept],
        rows=number[labels.rows[rows]],
        columns={name: [values[row] for row in rows] for name, values in labels.columns.items()},
        annotators=[labels.annotators[row] for row in rows] if labels.annotators else [],
        numbers=labels.numbers[rows] if len(labels.numbers) else labels.numbers,
    )
