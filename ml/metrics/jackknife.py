"""An estimate with its standard error, by leaving out one cluster (or case) at a time."""

from dataclasses import dataclass, replace
from typing import Any, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from ml.arrays import FloatArray

_T = TypeVar("_T", bound=np.generic)


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


@dataclass(frozen=True)
class Estimate:
    """A value with its uncertainty and what it rests on.

    Attributes:
        value: the estimate; NaN where no case could be used.
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

    >>> Estimate(0.14, 0.01, 0.12, 0.16, n=90, dropped=10, ess=90.0).to_dict()["dropped"]
    10
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

    @property
    def ess(self) -> float:
        """Effective sample size (Σw)²/Σw²."""
        squares = float((self.weight**2).sum())
        return float(self.weight.sum()) ** 2 / squares if squares > 0 else 0.0


def select(usable: npt.NDArray[np.bool_], weight: FloatArray | None, cluster: npt.NDArray[Any] | None) -> Sample:
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
    numbers = np.zeros(rows.size, dtype=np.intp)
    np.cumsum(names[1:] != names[:-1], out=numbers[1:])
    return Sample(rows, weights, numbers, int(numbers[-1]) + 1 if rows.size else 0, dropped, whole)


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
    return ratio_replicates(float((sample.weight * values).sum()), sample.per_cluster(sample.weight * values), sample)


def ratio_replicates(total: float, removed: FloatArray, sample: Sample) -> Replicates:
    """Value total/W with leave-one-out values (total − removed_g)/(W − W_g)."""
    weight = float(sample.weight.sum())
    if weight <= 0:
        return Replicates(float("nan"), np.full(sample.n_clusters, np.nan))
    with np.errstate(invalid="ignore", divide="ignore"):
        without = (total - removed) / (weight - sample.per_cluster(sample.weight))
    return Replicates(total / weight, without)


def to_estimate(replicates: Replicates, sample: Sample, singleton_mass: float = 0.0) -> Estimate:
    """Estimate with a 95 % interval by Student's t: ten patients tell less about their own spread than a thousand."""
    se = replicates.standard_error()
    half = None if se is None else float(stdtrit(replicates.without.size - 1, 0.975)) * se
    low = None if half is None else replicates.value - half
    high = None if half is None else replicates.value + half
    size = sample.rows.size
    return Estimate(replicates.value, se, low, high, size, sample.dropped, sample.ess, singleton_mass=singleton_mass)


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
        clipped=squared.value < 0,
    )


def _clipped_root(end: float | None) -> float | None:
    return None if end is None else float(np.sqrt(max(end, 0.0)))
