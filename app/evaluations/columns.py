"""What is evaluated, as columns: NumPy arrays with one row per case."""

import hashlib
import uuid
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ml.arrays import FloatArray, IntArray

#: Labels of a case whose annotators are kept; of further ones only what they say.
KNOWN_READERS = 4


def number_of(name: str) -> int:
    """Stable 63-bit number of a name; 0 of none.

    >>> number_of(""), number_of("north") == number_of("north")
    (0, True)
    """
    if not name:
        return 0
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True)
class Columns:
    """Predictions of one release for N cases, and what was collected about them.

    Attributes:
        classes: K class codes.
        sites: names of the sites by their number.
        case_id: (N, 16) bytes of the identifier.
        cluster: (N,) number of the patient.
        site: (N,) number of the place the image came from, 0 if not recorded.
        created_at: (N,) seconds since 1970, UTC.
        evaluation: (N,) whether the case belongs to the evaluation partition.
        pi: (N,) probability of a second planned read.
        class_probs: (N, K).
        disagreement_probs: (N,).
        label_counts: (N, K) blind planned labels.
        posterior_gain: (N,) fall of the loss by one label over all splits of these; NaN with fewer than two labels or
            without a concentration.
        annotators: (N, 4) numbers of those who gave the first four of them, 0 where there are fewer.
        said: (N, 4) classes of these, −1 where there are fewer.
        first_class: (N,) class that answers the first planned read, −1 without an answer by one of the service's own
            annotators.
        first_annotator: (N,) number of who answered it, 0 without an answer.
        first_answered_at: (N,) when that answer was given, seconds since 1970; NaN without one.
        first_due_at: (N,) when the first planned read was due, NaN without one.
        drawn: (N,) whether annotators were drawn for the planned reads.
        outside: (N,) whether an outside system gave one of the labels.
        n_planned: (N,) planned reads.
        first_open_until: (N,) when the first planned read is due, −∞ once it has ended, ∞ while its answer may still
            be corrected.
        open_until: (N,) the same of all planned reads, the latest.
        cannot_tell: (N,) planned reads that ended without a diagnosis.
        stain: (N, 3) mean optical density of red, green and blue; NaN where it was not measured.
        out_of_distribution: (N,) whether the image is unlike the training cells.
        feature_distance: (N,) from them, NaN where it is unknown.
        trained_on: (N,) whether the release was trained on the image, or on others of its patient.
    """

    classes: list[str]
    sites: dict[int, str]
    case_id: npt.NDArray[np.uint8]
    cluster: IntArray
    site: IntArray
    created_at: FloatArray
    evaluation: npt.NDArray[np.bool_]
    pi: FloatArray
    class_probs: FloatArray
    disagreement_probs: FloatArray
    label_counts: IntArray
    posterior_gain: FloatArray
    annotators: IntArray
    said: IntArray
    first_class: IntArray
    first_annotator: IntArray
    first_answered_at: FloatArray
    first_due_at: FloatArray
    drawn: npt.NDArray[np.bool_]
    outside: npt.NDArray[np.bool_]
    n_planned: IntArray
    first_open_until: FloatArray
    open_until: FloatArray
    cannot_tell: IntArray
    stain: FloatArray
    out_of_distribution: npt.NDArray[np.bool_]
    feature_distance: FloatArray
    trained_on: npt.NDArray[np.bool_]

    @classmethod
    def empty(cls, classes: list[str], n: int) -> "Columns":
        """Columns of N cases about which nothing is known."""
        k = len(classes)
        return cls(
            classes=classes,
            sites={},
            case_id=np.zeros((n, 16), dtype=np.uint8),
            cluster=np.zeros(n, dtype=np.int64),
            site=np.zeros(n, dtype=np.int64),
            created_at=np.zeros(n),
            evaluation=np.zeros(n, dtype=bool),
            pi=np.zeros(n),
            class_probs=np.zeros((n, k)),
            disagreement_probs=np.zeros(n),
            label_counts=np.zeros((n, k), dtype=np.int64),
            posterior_gain=np.full(n, np.nan),
            annotators=np.zeros((n, KNOWN_READERS), dtype=np.int64),
            said=np.full((n, KNOWN_READERS), -1, dtype=np.int64),
            first_class=np.full(n, -1, dtype=np.int64),
            first_annotator=np.zeros(n, dtype=np.int64),
            first_answered_at=np.full(n, np.nan),
            first_due_at=np.full(n, np.nan),
            drawn=np.zeros(n, dtype=bool),
            outside=np.zeros(n, dtype=bool),
            n_planned=np.zeros(n, dtype=np.int64),
            first_open_until=np.full(n, -np.inf),
            open_until=np.full(n, -np.inf),
            cannot_tell=np.zeros(n, dtype=np.int64),
            stain=np.full((n, 3), np.nan),
            out_of_distribution=np.zeros(n, dtype=bool),
            feature_distance=np.full(n, np.nan),
            trained_on=np.zeros(n, dtype=bool),
        )

    def __len__(self) -> int:
        return len(self.case_id)

    @cached_property
    def n_labels(self) -> IntArray:
        """Blind planned labels of each case (N,)."""
        return np.asarray(np.einsum("nk->n", self.label_counts))

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Every column by name."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name not in {"classes", "sites"}}

    def take(self, rows: npt.NDArray[np.intp]) -> "Columns":
        """Cases by position."""
        if len(rows) == len(self) and (rows == np.arange(len(self))).all():
            return self
        return Columns(self.classes, self.sites, **{k: np.take(v, rows, axis=0) for k, v in self.arrays().items()})

    @classmethod
    def joined(cls, parts: list["Columns"]) -> "Columns":
        """Columns of the same classes, one after the other.

        Raises:
            ValueError: there are none.
        """
        if not parts:
            raise ValueError("there is nothing to join")
        sites = {number: name for part in parts for number, name in part.sites.items()}
        names = parts[0].arrays()
        return cls(
            parts[0].classes, sites, **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        )

    def ids(self) -> list[uuid.UUID]:
        """Identifiers of the cases."""
        return [uuid.UUID(bytes=row.tobytes()) for row in self.case_id]
