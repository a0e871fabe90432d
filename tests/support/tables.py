"""LABELS and PREDICTIONS of arrays, as mappings of columns; the cases are c0, c1 and so on."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def labels_table(counts: Any, classes: Sequence[str], **columns: Any) -> dict[str, list[Any]]:
    """Label histograms (N, K) as one row per label, by annotators r0, r1 and so on of each case.

    Args:
        counts: histograms.
        classes: names of their columns.
        columns: further columns by name, with a value per case.
    """
    given = [np.repeat(list(classes), row).tolist() for row in counts]
    rows = [(case, reader, label) for case, labels in enumerate(given) for reader, label in enumerate(labels)]
    return _long(rows) | {name: [values[case] for case, _, _ in rows] for name, values in columns.items()}


def matrix_table(matrix: Any, classes: Sequence[str]) -> dict[str, list[Any]]:
    """Class numbers (N, A) of annotators r0, r1 and so on, −1 where there is no label, as one row per label."""
    return _long([(case, reader, classes[matrix[case, reader]]) for case, reader in np.argwhere(matrix >= 0).tolist()])


def _long(rows: list[tuple[int, int, str]]) -> dict[str, list[Any]]:
    return {
        "case_id": [f"c{case}" for case, _, _ in rows],
        "annotator": [f"r{reader}" for _, reader, _ in rows],
        "label": [label for _, _, label in rows],
    }


def wide_table(values: Any, classes: Sequence[str], prefix: str = "prob:") -> dict[str, Any]:
    """Values (N, K) with a column per class."""
    return {"case_id": [f"c{case}" for case in range(len(values))]} | {
        f"{prefix}{name}": values[:, k] for k, name in enumerate(classes)
    }
