"""Skill scores against the best constant: 1 − loss / loss of the constant.

Of the disagreement probability the constant is p, the rate at which two labels of a case differ, whose L_φ is
p(1 − p); of the class probabilities it is the class frequencies c, whose L is 1 − Σc². Both are fitted on the labels
that judge, so the constant has the advantage of having seen them, which shrinks with the number of cases. Intervals
are of the pair, prediction and constant on the same cases: whoever is left out of the loss is left out of the constant.

Source: skill scores, Murphy 1973; the idea of a climatological reference, Brier 1950.
"""

from collections.abc import Iterable
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from ml.metrics.histograms import class_frequencies, observed_disagreement, squared_terms, statistic_terms
from ml.metrics.inputs import Inputs, check_inputs
from ml.metrics.jackknife import Estimate, EstimateDocument, Replicates, Sample, mean_replicates, to_estimate
from ml.util.arrays import FloatArray

# a loss of the constant at or below which nothing was left to predict, but rounding
_NOTHING = 1e-12

#: What the labels say of a disagreement probability: better than the constant, no better so far, or worse.
Verdict = Literal["better", "no better so far", "worse"]


def class_skill(
    label_counts: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    *,
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Skill of class probabilities, 1 − L / (1 − Σc²) with c the class frequencies, n ≥ 1.

    Args:
        label_counts: (N, K) label histograms.
        class_probs: (N, K) class probability estimates.
        sample_weight: (N,) instance weights of order 1.
        cluster: (N,) patient of each case.

    Returns:
        1 is best, 0 what the frequencies say; NaN where one class only occurs.

    >>> round(class_skill([[2, 1], [0, 3], [3, 0]], [[0.7, 0.3], [0.2, 0.8], [0.9, 0.1]]).value, 4)
    0.631
    """
    data = check_inputs(label_counts, class_probs, sample_weight, cluster)
    sample = data.sample(1)
    counts, probs = data.counts[sample.rows], data.probs[sample.rows]
    loss = mean_replicates(squared_terms(counts, probs).sum(axis=1), sample)
    weighted = sample.weight[:, None] * class_frequencies(counts)
    removed = np.stack([sample.per_cluster(column) for column in weighted.T], axis=1)
    return to_estimate(skill_replicates(loss, frequency_loss(weighted.sum(axis=0), [removed], sample)), sample)


def disagreement_skill(
    label_counts: npt.ArrayLike,
    disagreement_probs: npt.ArrayLike,
    *,
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Skill of disagreement probabilities, 1 − L_φ / (p(1 − p)) with p the rate of disagreement, n ≥ 2.

    Args:
        label_counts: (N, K) label histograms.
        disagreement_probs: (N,) disagreement probability estimates φ.
        sample_weight: (N,) instance weights of order 2.
        cluster: (N,) patient of each case.

    Returns:
        1 is best, 0 what the constant reaches; NaN where no two labels differ, or all do.

    >>> round(disagreement_skill([[2, 1], [0, 3], [3, 0]], [0.42, 0.32, 0.18]).value, 4)
    0.1941
    """
    return to_estimate(*_disagreement_skill(label_counts, disagreement_probs, sample_weight, cluster))


def judge_disagreement(
    label_counts: npt.ArrayLike, disagreement_probs: npt.ArrayLike, *, cluster: npt.ArrayLike | None = None
) -> Verdict:
    """Compare a disagreement probability with the best constant.

    Args:
        label_counts: (N, K) label histograms.
        disagreement_probs: (N,) disagreement probability estimates φ.
        cluster: (N,) patient of each case.

    Returns:
        ``worse`` where the upper end of the 90 % interval of the skill is below zero (wrongly in at most 5 %),
        ``better`` where the lower end of the 95 % interval is above it, else ``no better so far``.
    """
    replicates, sample = _disagreement_skill(label_counts, disagreement_probs, None, cluster)
    estimate, error = to_estimate(replicates, sample), replicates.standard_error()
    if error is None or estimate.low is None:
        return "no better so far"
    if replicates.value + float(stdtrit(replicates.without.size - 1, 0.95)) * error < 0:
        return "worse"
    return "better" if estimate.low > 0 else "no better so far"


def verdict_of(skill: EstimateDocument) -> Verdict:
    """The same from an estimate that stands in a document, by its 95 % interval alone."""
    low, high = skill["low"], skill["high"]
    if low is None or high is None or low <= 0 <= high:
        return "no better so far"
    return "better" if low > 0 else "worse"


def _disagreement_skill(
    label_counts: npt.ArrayLike,
    disagreement_probs: npt.ArrayLike,
    sample_weight: npt.ArrayLike | None,
    cluster: npt.ArrayLike | None,
) -> tuple[Replicates, Sample]:
    data = Inputs.of_scores(label_counts, disagreement_probs, "disagreement_probs", sample_weight, cluster)
    sample = data.sample(2)
    observed = observed_disagreement(data.counts[sample.rows])
    loss = mean_replicates(statistic_terms(observed, data.probs[sample.rows, 0]), sample)
    return skill_replicates(loss, rate_loss(observed, sample)), sample


def skill_score(loss: float, constant: float) -> float:
    """1 − loss / loss of the constant; NaN where the constant loses nothing, or nothing is known."""
    return 1 - loss / constant if constant > _NOTHING else float("nan")


def skill_replicates(loss: Replicates, constant: Replicates) -> Replicates:
    """The same with its leave-one-cluster-out values."""
    with np.errstate(invalid="ignore", divide="ignore"):
        without = np.where(constant.without > _NOTHING, 1 - loss.without / constant.without, np.nan)
    return Replicates(skill_score(loss.value, constant.value), without)


def rate_loss(observed: FloatArray, sample: Sample) -> Replicates:
    """L_φ of the rate p of disagreement, p(1 − p); p is refitted without each cluster.

    Args:
        observed: (n,) share of a case's pairs of labels that differ.
        sample: the cases.
    """
    rate = mean_replicates(observed, sample)
    return Replicates(rate.value * (1 - rate.value), rate.without * (1 - rate.without))


def frequency_loss(total: FloatArray, removed: Iterable[FloatArray], sample: Sample) -> Replicates:
    """L of the class frequencies c, 1 − Σc²; c is refitted without each cluster.

    Args:
        total: (K,) weighted sums Σwμ̂ over all cases.
        removed: (g, K) the same of each cluster, in chunks of consecutive clusters.
        sample: the cases.
    """
    weight, own = sample.total_weight, sample.cluster_weight
    without, start = np.full(sample.n_clusters, np.nan), 0
    if weight <= 0:
        return Replicates(float("nan"), without)
    for sums in removed:
        part = slice(start, start := start + len(sums))
        with np.errstate(invalid="ignore", divide="ignore"):
            left = (total - sums) / (weight - own[part])[:, None]
        without[part] = 1 - np.einsum("gk,gk->g", left, left)
    return Replicates(float(1 - ((total / weight) ** 2).sum()), without)
