"""Exclusion of predictions on cells that the release was trained on."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ml.tables.files import Labels, Place, Predictions, TableError, fail_at

#: Column of PREDICTIONS that ``secondread score`` and exports write.
TRAINED_ON = "trained_on"
_ANSWERS = {"yes", "no", "unknown"}


def without_trained_cells(
    labels: Labels, place: Place, several: Sequence[tuple[Predictions, Place]]
) -> tuple[Labels, Place, list[Predictions], tuple[str, ...]]:
    """Tables without the cells that a release was trained on, and a sentence about how many these were.

    Args:
        labels: LABELS.
        place: what messages call them.
        several: PREDICTIONS that are judged by them, each with what messages call it; the column ``trained_on``, where
            there is one, says yes, no or unknown. A cell that one of them was trained on judges none.

    Returns:
        LABELS, what messages call them, each PREDICTIONS, and what is to be said.

    Raises:
        TableError: another word than these, or nothing is left to judge by.
    """
    trained: set[str] = set()
    notes = []
    for predictions, of in several:
        answers = _answers(predictions, of)
        trained |= {case for case, answer in zip(predictions.case_ids, answers, strict=True) if answer == "yes"}
        if "unknown" in answers:
            n = answers.count("unknown")
            notes.append(f"{of}: whether the release was trained on {n:,} of {len(answers):,} cells is unknown")
    first, of = several[0]
    trained_here = trained & set(first.case_ids)
    if not trained_here:
        return labels, place, [predictions for predictions, _ in several], tuple(notes)
    if len(trained_here) == len(first.case_ids):
        raise TableError(
            f"{of}: the release was trained on all {len(trained_here):,} cells: none is left to judge it by"
        )
    notes.append(
        f"{len(trained_here):,} of {len(first.case_ids):,} cells are left out because the release was trained on them"
    )
    kept = [_predictions_without(predictions, trained) for predictions, _ in several]
    kept_cases = np.array([case not in trained for case in labels.case_ids], dtype=bool)
    rows = np.flatnonzero(kept_cases[labels.rows])
    part = place.part(rows if place.rows is None else place.rows[rows])
    return _labels_at(labels, kept_cases, rows), part, kept, tuple(notes)


def _answers(predictions: Predictions, place: Place) -> list[str]:
    """Training status of each cell by its column; empty without the column."""
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


def _labels_at(labels: Labels, kept: npt.NDArray[np.bool_], rows: npt.NDArray[np.intp]) -> Labels:
    """LABELS of the cases that are kept, numbered anew, by the rows about them."""
    number = np.cumsum(kept) - 1
    return replace(
        labels,
        case_ids=[case for case, stays in zip(labels.case_ids, kept, strict=True) if stays],
        counts=labels.counts[kept],
        rows=number[labels.rows[rows]],
        columns={name: [values[row] for row in rows] for name, values in labels.columns.items()},
        annotators=[labels.annotators[row] for row in rows] if labels.annotators else [],
        numbers=labels.numbers[rows] if len(labels.numbers) else labels.numbers,
    )
