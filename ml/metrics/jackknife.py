"""Jackknife estimates and standard errors that leave out one cluster or case at a time."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from ml.metrics.intervals import LINEAR, Bounds, QuadraticPart, ReaderPart, p_value_decrease, skewed_interval
from ml.util.arrays import EqualByValue, FloatArray

_T = TypeVar("_T", bound=np.generic)


class ModelAssistedDocument(TypedDict):
    """A ``ModelAssisted`` as JSON values; what is not a number is None."""

    value: float | None
    se: float | None
    low: float | None
    high: float | None


class EstimateDocument(TypedDict):
    """An ``Estimate`` as JSON values; what is not a number is None."""

    value: float | None
    se: float | None
    low: float | None
    high: float | None
    n: int
    dropped: int
    ess: float | None
    clipped: bool
    singleton_mass: float
    horvitz_thompson: float | None
    largest_weight: float | None
    model_assisted: ModelAssistedDocument | None
    low_new: float | None
    high_new: float | None


@dataclass(frozen=True, eq=False)
class ModelAssisted(EqualByValue):
    """A mean with the help of what is known of all cases (``ml.metrics.model_assisted``).

    Attributes:
        value: the estimate; NaN where no case could be used.
        se: standard error, None where fewer than two clusters could be used.
        low: lower end of the 95 % interval.
        high: upper end.
        p_of_fall: one-sided p value of «zero or more», for changes.
    """

    value: float
    se: float | None
    low: float | None
    high: float | None
    p_of_fall: float | None = None

    def to_dict(self) -> ModelAssistedDocument:
        """Return it as JSON values: NaN becomes None."""
        ends = (self.value, self.se, self.low, self.high)
        value, se, low, high = (_finite(end) for end in ends)
        return {"value": value, "se": se, "low": low, "high": high}


@dataclass(frozen=True, eq=False)
class Estimate(EqualByValue):
    """A point estimate with standard error, 95 % interval and sample sizes.

    Attributes:
        value: the estimate; NaN if no case could be used, or, of CL, if no bin holds two cases to compare.
        se: standard error, None where fewer than two clusters could be used.
        low: lower end of the 95 % interval.
        high: upper end of the 95 % interval.
        n: cases used.
        dropped: cases this estimator could not use, for want of labels.
        ess: effective sample size (Σw)²/Σw².
        clipped: True where a negative squared quantity was set to zero before the root.
        singleton_mass: share of the weight (mean over classes) in bins with one member.
        horvitz_thompson: the estimate over the number of all cases, where weights were inverse probabilities.
        largest_weight: of the cases used, where there were weights.
        model_assisted: a mean with the help of what is known of all cases, where there were weights.
        p_of_fall: one-sided p value of «zero or more», for changes; None where there is no standard error.
        low_new: lower end of the 95 % interval for new readers like these, at least as wide as that for these readers;
            None where it is not known who read, or fewer than three did.
        high_new: upper end.

    >>> estimate = Estimate(0.14, 0.01, 0.12, 0.16, n=90, dropped=10, ess=90.0)
    >>> estimate.to_dict()["dropped"], float(estimate)
    (10, 0.14)
    """

    value: float
    se: float | None
    low: float | None
    high: float | None
    n: int
    dropped: int
    ess: float
    clipped: bool = False
    singleton_mass: float = 0.0
    horvitz_thompson: float | None = None
    largest_weight: float | None = None
    model_assisted: ModelAssisted | None = None
    p_of_fall: float | None = None
    low_new: float | None = None
    high_new: float | None = None

    @property
    def efficient(self) -> "Estimate | ModelAssisted":
        """The model-assisted estimate where there is one, else this one: with the smaller error of the two."""
        return self if self.model_assisted is None else self.model_assisted

    def __float__(self) -> float:
        """The value alone."""
        return self.value

    def to_dict(self) -> EstimateDocument:
        """Return it as JSON values: NaN becomes None."""
        return {
            "value": _finite(self.value),
            "se": _finite(self.se),
            "low": _finite(self.low),
            "high": _finite(self.high),
            "n": self.n,
            "dropped": self.dropped,
            "ess": _finite(self.ess),
            "clipped": self.clipped,
            "singleton_mass": self.singleton_mass,
            "horvitz_thompson": _finite(self.horvitz_thompson),
            "largest_weight": _finite(self.largest_weight),
            "model_assisted": None if self.model_assisted is None else self.model_assisted.to_dict(),
            "low_new": _finite(self.low_new),
            "high_new": _finite(self.high_new),
        }


def _finite(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else value


@dataclass(frozen=True)
class Sample:
    """The cases that an estimator may use.

    Attributes:
        rows: their positions in the input; the cases of a cluster stand together, so that sums over clusters run
            through memory once.
        weight: (n,) instance weights.
        cluster: (n,) cluster numbers 0..n_clusters−1, rising; None where every case is its own cluster.
        n_clusters: number of clusters.
        dropped: cases left out.
        whole: whether these are all cases, in the order of the input.
    """

    rows: npt.NDArray[np.intp]
    weight: FloatArray
    cluster: npt.NDArray[np.intp] | None
    n_clusters: int
    dropped: int
    whole: bool

    def take(self, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Rows of these cases; not a copy where they are all."""
        return values if self.whole else values[self.rows]

    def per_cluster(self, values: FloatArray) -> FloatArray:
        """Sum values (n,) within clusters."""
        if self.cluster is None:
            return values
        return np.asarray(np.bincount(self.cluster, weights=values, minlength=self.n_clusters), dtype=np.float64)

    @cached_property
    def total_weight(self) -> float:
        """Σw."""
        return float(self.weight.sum())

    @cached_property
    def cluster_weight(self) -> FloatArray:
        """Weight (n_clusters,) of each cluster."""
        return self.per_cluster(self.weight)

    @cached_property
    def ess(self) -> float:
        """Effective sample size (Σw)²/Σw²."""
        return _effective(self.weight)

    @cached_property
    def effective_clusters(self) -> float:
        """Effective number of clusters, the same by the weights of the clusters."""
        return _effective(self.cluster_weight)


def _effective(weight: FloatArray) -> float:
    squares = float((weight**2).sum())
    return float(weight.sum()) ** 2 / squares if squares > 0 else 0.0


def select_sample(usable: npt.NDArray[np.bool_], weight: FloatArray | None, cluster: npt.NDArray[Any] | None) -> Sample:
    """Select the usable cases; the others are counted as dropped."""
    rows = np.flatnonzero(usable)
    weights = np.ones(rows.size) if weight is None else weight[rows]
    dropped = int(usable.size - rows.size)
    if cluster is None:
        return Sample(rows, weights, None, rows.size, dropped, dropped == 0)
    names, whole = cluster[rows], dropped == 0
    if (names[1:] < names[:-1]).any():
        whole = False
        order = np.argsort(names, kind="stable")
        rows, weights, names = rows[order], weights[order], names[order]
    numbers = _rising(names)
    return Sample(rows, weights, numbers, int(numbers[-1]) + 1 if rows.size else 0, dropped, whole)


def _rising(names: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Numbers (n,) 0, 1, … of names that stand together."""
    numbers = np.zeros(names.size, dtype=np.intp)
    np.cumsum(names[1:] != names[:-1], out=numbers[1:])
    return numbers


def numbers_of(names: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Numbers (n,) 0, 1, … of names in their order, which need not be sorted where they rise already."""
    if (names[1:] < names[:-1]).any():
        return np.unique(names, return_inverse=True)[1]
    return _rising(names)


@dataclass(frozen=True)
class Replicates:
    """A value and the values it would have without each cluster in turn (G,)."""

    value: float
    without: FloatArray

    def __sub__(self, other: "Replicates") -> "Replicates":
        return Replicates(self.value - other.value, self.without - other.without)

    def standard_error(self) -> float | None:
        """Delete-one jackknife, None where fewer than two clusters remain."""
        count = self.without.size
        if count < 2 or not np.isfinite(self.without).all():
            return None
        spread = float(((self.without - self.without.mean()) ** 2).sum())
        return float(np.sqrt((count - 1) / count * spread))


def mean_replicates(values: FloatArray, sample: Sample) -> Replicates:
    """Weighted (Hájek) mean of values (n,) and its leave-one-cluster-out values."""
    weighted = sample.weight * values
    return ratio_replicates(float(weighted.sum()), sample.per_cluster(weighted), sample)


def ratio_replicates(total: float, removed: FloatArray, sample: Sample) -> Replicates:
    """Value total/W with leave-one-out values (total − removed_g)/(W − W_g)."""
    weight = sample.total_weight
    if weight <= 0:
        return Replicates(float("nan"), np.full(sample.n_clusters, np.nan))
    with np.errstate(invalid="ignore", divide="ignore"):
        without = (total - removed) / (weight - sample.cluster_weight)
    return Replicates(total / weight, without)


def to_estimate(
    replicates: Replicates,
    sample: Sample,
    singleton_mass: float = 0.0,
    *,
    bounds: Bounds | None = None,
    quadratic: QuadraticPart = LINEAR,
    readers: ReaderPart | None = None,
) -> Estimate:
    """Estimate with a 95 % interval that knows of few, unequal and skewed clusters (``skewed_interval``).

    Args:
        replicates: value, and what it would be without each cluster.
        sample: the cases it rests on.
        singleton_mass: share of the weight that could not be used.
        bounds: range of the quantity, which its interval keeps; None for signed quantities.
        quadratic: what pairs of clusters add to the error. The jackknife counts its variance twice (Efron and Stein
            1981, Ann. Statist. 9:586), which is taken off once; what is left is no less than it.
        readers: what readers add, for the interval for new ones; None where that is not known.
    """
    value, se, low, high, p = replicates.value, replicates.standard_error(), None, None, None
    if se is not None:
        influence = value - replicates.without
        if quadratic.variance > 0:
            se = float(np.sqrt(max(se**2 - quadratic.variance, quadratic.variance)))
        given = (value, se, influence, sample.effective_clusters, bounds, quadratic.curvature)
        low, high = skewed_interval(*given)
        p = p_value_decrease(value, se, influence)
    estimate = Estimate(
        value, se, low, high, sample.rows.size, sample.dropped, sample.ess, singleton_mass=singleton_mass, p_of_fall=p
    )
    if readers is None or low is None or high is None:
        return estimate
    ends = skewed_interval(*given, readers)
    return replace(estimate, low_new=min(low, ends[0]), high_new=max(high, ends[1]))


def root(squared: Estimate) -> Estimate:
    """Root of a squared quantity: CE = √max(CL, 0), with the roots of CL's clipped interval.

    The standard error is by the delta method, None where the value is clipped to zero.
    """
    value = float(np.sqrt(np.maximum(squared.value, 0.0)))
    return replace(
        squared,
        value=value,
        se=squared.se / (2 * value) if squared.se is not None and value > 0 else None,
        low=_clipped_root(squared.low),
        high=_clipped_root(squared.high),
        low_new=_clipped_root(squared.low_new),
        high_new=_clipped_root(squared.high_new),
        clipped=squared.value < 0,
    )


def _clipped_root(end: float | None) -> float | None:
    return None if end is None else float(np.sqrt(max(end, 0.0)))
