"""Per-case statistics of label histograms: U-statistics whose means are the label-histogram metrics."""

import numpy as np

from ml.arrays import FloatArray, IntArray


def class_frequencies(label_counts: IntArray) -> FloatArray:
    """Empirical class frequencies μ̂ = y / n (N, K); zero rows where there is no label."""
    totals = np.maximum(np.einsum("nk->n", label_counts), 1)[:, None]
    return np.asarray(label_counts / totals)


def squared_terms(label_counts: IntArray, class_probs: FloatArray) -> FloatArray:
    """Terms (N, K) of L: (μ̂ − z)² + μ̂(1 − μ̂), the mean squared loss over the case's own labels."""
    freqs = class_frequencies(label_counts)
    return np.asarray((freqs - class_probs) ** 2 + freqs * (1 - freqs))


def epistemic_terms(label_counts: IntArray, class_probs: FloatArray, debias: bool) -> FloatArray:
    """Terms (N, K) of EL: (μ̂ − z)² − μ̂(1 − μ̂)/(n − 1), or without the correction; n ≥ 2."""
    freqs = class_frequencies(label_counts)
    plugin: FloatArray = (freqs - class_probs) ** 2
    if not debias:
        return plugin
    return np.asarray(plugin - freqs * (1 - freqs) / (label_counts.sum(axis=1, keepdims=True) - 1))


def observed_disagreement(label_counts: IntArray) -> FloatArray:
    """Share φ̂ (N,) of pairs of a case's labels that differ, 1 − Σ y(y − 1)/(n(n − 1)); n ≥ 2.

    >>> observed_disagreement(np.array([[2, 1], [2, 0]])).round(3)
    array([0.667, 0.   ])
    """
    totals = label_counts.sum(axis=1)
    same = (label_counts * (label_counts - 1)).sum(axis=1)
    return np.asarray((totals * (totals - 1) - same) / (totals * (totals - 1)))


def statistic_terms(observed: FloatArray, predicted: FloatArray) -> FloatArray:
    """Terms (N,) of the squared loss for a binary event: (û − p)² + û(1 − û), û its U-statistic."""
    return np.asarray((observed - predicted) ** 2 + observed * (1 - observed))
