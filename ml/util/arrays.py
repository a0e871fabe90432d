"""Validation of label counts and probabilities, the two arrays behind every estimate."""

from dataclasses import Field, fields
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ml.dataframes import refuse_names

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: How far the sum of a probability row may be from one (contract: tables on disk).
ROW_SUM_TOLERANCE = 1e-6
# the same of float16
_ROUNDED_SUM = 1e-3
# rows that are checked at once
_BLOCK = 4096


def first_offender(bad: npt.ArrayLike) -> str:
    """Name the first row of ``bad`` (N,) that is true, and how many rows are."""
    rows = np.flatnonzero(bad)
    return f"first at row {rows[0]}, {rows.size} in all"


def require_whole(value: object, name: str, least: int) -> None:
    """Refuse what is no whole number of at least so much."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def as_label_counts(label_counts: npt.ArrayLike) -> IntArray:
    """Check label counts (N, K) and return them as int64."""
    refuse_names(label_counts, "label_counts")
    counts = _numbers(label_counts, "label_counts", None)
    if counts.ndim != 2 or counts.shape[1] < 2:
        raise ValueError(f"label_counts must have shape (N, K) with K >= 2, got {counts.shape}")
    if counts.dtype.kind not in "iub":
        values = _numbers(counts, "label_counts")
        # abs() < 2**53 is false for NaN and infinity too
        bad = ~((values == np.floor(values)) & (np.abs(values) < 2**53)).all(axis=1)
        if bad.any():
            raise ValueError(f"label_counts must be whole numbers: {first_offender(bad)}")
    counts = counts.astype(np.int64, copy=False)
    if counts.size and counts.min() < 0:
        raise ValueError(f"label_counts must not be negative: {first_offender((counts < 0).any(axis=1))}")
    return counts


def as_class_probs(class_probs: npt.ArrayLike, name: str = "class_probs") -> FloatArray:
    """Check class probabilities (..., N, K) and return them as float64."""
    refuse_names(class_probs, name)
    probs = _numbers(class_probs, name)
    if probs.ndim < 2 or probs.shape[-1] < 2:
        raise ValueError(f"{name} must have shape (..., N, K) with K >= 2, got {probs.shape}")
    rows = probs.reshape(-1, probs.shape[-1])
    totals, ones = np.empty(len(rows)), np.ones(rows.shape[1])
    for start in range(0, len(rows), _BLOCK):  # which stays in the processor's cache
        block = rows[start : start + _BLOCK]
        if not block.min() >= 0:  # nor where any value is NaN
            raise ValueError(_outside(rows, name))
        # a product with ones is faster than a sum of short rows
        totals[start : start + _BLOCK] = block @ ones
    bad = np.abs(totals - 1) > ROW_SUM_TOLERANCE
    if bad.any():
        if rows.max() > 1 + ROW_SUM_TOLERANCE:  # which no row that sums to one has
            raise ValueError(_outside(rows, name))
        raise ValueError(f"rows of {name} must sum to 1 within {ROW_SUM_TOLERANCE:g}: {first_offender(bad)}")
    return probs


def _outside(rows: FloatArray, name: str) -> str:
    bad = ~((rows >= 0) & (rows <= 1 + ROW_SUM_TOLERANCE)).all(axis=1)
    return f"{name} must lie in [0, 1]: {first_offender(bad)}"


def as_logits(logits: npt.ArrayLike) -> FloatArray:
    """Check logits (N, K), or (S, N, K) of an ensemble, and return them as float64."""
    refuse_names(logits, "logits")
    scores = _numbers(logits, "logits")
    if scores.ndim not in {2, 3} or scores.shape[-1] < 2:
        raise ValueError(f"logits must have shape (N, K) or (S, N, K) with K >= 2, got {scores.shape}")
    _refuse_infinite(scores, "logits")
    return scores


def as_features(features: npt.ArrayLike, logits: FloatArray) -> FloatArray:
    """Check features (N, D) or (S, N, D) against logits, as float64."""
    values = _numbers(features, "features")
    if values.shape[:-1] != logits.shape[:-1]:
        expected = ", ".join(map(str, logits.shape[:-1]))
        raise ValueError(f"features must have shape ({expected}, D) as logits have {logits.shape}, got {values.shape}")
    _refuse_infinite(values, "features")
    return values


def _numbers(values: npt.ArrayLike, name: str, dtype: type[np.float64] | None = np.float64) -> npt.NDArray[Any]:
    try:
        return np.asarray(values, dtype=dtype)
    except (TypeError, ValueError) as exc:
        raise ValueError(f"{name} cannot be read as an array of numbers: {exc}") from exc


def _refuse_infinite(values: FloatArray, name: str) -> None:
    bad = ~np.isfinite(values).all(axis=-1)
    if bad.any():
        raise ValueError(f"{name} must be finite numbers: {first_offender(bad.reshape(-1, bad.shape[-1]).any(axis=0))}")


def refuse_probabilities(logits: FloatArray) -> None:
    """Refuse probabilities in place of logits."""
    if logits.size and logits.min() >= 0 and np.abs(logits.sum(axis=-1) - 1).max() <= _ROUNDED_SUM:
        raise ValueError(
            "logits are probabilities: every row lies in [0, 1] and sums to 1. Pass the network's outputs before the "
            "softmax, or logarithms of the probabilities, np.log(np.clip(probabilities, 1e-12, 1))"
        )


def as_vector(values: npt.ArrayLike, length: int, name: str, low: float, high: float) -> FloatArray:
    """Check a vector (N,) with every value in [low, high] and return it as float64."""
    vector = _numbers(values, name)
    if vector.shape != (length,):
        raise ValueError(f"{name} must have shape ({length},), got {vector.shape}")
    bad = ~((vector >= low) & (vector <= high))
    if bad.any():
        raise ValueError(f"{name} must lie in [{low:g}, {high:g}]: {first_offender(bad)}")
    return vector


def gini(class_probs: FloatArray) -> FloatArray:
    """Probability 1 − Σ_k f_k² that two draws from f differ, over the last axis.

    Computed as Σ f_k (1 − f_k), where 1 minus the largest is the sum of the others, so that nothing
    cancels for nearly certain rows.

    >>> gini(np.array([[1 - 1e-20, 1e-20]]))
    array([2.e-20])
    """
    leader = class_probs.argmax(axis=-1, keepdims=True)
    rest = class_probs.copy()
    np.put_along_axis(rest, leader, 0.0, axis=-1)
    largest = np.take_along_axis(class_probs, leader, axis=-1)[..., 0]
    result: FloatArray = largest * rest.sum(axis=-1) + (rest * (1 - rest)).sum(axis=-1)
    return result


class EqualByValue:
    """Equality of dataclasses by value, arrays and NaN included.

    Use with ``@dataclass(eq=False)``.

    >>> from ml.distributions import PointCpe
    >>> PointCpe([[0.5, 0.5]]) == PointCpe([[0.5, 0.5]]), PointCpe([[0.5, 0.5]]) == PointCpe([[0.4, 0.6]])
    (True, False)
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __eq__(self, other: object) -> bool:
        """Whether it is the same type with the same values."""
        if type(other) is not type(self):
            return NotImplemented
        return all(_are_equal(getattr(self, field.name), getattr(other, field.name)) for field in fields(self))

    def __hash__(self) -> int:
        """Hash of the type and the shapes: equal values have equal shapes."""
        values = (getattr(self, field.name) for field in fields(self))
        return hash((type(self), *(value.shape for value in values if isinstance(value, np.ndarray))))


def _are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        both = isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
        return both and np.array_equal(one, other, equal_nan=one.dtype.kind == other.dtype.kind == "f")
    if type(one) is not type(other):
        return bool(one == other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_are_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    return bool(one == other) or (isinstance(one, float) and one != one and other != other)
