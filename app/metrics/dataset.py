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
MAX_KNOWN_ANNOTATORS = 4


def stable_name_hash(name: str) -> int:
    """Stable 63-bit number of a name; 0 of none.

    >>> stable_name_hash(""), stable_name_hash("north") == stable_name_hash("north")
    (0, True)
    """
    if not name:
        return 0
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True)
class EvaluationDataset:
    """Predictions of one release for N cases, and what was collected about them."""

    classes: list[str]
    # names of the sites by their number
    sites: dict[int, str]
    # (N, 16) bytes of the identifier
    case_id: npt.NDArray[np.uint8]
    # (N,) number of the patient
    cluster: IntArray
    # (N,) number of the place the image came from, 0 if not recorded
    site: IntArray
    # (N,) seconds since 1970, UTC
    created_at: FloatArray
    # (N,) whether the case belongs to the evaluation partition
    evaluation: npt.NDArray[np.bool_]
    # (N,) probability of a second planned read
    pi: FloatArray
    class_probs: FloatArray
    disagreement_probs: FloatArray
    # (N, 4) probability that at least four of five name the leading class, and another; that both of two do; NaN
    # without a concentration
    consensus: FloatArray
    # (N, K) blind planned labels
    label_counts: IntArray
    # (N,) fall of the loss by one label over all splits of these; NaN with fewer than two labels or without a
    # concentration
    posterior_gain: FloatArray
    # (N, 4) numbers of those who gave the first four of them, 0 where there are fewer
    annotators: IntArray
    # (N, 4) classes of these, −1 where there are fewer
    said: IntArray
    # (N,) class that answers the first planned read, −1 without an answer by one of the service's own annotators
    first_class: IntArray
    # (N,) number of who answered it, 0 without an answer
    first_annotator: IntArray
    # (N,) when that answer was given, seconds since 1970; NaN without one
    first_answered_at: FloatArray
    # (N,) when the first planned read was due, NaN without one
    first_due_at: FloatArray
    # (N,) whether annotators were drawn for the planned reads
    drawn: npt.NDArray[np.bool_]
    # (N,) whether an outside system gave one of the labels
    outside: npt.NDArray[np.bool_]
    n_planned: IntArray
    # (N,) when the first planned read is due, −∞ once it has ended, ∞ while its answer may still be corrected
    first_open_until: FloatArray
    # (N,) the same of all planned reads, the latest
    open_until: FloatArray
    # (N,) planned reads that ended without a diagnosis
    cannot_tell: IntArray
    # (N, 3) mean optical density of red, green and blue; NaN where it was not measured
    stain: FloatArray
    # (N,) 1 if the image is unlike the training cells, 0 if not, −1 if nothing checked
    out_of_distribution: npt.NDArray[np.int8]
    # (N,) from them, NaN where it is unknown
    feature_distance: FloatArray
    # (N,) whether the release was trained on the image, or on others of its patient
    trained_on: npt.NDArray[np.bool_]

    @classmethod
    def empty(cls, classes: list[str], n: int) -> "EvaluationDataset":
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
            consensus=np.full((n, 4), np.nan),
            label_counts=np.zeros((n, k), dtype=np.int64),
            posterior_gain=np.full(n, np.nan),
            annotators=np.zeros((n, MAX_KNOWN_ANNOTATORS), dtype=np.int64),
            said=np.full((n, MAX_KNOWN_ANNOTATORS), -1, dtype=np.int64),
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
            out_of_distribution=np.zeros(n, dtype=np.int8),
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

    def take(self, rows: npt.NDArray[np.intp]) -> "EvaluationDataset":
        """Cases by position."""
        if len(rows) == len(self) and (rows == np.arange(len(self))).all():
            return self
        return EvaluationDataset(
            self.classes, self.sites, **{k: np.take(v, rows, axis=0) for k, v in self.arrays().items()}
        )

    @classmethod
    def joined(cls, parts: list["EvaluationDataset"]) -> "EvaluationDataset":
        """Columns of the same classes, one after the other."""
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


def pack_dataset_ids(columns: EvaluationDataset) -> npt.NDArray[np.bytes_]:
    """Identifiers of the cases (N,) as byte strings."""
    return np.ascontiguousarray(columns.case_id).view(_ID).ravel()


def merge_changed_cases(
    columns: EvaluationDataset, by_id: npt.NDArray[np.intp], changed: list[uuid.UUID], fresh: EvaluationDataset
) -> EvaluationDataset:
    """Merge fresh rows of the changed cases, keeping cases of one patient together."""
    # ``target``: place of each fresh row, before the first kept row of its patient or of a later one.
    # ``source``: old position of what fills each other place.
    outdated = _find_positions(_pack_case_ids(changed), pack_dataset_ids(columns), by_id)
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
    return EvaluationDataset(columns.classes, columns.sites | fresh.sites, **arrays)


def overwrite_changed_cases(
    columns: EvaluationDataset, by_id: npt.NDArray[np.intp], changed: list[uuid.UUID], fresh: EvaluationDataset
) -> EvaluationDataset | None:
    """Overwrite the old rows in place; return None if cases were added, removed or moved."""
    # Most changes are labels: of each case that changed there is a row before and after, of the same patient.
    ids, new = pack_dataset_ids(columns), pack_dataset_ids(fresh)
    outdated = _find_positions(_pack_case_ids(changed), ids, by_id)
    target = _find_positions(new, ids, by_id)
    if not outdated.size == target.size == len(fresh) or (columns.cluster[target] != fresh.cluster).any():
        return None
    for name, old in columns.arrays().items():
        old[target] = getattr(fresh, name)
    return EvaluationDataset(columns.classes, columns.sites | fresh.sites, **columns.arrays())


def _pack_case_ids(case_ids: list[uuid.UUID]) -> npt.NDArray[np.bytes_]:
    return np.frombuffer(b"".join(case_id.bytes for case_id in case_ids), dtype=_ID)


def _find_positions(
    wanted: npt.NDArray[np.bytes_], ids: npt.NDArray[np.bytes_], by_id: npt.NDArray[np.intp]
) -> npt.NDArray[np.intp]:
    if not len(ids):
        return np.empty(0, dtype=np.intp)
    nearest = by_id[np.minimum(np.searchsorted(ids, wanted, sorter=by_id), len(ids) - 1)]
    return np.asarray(nearest[ids[nearest] == wanted])
