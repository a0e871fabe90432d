"""Second-read designs: probability per case, cost, yield and information.

All or audit: the cases of highest disagreement for certain, of the others a share ε. Graded: every case with a
probability that grows with the root of its disagreement probability φ. A label whose outcome has variance φ(1 − φ) is
worth most, per read, where π grows with its standard deviation (Neyman 1934), so that the same number of reads gives
shorter intervals, while cases of high φ are still read twice far more often than others.
"""

import numpy as np

from ml.metrics.jackknife import Sample
from ml.util.arrays import FloatArray

# disagreement probabilities at or below which no scale makes a second read likely
_NEVER = 1e-12


def graded_probabilities(disagreement_probs: FloatArray, scale: float, floor: float) -> FloatArray:
    """π = clip(c √φ, π_min, 1) of each case (n,).

    >>> graded_probabilities(np.array([0.0, 0.04, 0.36, 0.81]), 1.2, 0.1).round(2).tolist()
    [0.1, 0.24, 0.72, 1.0]
    """
    return np.clip(scale * np.sqrt(disagreement_probs), floor, 1.0)


def graded_scale(disagreement_probs: FloatArray, share: float, floor: float) -> float:
    """The c with which the mean of π over cases (n,) is a share of them.

    Args:
        disagreement_probs: (n,) φ, of earlier days.
        share: of the cases that can be read twice.
        floor: π_min.

    Returns:
        0 where the floor alone fills the share; where not even π = 1 for every φ above 1e-12 does, the c of that.
    """
    positive = disagreement_probs[disagreement_probs > _NEVER]
    if positive.size == 0:
        return 0.0
    from scipy.optimize import brentq  # loading it takes longer than loading most of the service

    most = 1 / float(np.sqrt(positive.min()))

    def spare(scale: float) -> float:
        return float(graded_probabilities(disagreement_probs, scale, floor).mean()) - share

    if spare(0.0) >= 0:
        return 0.0
    return most if spare(most) <= 0 else float(brentq(spare, 0.0, most, xtol=1e-12))


def threshold_probabilities(disagreement_probs: FloatArray, share: float, floor: float) -> FloatArray:
    """π (n,) of the all-or-audit design with the same share of cases read twice: 1 for the highest φ, π_min elsewhere.

    Cases that share the φ at the threshold share what is left of the reads.
    """
    n_second_reads = (share - floor) / (1 - floor) * len(disagreement_probs) if floor < 1 else 0.0
    values, group, sizes = np.unique(disagreement_probs, return_inverse=True, return_counts=True)
    above = sizes[::-1].cumsum()[::-1] - sizes
    certain = np.clip((n_second_reads - above) / sizes, 0.0, 1.0) if values.size else values
    return np.asarray(floor + (1 - floor) * certain[group])


def disagreements_caught(pi: FloatArray, observed: FloatArray, sample: Sample) -> float:
    """Share of all disagreements that a design's second reads hold, judged by cases read twice under any design.

    Args:
        pi: (n,) probability of a second read under the design, of the sample's cases.
        observed: (n,) observed disagreement φ̂, not all 0.
        sample: cases read twice, with the weights of the design they came by.
    """
    return float(sample.weight @ (pi * observed) / (sample.weight @ observed))


def interval_length(pi: FloatArray, loss: FloatArray, sample: Sample, n_cases: int) -> float:
    """Length of the 95 % interval of a mean loss that a design would give, patients as units.

    With independent coins the variance of the weighted mean of N cases is, r = loss − mean,
    (Σ_i r_i²/π_i + Σ_{i ≠ j of a patient} r_i r_j) / N²; both sums are estimated from the cases read twice.

    Args:
        pi: (n,) probability of a second read under the design, of the sample's cases.
        loss: (n,) per-case losses.
        sample: cases read twice, with the weights of the design they came by.
        n_cases: N.
    """
    weight = sample.weight
    total = float(weight.sum())
    rest = loss - weight @ loss / total
    pairs = sample.per_cluster(weight * rest) ** 2 - sample.per_cluster((weight * rest) ** 2)
    variance = float((weight * rest**2 / pi).sum() + pairs.sum()) / (total * n_cases)
    return 2 * 1.96 * float(np.sqrt(max(variance, 0.0)))
