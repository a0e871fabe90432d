"""Estimates with 95 % intervals from the jackknife.

Three corrections serve skewed, unequal and bounded quantities:
Student's t with the degrees of freedom of the variance (Satterthwaite
1946), Hall's transformation for skewness (Hall 1992, J. R. Statist.
Soc. B 54:221), and the logit for a quantity with a range.
"""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, expit, logit, stdtr, stdtrit

from ml.documents import LEFT_OUT, AsDocument
from ml.metrics.bayesian_bootstrap import MANY, HalfCases, mean_interval
from ml.metrics.cases import Sample
from ml.util.arrays import EqualByValue, FloatArray

# half an interval, as a share of the range or of the value, a ratio or a loss below which differences are rounding
_NO_SPREAD = 1e-12
# of log(1 − skill): a lower end below −99 states no more than −99 does
_LARGEST_EXPONENT = float(np.log(100))


class Bounds(NamedTuple):
    """Range of a quantity."""

    low: float
    high: float


class QuadraticPart(NamedTuple):
    """Pairs' contribution to an estimate's error."""

    curvature: float  # Σ_{g ≠ h} u_g u_h ψ_gh
    variance: float  # of Σ_{g < h} ψ_gh


class ReaderPart(NamedTuple):
    """Readers' contribution to an estimate's error, as a random sample."""

    variance: float  # to be added to that by patients
    df: float  # its degrees of freedom


#: Disagreements or gross errors below which intervals rest on the range of what was not seen.
FEW_EVENTS = 10
#: For the readers who read.
NO_READERS = ReaderPart(0.0, float("inf"))
#: Of a mean.
LINEAR = QuadraticPart(0.0, 0.0)
#: Of shares and of the squared loss of a probability.
SHARE = Bounds(0.0, 1.0)
#: Of the squared loss of class probabilities.
SQUARED_LOSS = Bounds(0.0, 2.0)
#: Of a difference of shares.
DIFFERENCE = Bounds(-1.0, 1.0)
#: Of −φ̂, a case's term of EL less that of L.
MINUS_DISAGREEMENT = Bounds(-1.0, 0.0)
#: Of a case's term of EL: at least −1/n, two labels at the least.
EPISTEMIC_LOSS = Bounds(-0.5, 2.0)


def degrees_of_freedom(influence: FloatArray) -> float:
    """Degrees of freedom 2 V² / Var(V), at most G − 1."""
    squares = influence**2
    total, count = float(squares.sum()), influence.size
    spread = float((squares**2).sum()) - total**2 / count
    return float(min(count - 1, 2 * total**2 / spread)) if spread > 0 else float(count - 1)


def skewness(influence: FloatArray) -> float:
    """Skewness Σu³ / (Σu²)^1.5, between −1 and 1."""
    largest = float(np.abs(influence).max(initial=0.0))
    if largest == 0:
        return 0.0
    scaled = influence / largest  # powers of tiny numbers would be 0
    squares = scaled * scaled  # a third power is ten times slower than two products
    return float((squares * scaled).sum() / squares.sum() ** 1.5)


def skewed_interval(
    value: float,
    se: float,
    influence: FloatArray,
    effective: float,
    bounds: Bounds | None = None,
    curvature: float = 0.0,
    readers: ReaderPart = NO_READERS,
) -> tuple[float, float]:
    """95 % interval of an estimate.

    T = (h(estimate) − h(truth)) / s has the quantiles of Student's t once its skewness is taken out by
    g(T) = T + bT²/3 + b²T³/27 + d. With a the skewness of the influences and c the curvature of a quadratic estimate,
    b = a + 3c/2 and d = a/6 + c/2 (Edgeworth expansion of a studentised U-statistic: Helmers 1991, Ann. Statist.
    19:470). h is the identity, or the logit on the range, which takes 3/2 (1 − 2p) s/(p(1 − p)) off b; p is the place
    in the range and s the standard error there. If no cluster differs from another, the interval of a quantity with a
    range is Clopper and Pearson's for as many yes-or-no answers.
    """
    centred = influence - influence.mean()
    total = float(np.sqrt(se**2 + readers.variance))
    t = _quantile(degrees_of_freedom(centred), total, readers)
    # readers are taken for symmetric: too few to tell
    a = skewness(centred) * (se / total) ** 3 if total > 0 else 0.0
    bend, se = curvature / total**3 if total > 0 else 0.0, total
    b, shift = a + 1.5 * bend, a / 6 + bend / 2
    low, high = (value - se * _untransformed(end, b, shift) for end in (t, -t))
    if bounds is None:
        return low, high
    width = bounds.high - bounds.low
    p, s = (value - bounds.low) / width, se / width
    if s < _NO_SPREAD:
        ends = binomial_interval(np.array([p]), np.array([effective]))
        return bounds.low + width * float(ends[0][0]), bounds.low + width * float(ends[1][0])
    if not 0 < p < 1:  # a difference estimator can leave the range
        return float(np.clip(low, *bounds)), float(np.clip(high, *bounds))
    step = s / (p * (1 - p))
    b -= 1.5 * (1 - 2 * p) * step
    low, high = (expit(logit(p) - step * _untransformed(end, b, shift)) for end in (t, -t))
    return bounds.low + width * float(low), bounds.low + width * float(high)


def _quantile(df: float, se: float, readers: ReaderPart) -> float:
    # the readers' variance counts twice (Cochran 1964 has it once): few readers whose
    # spread comes out small by chance would miss too often
    of_patients = float(stdtrit(df, 0.975))
    if readers.variance <= 0:
        return of_patients
    of_readers = max(of_patients, float(stdtrit(readers.df, 0.975)))
    share = min(1.0, 2 * readers.variance / se**2)
    return float(np.sqrt(of_patients**2 * (1 - share) + of_readers**2 * share))


def p_value_decrease(value: float, se: float, influence: FloatArray) -> float:
    """One-sided p value of «zero or more»."""
    if se <= 0:
        return float(value >= 0)
    centred = influence - influence.mean()
    a, t = skewness(centred), value / se
    transformed = t + a * t**2 / 3 + a**2 * t**3 / 27 + a / 6
    return float(stdtr(degrees_of_freedom(centred), transformed))


def _untransformed(quantile: float, b: float, shift: float) -> float:
    # 3/b (c − 1) with c = ∛(1 + b · shifted), written so that no digits cancel if b is small
    shifted = quantile - shift
    c = float(np.cbrt(1 + b * shifted))
    return 3 * shifted / (c * c + c + 1)


def binomial_interval(mean: FloatArray, n: npt.NDArray[Any]) -> tuple[FloatArray, FloatArray]:
    """95 % intervals of shares by Clopper and Pearson."""
    hits = np.clip(mean, 0.0, 1.0) * n
    low = np.where(hits > 0, betaincinv(np.maximum(hits, 1e-12), n - hits + 1, 0.025), 0.0)
    high = np.where(hits < n, betaincinv(hits + 1, np.maximum(n - hits, 1e-12), 0.975), 1.0)
    return low, high


class ModelAssistedDocument(TypedDict):
    """A ``ModelAssisted`` as JSON values; what is not a number is None."""

    value: float | None
    se: float | None
    low: float | None
    high: float | None


class EstimateDocument(ModelAssistedDocument):
    """An ``Estimate`` as JSON values."""

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
class ModelAssisted(EqualByValue, AsDocument[ModelAssistedDocument]):
    """A mean that uses features of all cases."""

    value: float  # the estimate; NaN where no case could be used
    se: float | None  # standard error, None where fewer than two clusters could be used
    low: float | None  # lower end of the 95 % interval
    high: float | None  # upper end
    p_of_fall: float | None = field(default=None, metadata=LEFT_OUT)  # for changes


@dataclass(frozen=True, eq=False)
class Estimate(EqualByValue, AsDocument[EstimateDocument]):
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
        largest_weight: of the cases used, if there were weights.
        model_assisted: a mean with the help of what is known of all cases, if there were weights.
        p_of_fall: one-sided p value of «zero or more», for changes; None if there is no standard error.
        low_new: lower end of the 95 % interval for new readers like these, at least as wide as that for these readers;
            None if the readers are unknown, or fewer than three did.
        high_new: upper end.

    Examples:
        >>> from secondread import Estimate
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
    p_of_fall: float | None = field(default=None, metadata=LEFT_OUT)
    low_new: float | None = None
    high_new: float | None = None

    @property
    def efficient(self) -> "Estimate | ModelAssisted":
        """The model-assisted estimate if there is one."""
        return self if self.model_assisted is None else self.model_assisted

    def __float__(self) -> float:
        """The value alone."""
        return self.value


@dataclass(frozen=True)
class Replicates:
    """A value and the values it would have without each cluster in turn (G,)."""

    value: float
    without: FloatArray

    def __sub__(self, other: "Replicates") -> "Replicates":
        return Replicates(self.value - other.value, self.without - other.without)

    def log_of_rest(self) -> "Replicates":
        """Log(1 − x), which has no range; NaN where x is 1."""
        with np.errstate(invalid="ignore", divide="ignore"):
            value, without = (np.log(1 - x) for x in (np.float64(self.value), self.without))
        return Replicates(float(value), without)

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
    if weight <= 0 or sample.n_clusters < 2:  # rounding leaves a little of a weight of nothing
        return Replicates(total / weight if weight > 0 else float("nan"), np.full(sample.n_clusters, np.nan))
    with np.errstate(invalid="ignore", divide="ignore"):
        without = (total - removed) / (weight - sample.cluster_weight)
    return Replicates(total / weight, without)


def to_estimate(
    replicates: Replicates,
    sample: Sample,
    singleton_mass: float = 0.0,
    *,
    bounds: Bounds | None = None,
    term: Bounds | None = None,
    limits: Bounds | None = None,
    quadratic: QuadraticPart = LINEAR,
    includes: Bounds | None = None,
    readers: ReaderPart | None = None,
) -> Estimate:
    """Estimate with a 95 % interval.

    It is ``skewed_interval``, with the range ``bounds`` of a ratio, or of a mean over few clusters, whose cases have
    terms in the range ``term``, ``mean_interval``. It contains ``includes``, and ends within ``limits`` (those of a
    term where left out) and the value.
    """
    if bounds is None and term is not None and term.low >= 0:  # a signed estimator may leave a range
        bounds = term
    value, se, low, high, p = replicates.value, replicates.standard_error(), None, None, None
    if se is not None:
        influence = value - replicates.without
        if quadratic.variance > 0:  # the jackknife counts it twice (Efron and Stein 1981)
            se = float(np.sqrt(max(se**2 - quadratic.variance, quadratic.variance)))
        given = (value, se, influence, sample.effective_clusters, bounds, quadratic.curvature)
        if term is not None and sample.n_clusters < MANY:
            low, high = few_cases_interval(replicates, sample, term)
        else:
            low, high = skewed_interval(*given)
        if includes is not None:
            low, high = min(low, includes.low), max(high, includes.high)
        p = p_value_decrease(value, se, influence)
    estimate = Estimate(
        value, se, low, high, sample.rows.size, sample.dropped, sample.ess, singleton_mass=singleton_mass, p_of_fall=p
    )
    if low is None or high is None:
        return estimate
    if readers is not None:
        ends = skewed_interval(*given, readers) if readers.variance > 0 else (low, high)
        estimate = replace(estimate, low_new=min(low, ends[0]), high_new=max(high, ends[1]))
    return _within(estimate, limits or term)


def _within(estimate: Estimate, limits: Bounds | None) -> Estimate:
    if limits is None:
        return estimate
    least, most = min(limits.low, estimate.value), max(limits.high, estimate.value)
    names = ("low", "high", "low_new", "high_new")
    ends = {name: end for name in names if (end := getattr(estimate, name)) is not None}
    return replace(estimate, **{name: min(max(end, least), most) for name, end in ends.items()})


def skill_replicates(loss: Replicates, constant: Replicates) -> Replicates:
    """1 − loss / loss of the constant; NaN if that is 0."""
    pairs = ((np.float64(loss.value), constant.value), (loss.without, constant.without))
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = [np.where(best > _NO_SPREAD, own / best, np.nan) for own, best in pairs]
    value, without = (1 - np.where(np.abs(share) < _NO_SPREAD, 0.0, share) for share in shares)
    return Replicates(float(value), without)


def to_skill(
    loss: Replicates,
    constant: Replicates,
    sample: Sample,
    term: Bounds | None,
    *,
    unseen: float | None = None,
    lowest: float = -np.inf,
    readers: ReaderPart | None = None,
) -> Estimate:
    """Estimate of 1 − loss / constant with a 95 % interval, whose ends are ``lowest`` and 1 at most.

    The interval is that of a mean of losses, in the range ``term`` for a case, with what each cluster adds to the
    constant's loss as its weight. The half cases at the ends of the range have the constant's loss ``unseen``, its mean
    if left out. Without a range, and for new readers, it is the jackknife's of log(1 − x).
    """
    skill = _skill_by_logarithm(skill_replicates(loss, constant), sample, lowest, readers)
    if term is None:
        return skill
    skill = replace(skill, low=None, high=None)
    if sample.n_clusters < 2 or not np.isfinite(skill.value):
        return skill
    own, others = (_totals(one, sample) for one in (loss, constant))
    if not (np.isfinite(own).all() and others.sum() > 0):
        return skill
    # no mean: what clusters add to it does not quite add up to it
    weights, largest = others * (sample.total_weight / others.sum()), sample.largest_weight
    relative = 1.0 if unseen is None else unseen / constant.value
    ends = mean_interval(own, weights, largest, *term, (largest * np.array(term), np.full(2, largest * relative)))
    low, high = (1 - end / constant.value for end in reversed(ends))
    low, high = max(lowest, min(low, skill.value)), max(high, skill.value)
    if readers is None:
        return replace(skill, low=low, high=high)
    of_readers = [end for end in (skill.low_new, skill.high_new) if end is not None and readers.variance > 0]
    return replace(skill, low=low, high=high, low_new=min([low, *of_readers]), high_new=max([high, *of_readers]))


def _skill_by_logarithm(replicates: Replicates, sample: Sample, lowest: float, readers: ReaderPart | None) -> Estimate:
    plain, rest = to_estimate(replicates, sample), 1 - replicates.value
    if readers is not None and rest > 0:
        readers = ReaderPart(readers.variance / rest**2, readers.df)
    moved = to_estimate(replicates.log_of_rest(), sample, readers=readers)
    low, high, low_new, high_new = (
        None if end is None else max(lowest, 1 - float(np.exp(min(end, _LARGEST_EXPONENT))))
        for end in (moved.high, moved.low, moved.high_new, moved.low_new)
    )
    return replace(plain, low=low, high=high, low_new=low_new, high_new=high_new)


def _totals(mean: Replicates, sample: Sample) -> FloatArray:
    """What each cluster adds to Σwx (G,), read off the mean without it."""
    own = sample.cluster_weight
    return mean.value * own + (sample.total_weight - own) * (mean.value - mean.without)


def few_cases_interval(mean: Replicates, sample: Sample, term: Bounds, halves: HalfCases | None = None) -> Bounds:
    """Interval of a mean from what each cluster adds to Σwx, read off the mean without it."""
    ends = mean_interval(_totals(mean, sample), sample.cluster_weight, sample.largest_weight, *term, halves)
    return Bounds(min(ends[0], mean.value), max(ends[1], mean.value))


def root(squared: Estimate) -> Estimate:
    """Root of a squared quantity: CE = √max(CL, 0)."""
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
