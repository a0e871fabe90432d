"""Posterior gain: posteriors scored on labels they have not seen.

The posterior after one label is scored on the others, averaged over
which label it is (weights y_c / n). That is unbiased like the paper's
single random split (§6.4), with half its standard deviation.

``label_counts`` are (N, K) histograms, ``distribution`` the predictions
of the N cases, ``sample_weight`` (N,) weights, ``cluster`` (N,) patients.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ml.dataframes import refuse_row_names
from ml.distributions.families import PredictiveDistribution
from ml.metrics.cases import Sample, check_clusters, check_weights, epistemic_terms, select_sample, squared_terms
from ml.metrics.jackknife import Estimate, mean_replicates, to_estimate
from ml.util.arrays import FloatArray, IntArray, as_class_probs, as_label_counts

#: Terms (N,) of a loss of probabilities (N, K) on label histograms (N, K).
_Terms = Callable[[IntArray, FloatArray], FloatArray]


def _single_label_posteriors(distribution: PredictiveDistribution, label: int) -> FloatArray:
    """Posterior means (N, K) after one label of a class."""
    label_counts = np.zeros(distribution.class_probs.shape, dtype=np.int64)
    label_counts[:, label] = 1
    return distribution.posterior(label_counts).class_probs


def _all_splits(counts: IntArray, distribution: PredictiveDistribution, terms: _Terms, min_labels: int) -> FloatArray:
    """Mean loss (N,) over the label that formed the posterior."""
    result = np.zeros(len(counts))
    totals = counts.sum(axis=1)
    for label in range(counts.shape[1]):
        rows = np.flatnonzero((counts[:, label] > 0) & (totals >= min_labels))
        posterior = _single_label_posteriors(distribution, label)[rows]
        rest = counts[rows].copy()
        rest[:, label] -= 1
        result[rows] += counts[rows, label] / totals[rows] * terms(rest, posterior)
    return result


def _sample(
    label_counts: npt.ArrayLike,
    distribution: PredictiveDistribution,
    min_labels: int,
    sample_weight: npt.ArrayLike | None,
    cluster: npt.ArrayLike | None,
) -> tuple[IntArray, Sample]:
    # a distribution keeps no names of rows
    refuse_row_names(label_counts=label_counts, sample_weight=sample_weight, cluster=cluster)
    counts = as_label_counts(label_counts)
    if counts.shape != distribution.class_probs.shape:
        raise ValueError(f"label_counts {counts.shape} do not fit predictions {distribution.class_probs.shape}")
    weight, groups = check_weights(sample_weight, len(counts)), check_clusters(cluster, len(counts))
    return counts, select_sample(counts.sum(axis=1) >= min_labels, weight, groups)


def posterior_gain_terms(label_counts: npt.ArrayLike, distribution: PredictiveDistribution) -> FloatArray:
    """Terms (N,) of ``posterior_gain``; NaN with fewer than two labels."""
    counts, sample = _sample(label_counts, distribution, 2, None, None)
    # over all labels and over all but one the prior's loss has the same mean
    before = squared_terms(counts, distribution.class_probs)
    after = _all_splits(counts, distribution, squared_terms, 2)
    terms = np.full(len(counts), np.nan)
    terms[sample.rows] = (before - after)[sample.rows]
    return terms


def posterior_gain(
    label_counts: npt.ArrayLike,
    distribution: PredictiveDistribution,
    *,
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Fall EL − EL′ of the epistemic loss by one expert label, n ≥ 2.

    Estimated as L − L′ on the other labels; negative if posteriors over-react.
    """
    sample = _sample(label_counts, distribution, 2, sample_weight, cluster)[1]
    return to_estimate(mean_replicates(posterior_gain_terms(label_counts, distribution)[sample.rows], sample), sample)


def posterior_epistemic_loss(
    label_counts: npt.ArrayLike,
    distribution: PredictiveDistribution,
    *,
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Epistemic loss EL′ after one expert label, n ≥ 3 (paper Table 2)."""
    counts, sample = _sample(label_counts, distribution, 3, sample_weight, cluster)
    after = _all_splits(counts, distribution, lambda rest, posterior: epistemic_terms(rest, posterior)[:, 1], 3)
    return to_estimate(mean_replicates(after[sample.rows], sample), sample)


def exact_posterior_epistemic_loss(
    label_counts: npt.ArrayLike, true_probs: npt.ArrayLike, distribution: PredictiveDistribution
) -> Estimate:
    """EL′ = E Σ_k (q − z′)² against true class probabilities q, n ≥ 1.

    Raises:
        ValueError: shapes that do not match.
    """
    counts, sample = _sample(label_counts, distribution, 1, None, None)
    refuse_row_names(true_probs=true_probs)
    truth = as_class_probs(true_probs, "true_probs")
    if truth.shape != counts.shape:
        raise ValueError(f"true_probs {truth.shape} and label_counts {counts.shape} must have one shape")
    loss = np.zeros(len(counts))
    totals = np.maximum(counts.sum(axis=1), 1)
    for label in range(counts.shape[1]):
        gap = _single_label_posteriors(distribution, label) - truth
        loss += counts[:, label] / totals * (gap**2).sum(axis=1)
    return to_estimate(mean_replicates(loss[sample.rows], sample), sample)
