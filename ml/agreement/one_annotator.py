"""Statistics of one annotator, shrunk towards all annotators where labels are few.

Answers are compared with the others' posterior π of the next answer, from the labels of the others alone, never with a
single "truth": an annotator who differs from a divided room has made no error.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, ndtri, xlogy

from ml.util.arrays import FloatArray, IntArray

#: Answers that the prior is worth: as many of an annotator's own weigh as much as everybody's rate.
STRENGTH = 10.0
#: Standard deviation between annotators that means of probabilities are pulled together by.
SPREAD = 0.05
_LEVEL = 0.95


@dataclass(frozen=True)
class ShrunkEstimate:
    """Posterior mean of an annotator's statistic."""

    value: float
    low: float
    high: float
    n: int
    everybody: float


def shrunk_share(hits: float, n: int, everybody: float, strength: float = STRENGTH) -> ShrunkEstimate:
    """Share of answers with a conjugate Beta prior (Gelman, 2.4)."""
    if not 0 <= hits <= n or not 0 < everybody < 1 or strength <= 0:
        raise ValueError(f"hits {hits} of {n} with everybody's share {everybody} and strength {strength}")
    a, b = hits + strength * everybody, n - hits + strength * (1 - everybody)
    tail = (1 - _LEVEL) / 2
    return ShrunkEstimate(a / (a + b), float(betaincinv(a, b, tail)), float(betaincinv(a, b, 1 - tail)), n, everybody)


def rate_of_all(hits: float, n: int) -> float:
    """Share among all annotators, by Jeffreys' prior."""
    return (hits + 0.5) / (n + 1)


def shrunk_mean(values: FloatArray, deviation: float, everybody: float, spread: float = SPREAD) -> ShrunkEstimate:
    """Mean of values with a normal prior (Gelman et al., 2.5)."""
    if deviation <= 0 or spread <= 0:
        raise ValueError(f"deviation {deviation} and spread {spread} must be above 0")
    precision = len(values) / deviation**2 + 1 / spread**2
    value = (float(np.sum(values)) / deviation**2 + everybody / spread**2) / precision
    half = float(ndtri(0.5 + _LEVEL / 2)) / precision**0.5
    return ShrunkEstimate(value, value - half, value + half, len(values), everybody)


def _check_answers(others: FloatArray, answers: IntArray) -> tuple[FloatArray, IntArray]:
    if others.ndim != 2 or answers.shape != others.shape[:1]:
        raise ValueError(f"others must be (N, K) and answers (N,), not {others.shape} and {answers.shape}")
    if answers.size and not (answers.min() >= 0 and answers.max() < others.shape[1]):
        raise ValueError(f"answers must be classes 0 to {others.shape[1] - 1}")
    return others, answers


def soft_confusions(others: FloatArray, answers: IntArray) -> FloatArray:
    """Confusions by the others' probabilities: Σᵢ πᵢ[k] 1[yᵢ = y]."""
    others, answers = _check_answers(others, answers)
    counts = np.zeros((others.shape[1], others.shape[1]))
    np.add.at(counts.T, answers, others)
    return counts


@dataclass(frozen=True)
class Confusions:
    """Shrunk shares (K, K) of each answer, by the others' class."""

    value: FloatArray
    low: FloatArray
    high: FloatArray
    n: FloatArray
    everybody: FloatArray
    notable: IntArray


def shrunk_confusions(counts: FloatArray, everybody: FloatArray, strength: float = STRENGTH) -> Confusions:
    """Confusions with a Dirichlet prior of everybody's rows."""
    if counts.shape != everybody.shape or counts.ndim != 2:
        raise ValueError(f"confusions of shapes {counts.shape} and {everybody.shape}")
    n_classes = len(counts)
    prior = (everybody + 1 / n_classes) / (everybody.sum(axis=1, keepdims=True) + 1)
    a = counts + strength * prior
    b = a.sum(axis=1, keepdims=True) - a
    tail = (1 - _LEVEL) / 2
    strict = betaincinv(a, b, 0.05 / max(1, n_classes * (n_classes - 1)))
    notable = (strict > prior) & ~np.eye(n_classes, dtype=bool)
    low, high = betaincinv(a, b, tail), betaincinv(a, b, 1 - tail)
    return Confusions(a / (a + b), low, high, counts.sum(axis=1), prior, notable.astype(np.int64))


def agreement_with_others(others: FloatArray, answers: IntArray) -> tuple[FloatArray, FloatArray]:
    """Probabilities πᵢ[yᵢ] of answers, and Σₖ πᵢ[k]² expected."""
    others, answers = _check_answers(others, answers)
    return others[np.arange(len(answers)), answers], np.einsum("nk,nk->n", others, others)


def log_score_surplus(others: FloatArray, answers: IntArray) -> FloatArray:
    """Log score of each answer above its expectation."""
    others, answers = _check_answers(others, answers)
    answer_probs = np.maximum(others[np.arange(len(answers)), answers], 1e-12)
    return np.asarray(np.log(answer_probs) - xlogy(others, others).sum(axis=1))
