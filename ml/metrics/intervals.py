"""95 % intervals from cluster contributions, for skewed, unequal and bounded quantities.

A few cases with weight ten decide what is measured under triage. The estimate and its standard error then move
together, so that an interval of equal arms misses mostly on one side. Three corrections, none of which changes the
interval of many clusters that are alike: Student's t with the degrees of freedom of the variance estimate
(Satterthwaite 1946), Hall's transformation for the skewness (Hall 1992, J. R. Statist. Soc. B 54:221), and the logit
where the quantity has a range.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, expit, logit, stdtr, stdtrit

from ml.util.arrays import FloatArray

# half an interval, as a share of the range or of the value, below which differences are rounding
_NO_SPREAD = 1e-12


class Bounds(NamedTuple):
    """Range of a quantity."""

    low: float
    high: float


class QuadraticPart(NamedTuple):
    """Pairwise contributions of clusters to the error Σ u_g + Σ_{g < h} ψ_gh of an estimate.

    Attributes:
        curvature: Σ_{g ≠ h} u_g u_h ψ_gh.
        variance: of Σ_{g < h} ψ_gh.
    """

    curvature: float
    variance: float


class ReaderPart(NamedTuple):
    """Readers' contribution to an estimate's error, as a random sample.

    Attributes:
        variance: to be added to that by patients.
        df: its degrees of freedom.
    """

    variance: float
    df: float


#: For the readers who read.
NO_READERS = ReaderPart(0.0, float("inf"))
#: Of a mean.
LINEAR = QuadraticPart(0.0, 0.0)
#: Of shares and of the squared loss of a probability.
SHARE = Bounds(0.0, 1.0)
#: Of the squared loss of class probabilities.
SQUARED_LOSS = Bounds(0.0, 2.0)


def degrees_of_freedom(influence: FloatArray) -> float:
    """Degrees of freedom 2 V² / Var(V) of the variance V = Σu² of an estimate, at most G − 1.

    Var(V) is estimated by Σu⁴ − (Σu²)²/G. For normal u of one size this is G; where few clusters have most of the
    weight, their number.

    Args:
        influence: (G,) what each cluster adds to the estimate's error, in sum zero.
    """
    squares = influence**2
    total, count = float(squares.sum()), influence.size
    spread = float((squares**2).sum()) - total**2 / count
    return float(min(count - 1, 2 * total**2 / spread)) if spread > 0 else float(count - 1)


def skewness(influence: FloatArray) -> float:
    """Skewness Σu³ / (Σu²)^1.5 of an estimate, between −1 and 1; 0 where nothing varies."""
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
    in the range and s the standard error there.

    Args:
        value: the estimate.
        se: its standard error.
        influence: (G,) what each cluster adds to its error.
        effective: effective number of clusters.
        bounds: range of the quantity, if it has one.
        curvature: Σ_{g ≠ h} u_g u_h ψ_gh of an estimate with error Σ u_g + Σ_{g < h} ψ_gh; 0 of a mean.
        readers: for an interval that new readers lie in too.

    Returns:
        Both ends. Where no cluster differs from another the interval of a quantity with a range is Clopper and
        Pearson's for as many yes-or-no answers, and that of any other has no width.
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
    if not 0 < p < 1:  # a difference estimator can leave the range, which then bounds its interval
        return float(np.clip(low, *bounds)), float(np.clip(high, *bounds))
    step = s / (p * (1 - p))
    b -= 1.5 * (1 - 2 * p) * step
    low, high = (expit(logit(p) - step * _untransformed(end, b, shift)) for end in (t, -t))
    return bounds.low + width * float(low), bounds.low + width * float(high)


def _quantile(df: float, se: float, readers: ReaderPart) -> float:
    """Quantile of Student's t for a standard error that patients and readers share."""
    # t² is the mean of both, weighted by their variances (Cochran 1964), the readers' counted twice: where they add as
    # much as the patients it is theirs. Few readers whose spread comes out small by chance would miss too often else.
    of_patients = float(stdtrit(df, 0.975))
    if readers.variance <= 0:
        return of_patients
    of_readers = max(of_patients, float(stdtrit(readers.df, 0.975)))
    share = min(1.0, 2 * readers.variance / se**2)
    return float(np.sqrt(of_patients**2 * (1 - share) + of_readers**2 * share))


def p_value_decrease(value: float, se: float, influence: FloatArray) -> float:
    """One-sided p value of «zero or more», small where a signed quantity is surely below zero.

    By the statistic of ``skewed_interval``: it is below .025 just where the upper end of that interval is below zero.

    Args:
        value: the estimate.
        se: its standard error.
        influence: (G,) what each cluster adds to its error.

    Returns:
        The p value; 1 where nothing varies and the value is not below zero, 0 where it is.
    """
    if se <= 0:
        return float(value >= 0)
    centred = influence - influence.mean()
    a, t = skewness(centred), value / se
    transformed = t + a * t**2 / 3 + a**2 * t**3 / 27 + a / 6
    return float(stdtr(degrees_of_freedom(centred), transformed))


def _untransformed(quantile: float, b: float, shift: float) -> float:
    """The T whose transformed value is a quantile."""
    shifted = quantile - shift
    return shifted if abs(b) < 1e-9 else 3 / b * (float(np.cbrt(1 + b * shifted)) - 1)


def binomial_interval(mean: FloatArray, n: npt.NDArray[Any]) -> tuple[FloatArray, FloatArray]:
    """95 % intervals of shares by Clopper and Pearson, for n answers of which n · mean were yes.

    Args:
        mean: (B,) shares; n · mean need not be whole.
        n: (B,) answers.
    """
    hits = np.clip(mean, 0.0, 1.0) * n
    low = np.where(hits > 0, betaincinv(np.maximum(hits, 1e-12), n - hits + 1, 0.025), 0.0)
    high = np.where(hits < n, betaincinv(hits + 1, np.maximum(n - hits, 1e-12), 0.975), 1.0)
    return low, high
