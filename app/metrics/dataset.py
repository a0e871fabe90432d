"""Columns of an evaluation, and their merge with later labels."""

import hashlib
import uuid
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ml.util.arrays import FloatArray, IntArray

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


# identifiers as byte strings, which NumPy compares and sorts
_ID = "S16"


def identifiers(columns: Columns) -> npt.NDArray[np.bytes_]:
    """Identifiers of the cases (N,) as byte strings."""
    return np.ascontiguousarray(columns.case_id).view(_ID).ravel()


def merged(columns: Columns, by_id: npt.NDArray[np.intp], changed: list[uuid.UUID], fresh: Columns) -> Columns:
    """Columns in which the changed cases have their fresh rows, cases of one patient together.

    Say cases A, B, C, D are of the patients 1, 4, 4, 9. B now belongs to patient 9, E of patient 4 is new, and D is
    gone. Then ``changed`` is B, D, E, ``fresh`` has the rows of B and E, and the steps are:

    1. *outdated*, old positions of changed cases: 1 and 3 (E has none); *kept* are 0 and 2, that is A and C;
    2. fresh rows by patient: E (4), B (9);
    3. *target*, their positions in the result, each before the first kept row of the same or a later patient, moved on
       by the fresh rows before it: E at 1 + 0, B at 2 + 1;
    4. *source*, the old position that fills each other position: A at 0, C at 2. The result is A, E, C, B of the
       patients 1, 4, 4, 9.

    Args:
        columns: N cases, ordered by patient.
        by_id: (N,) positions of the cases in the order of their identifiers.
        changed: cases whose rows are outdated; new ones and those that are gone too.
        fresh: the current rows of those of them that exist, in any order.
    """
    outdated = _positions(_bytes_of(changed), identifiers(columns), by_id)
    kept = np.delete(np.arange(len(columns)), outdated)
    fresh = fresh.take(np.argsort(fresh.cluster, kind="stable"))
    target = np.searchsorted(columns.cluster[kept], fresh.cluster) + np.arange(len(fresh))
    source = np.zeros(kept.size + len(fresh), dtype=np.intp)
    source[np.delete(np.arange(source.size), target)] = kept
    arrays = {}
    for name, old in columns.arrays().items():
        new = getattr(fresh, name)
        # the default mode of `take` makes a copy first
        result = np.take(old, source, axis=0, mode="clip") if len(old) else np.empty_like(new)
        result[target] = new
        arrays[name] = result
    return Columns(columns.classes, columns.sites | fresh.sites, **arrays)


def replaced(columns: Columns, by_id: npt.NDArray[np.intp], changed: list[uuid.UUID], fresh: Columns) -> Columns | None:
    """The same by writing into the old rows, which nobody else may have; None where cases came, went or moved.

    Most changes are labels: of each case that changed there is a row before and after, of the same patient.

    Args:
        columns: N cases, ordered by patient; their arrays are written to.
        by_id: as in ``merged``.
        changed: as in ``merged``.
        fresh: as in ``merged``.
    """
    ids, new = identifiers(columns), identifiers(fresh)
    outdated = _positions(_bytes_of(changed), ids, by_id)
    target = _positions(new, ids, by_id)
    if not outdated.size == target.size == len(fresh) or (columns.cluster[target] != fresh.cluster).any():
        return None
    for name, old in columns.arrays().items():
        old[target] = getattr(fresh, name)
    return Columns(columns.classes, columns.sites | fresh.sites, **columns.arrays())


def _bytes_of(case_ids: list[uuid.UUID]) -> npt.NDArray[np.bytes_]:
    return np.frombuffer(b"".join(case_id.bytes for case_id in case_ids), dtype=_ID)


def _positions(
    wanted: npt.NDArray[np.bytes_], ids: npt.NDArray[np.bytes_], by_id: npt.NDArray[np.intp]
) -> npt.NDArray[np.intp]:
    """Positions in ``ids`` of those of the wanted identifiers that are there."""
    if not len(ids):
        return np.empty(0, dtype=np.intp)
    nearest = by_id[np.minimum(np.searchsorted(ids, wanted, sorter=by_id), len(ids) - 1)]
    return np.asarray(nearest[ids[nearest] == wanted])
