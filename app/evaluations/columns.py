"""What is evaluated, as columns: NumPy arrays with one row a case."""

import uuid
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ml.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class Columns:
    """Predictions of one release for N cases, and what was collected about them, ordered by case.

    Attributes:
        classes: K class codes.
        case_id: (N, 16) bytes of the identifier.
        cluster: (N,) number of the patient.
        site: (N,) where the image came from, empty if not told.
        created_at: (N,) seconds since 1970, UTC.
        evaluation: (N,) whether the case belongs to the evaluation partition.
        pi: (N,) probability of a second planned read.
        class_probs: (N, K).
        disagreement_probs: (N,).
        log_concentration: (N,), NaN where there is none or the release is an ensemble.
        label_counts: (N, K) blind planned labels.
        outside: (N,) whether an outside system gave one of them.
        n_planned: (N,) planned reads.
        open_until: (N,) latest due time of the planned reads that are open, −∞ for none.
        cannot_tell: (N,) planned reads that ended without a diagnosis.
        stain: (N, 3) mean optical density of red, green and blue; NaN where it was not measured.
        out_of_distribution: (N,) whether the image is unlike the training cells.
    """

    classes: list[str]
    case_id: npt.NDArray[np.uint8]
    cluster: IntArray
    site: npt.NDArray[Any]
    created_at: FloatArray
    evaluation: npt.NDArray[np.bool_]
    pi: FloatArray
    class_probs: FloatArray
    disagreement_probs: FloatArray
    log_concentration: FloatArray
    label_counts: IntArray
    outside: npt.NDArray[np.bool_]
    n_planned: IntArray
    open_until: FloatArray
    cannot_tell: IntArray
    stain: FloatArray
    out_of_distribution: npt.NDArray[np.bool_]

    @classmethod
    def empty(cls, classes: list[str], n: int) -> "Columns":
        """Columns of N cases about which nothing is known."""
        k = len(classes)
        return cls(
            classes=classes,
            case_id=np.zeros((n, 16), dtype=np.uint8),
            cluster=np.zeros(n, dtype=np.int64),
            site=np.empty(n, dtype=object),
            created_at=np.zeros(n),
            evaluation=np.zeros(n, dtype=bool),
            pi=np.zeros(n),
            class_probs=np.zeros((n, k)),
            disagreement_probs=np.zeros(n),
            log_concentration=np.full(n, np.nan),
            label_counts=np.zeros((n, k), dtype=np.int64),
            outside=np.zeros(n, dtype=bool),
            n_planned=np.zeros(n, dtype=np.int64),
            open_until=np.full(n, -np.inf),
            cannot_tell=np.zeros(n, dtype=np.int64),
            stain=np.full((n, 3), np.nan),
            out_of_distribution=np.zeros(n, dtype=bool),
        )

    def __len__(self) -> int:
        return len(self.case_id)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Every column by name."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name != "classes"}

    def take(self, rows: npt.NDArray[Any]) -> "Columns":
        """Some of the cases, by mask or position."""
        return Columns(self.classes, **{name: column[rows] for name, column in self.arrays().items()})

    def ids(self) -> list[uuid.UUID]:
        """Identifiers of the cases."""
        return [uuid.UUID(bytes=row.tobytes()) for row in self.case_id]
