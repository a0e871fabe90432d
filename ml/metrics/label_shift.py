"""Test for a change of the class mix, with cells clustered by patient.

A χ² test that counts labels as independent takes the spread between patients for a change. Here the statistic's own
distribution is estimated: under no change Σ_k (p_k − r_k)²/π_k is a weighted sum of χ²₁ variables whose weights follow
from the covariance of the difference, clustered by patient; its mean and variance give a scaled F distribution.

Source: Rao and Scott, "On chi-squared tests for multiway contingency tables with cell proportions estimated from
survey data", Annals of Statistics 12 (1984), second-order correction; F in place of χ² as in Thomas and Rao (1987).
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import fdtrc

from ml.util.arrays import FloatArray


@dataclass(frozen=True)
class ClassMixChange:
    """Shares of the classes compared with those of a reference.

    Attributes:
        distance: total variation ½ Σ |p_k − r_k|, in [0, 1].
        p_value: probability of as large a change by chance; None with fewer than two clusters.
        n_clusters: patients.
        design_effect: how many times larger the variance of the shares is than that of independent labels.
    """

    distance: float
    p_value: float | None
    n_clusters: int
    design_effect: float | None


def mix_change_of_patients(sums: FloatArray, reference_share: FloatArray, n_reference: float) -> ClassMixChange:
    """Compare the mix of classes of some cases with a reference, clustered by patient.

    Args:
        sums: (G, K) sums over each patient's cases of the label frequencies μ̂, which sum to one: every case counts
            once, however often it was read. Each patient has one case at least.
        reference_share: (K,) shares of the classes, summing to one.
        n_reference: labels that they were counted from; taken to be as clustered as these cases are.

    Returns:
        The change. Classes that neither has are left out of it.
    """
    n_clusters, n_cases = len(sums), sums @ np.ones(sums.shape[1])
    n = float(n_cases.sum())
    share = np.ones(n_clusters) @ sums / n
    distance = float(np.abs(share - reference_share).sum() / 2)
    occurs = share + reference_share > 0
    if n_clusters < 2 or occurs.sum() < 2:
        return ClassMixChange(distance, None, n_clusters, None)
    moved = sums[:, occurs] - n_cases[:, None] * share[occurs]
    clustered = n_clusters / (n_clusters - 1) * moved.T @ moved / n**2
    before = reference_share[occurs]
    pooled = (n * share[occurs] + n_reference * before) / (n + n_reference)
    # variances of independent labels, by which those of the clustered ones are judged
    independent = np.diag(pooled) - np.outer(pooled, pooled)
    design_effect = float(np.trace(clustered) / (np.trace(independent) / n))
    covariance = clustered + independent * max(design_effect, 1.0) / n_reference
    scaled = covariance / np.sqrt(np.outer(pooled, pooled))
    mean, square = float(np.trace(scaled)), float((scaled**2).sum())
    freedom = mean**2 / square
    statistic = float((np.square(share[occurs] - before) / pooled).sum()) / mean
    chance = float(fdtrc(freedom, freedom * (n_clusters - 1), statistic))
    return ClassMixChange(distance, chance, n_clusters, design_effect)
