"""Unbiased estimates of symmetric statistics of m labels.

A kernel is a function of the label counts of m annotators, such as
"at least two of three say malignant". Other arguments are those of
``ml.metrics.losses``, with weights of order m.

>>> two_of_three = lambda counts: float(counts[1] >= 2)
>>> u_statistic(np.array([[2, 2], [1, 3]]), two_of_three, 3)
array([0.5, 1. ])
"""

from collections.abc import Callable, Iterator
from itertools import combinations_with_replacement

import numpy as np
import numpy.typing as npt
from scipy.special import binom, gammaln

from ml.distributions.families import PredictiveDistribution
from ml.metrics.binned import Binned
from ml.metrics.cases import Inputs, Sample, statistic_terms
from ml.metrics.jackknife import SHARE, Estimate, mean_replicates, to_estimate
from ml.metrics.sums import Debias, Strategy
from ml.util.arrays import FloatArray, IntArray, as_label_counts

#: Value of a statistic for the label counts (K,) of m annotators.
Kernel = Callable[[IntArray], float]


def disagreement_kernel(counts: IntArray) -> float:
    """1 where the annotators' labels are not all the same."""
    return float(np.count_nonzero(counts) > 1)


def _histograms(n_classes: int, m: int) -> Iterator[IntArray]:
    for labels in combinations_with_replacement(range(n_classes), m):
        yield np.bincount(labels, minlength=n_classes).astype(np.int64)


def u_statistic(label_counts: npt.ArrayLike, kernel: Kernel, m: int) -> FloatArray:
    """Mean (N,) of a kernel over all choices of m labels of a case.

    Σ_c Π_k C(y_k, c_k) / C(n, m) · kernel(c) over the histograms c of m
    labels (Hoeffding 1948); NaN with fewer labels.

    Raises:
        ValueError: ``m`` below one.
    """
    if m < 1:
        raise ValueError(f"m must be at least 1, got {m}")
    counts = as_label_counts(label_counts)
    totals = counts.sum(axis=1)
    result = np.zeros(len(counts))
    for histogram in _histograms(counts.shape[1], m):
        value = kernel(histogram)
        if value == 0:
            continue
        used = np.flatnonzero(histogram)
        result += value * binom(counts[:, used], histogram[used]).prod(axis=1)
    enough = totals >= m
    return np.where(enough, result / np.where(enough, binom(totals, m), 1.0), np.nan)


def expected_statistic(distribution: PredictiveDistribution, kernel: Kernel, m: int) -> FloatArray:
    """Prediction (N,) of a statistic: Σ_c P(c) kernel(c).

    For ``disagreement_kernel`` and m = 2 it is the DPE.
    """
    n_cases, n_classes = distribution.class_probs.shape
    result = np.zeros(n_cases)
    for histogram in _histograms(n_classes, m):
        value = kernel(histogram)
        if value == 0:
            continue
        sequences = np.exp(gammaln(m + 1) - gammaln(histogram + 1).sum())
        likelihood = distribution.log_likelihood(np.tile(histogram, (n_cases, 1)))
        result += value * sequences * np.exp(likelihood)
    return result


def _observed(
    label_counts: npt.ArrayLike,
    predicted: npt.ArrayLike,
    kernel: Kernel,
    m: int,
    sample_weight: npt.ArrayLike | None,
    cluster: npt.ArrayLike | None,
) -> tuple[FloatArray, FloatArray, Sample]:
    data = Inputs.of_scores(label_counts, predicted, "predicted", sample_weight, cluster)
    sample = data.sample(m)
    return u_statistic(data.counts[sample.rows], kernel, m), data.probs[sample.rows, 0], sample


def statistic_loss(
    label_counts: npt.ArrayLike,
    predicted: npt.ArrayLike,
    kernel: Kernel,
    m: int,
    *,
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Squared loss of predictions (N,) of a binary statistic, n ≥ m."""
    observed, estimate, sample = _observed(label_counts, predicted, kernel, m, sample_weight, cluster)
    return to_estimate(mean_replicates(statistic_terms(observed, estimate), sample), sample, term=SHARE)


def statistic_calibration_loss(
    label_counts: npt.ArrayLike,
    predicted: npt.ArrayLike,
    kernel: Kernel,
    m: int,
    *,
    n_bins: int = 15,
    strategy: Strategy | FloatArray = "uniform",
    debias: Debias = "pair",
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Calibration loss of predictions (N,) of a statistic, n ≥ m."""
    observed, estimate, sample = _observed(label_counts, predicted, kernel, m, sample_weight, cluster)
    return Binned.of(observed[:, None], estimate[:, None], sample, n_bins, strategy, debias).estimate(debias)
