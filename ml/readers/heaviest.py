"""Weights of count vectors where there are too many of them: the heaviest are kept, and the mass left out is told."""

import numpy as np
from scipy.special import expit

from ml.arrays import FloatArray, IntArray


def heaviest_weights(
    class_probs: FloatArray, log_concentration: FloatArray, likelihood: FloatArray, labels: IntArray, keep: int
) -> tuple[FloatArray, IntArray, FloatArray, FloatArray]:
    """Weights of the ``keep`` heaviest count vectors of each case, case by case.

    Args:
        class_probs: (B, K) f.
        log_concentration: (B,) ln α0.
        likelihood: (B, n, K) probability of each label given each opinion.
        labels: (B, n) classes.
        keep: count vectors that are carried from label to label.

    Returns:
        Weights (B, S), count vectors (B, S, K), log-likelihoods (B,) and the mass dropped (B,): an upper bound of what
        it would weigh in the end cannot be given, so it is the sum of the shares dropped on the way.
    """
    made = [_one(*row, keep) for row in zip(class_probs, log_concentration, likelihood, labels, strict=True)]
    widest = max((len(weights) for weights, *_ in made), default=0)
    n_classes = class_probs.shape[1]
    weights, counts = np.zeros((len(made), widest)), np.zeros((len(made), widest, n_classes), dtype=np.int64)
    for row, (some, states, _, _) in enumerate(made):
        weights[row, : len(some)], counts[row, : len(some)] = some, states
    rest = np.array([(log_likelihood, dropped) for _, _, log_likelihood, dropped in made]).reshape(-1, 2)
    return weights, counts, rest[:, 0], rest[:, 1]


def _one(
    class_probs: FloatArray, log_concentration: float, likelihood: FloatArray, labels: IntArray, keep: int
) -> tuple[FloatArray, IntArray, float, float]:
    n_classes = len(class_probs)
    states, weights = np.zeros((1, n_classes), dtype=np.int64), np.ones(1)
    # of a count vector: the sum of its classes' 64 random bits, by which a million are told apart but for one chance in
    # ten million
    key_of_class = np.random.default_rng(0).integers(2**63, size=n_classes, dtype=np.uint64)
    keys = np.zeros(1, dtype=np.uint64)
    log_likelihood = dropped = 0.0
    for j, label in enumerate(labels):
        log_n = np.log(max(j, 1))
        prior = float(expit(log_concentration - log_n)) if j else 1.0
        opinion = prior * class_probs + (1 - prior) * states / max(j, 1)
        moved = weights[:, None] * opinion * likelihood[j]
        if not moved.sum() > 0:
            moved = weights[:, None] * (np.arange(n_classes) == label)
            log_likelihood = -np.inf
        row, k = np.nonzero(moved)
        _, first, number = np.unique(keys[row] + key_of_class[k], return_index=True, return_inverse=True)
        weights = np.bincount(number.ravel(), moved[row, k]).astype(np.float64)
        log_likelihood += np.log(weights.sum())
        weights /= weights.sum()
        kept = np.arange(len(weights))
        if len(weights) > keep:
            kept = np.sort(np.argpartition(-weights, keep)[:keep])
            dropped += 1 - weights[kept].sum()
            weights = weights[kept] / weights[kept].sum()
        # only what is kept is written out: of 200 classes a million count vectors may follow
        from_row, added = row[first[kept]], k[first[kept]]
        states, keys = states[from_row], keys[from_row] + key_of_class[added]
        states[np.arange(len(added)), added] += 1
    return weights, states, log_likelihood, min(1.0, dropped)
