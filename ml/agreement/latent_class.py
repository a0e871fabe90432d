"""Latent class model of annotators (Dawid and Skene 1979).

Annotator a gives label l with probability π_a[true class, l]. Experts
may be wrong here, whereas elsewhere their shares are the truth.
"""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.special import logsumexp

from ml.annotations import Annotations
from ml.util.arrays import EqualByValue, FloatArray, IntArray

MAX_ITERATIONS = 5000


@dataclass(frozen=True, eq=False)
class DawidSkene(EqualByValue):
    """A fitted model.

    Attributes:
        class_shares: (K,) of the true classes.
        confusion: (A, K, K) probability of each label (last axis) for each true class.
        class_probs: (N, K) probability of each true class given the case's labels.
        log_likelihood: of the labels, with the prior.
        iterations: until it settled.
        classes: names of the K classes; None if the labels were class numbers.
        annotators: names of the A annotators; None if the labels were an array.
        case_ids: identifiers of the N cases; None if the labels were no LABELS table.

    Examples:
        >>> from secondread import dawid_skene
        >>> dawid_skene([[0, 0], [1, 1], [0, 0]]).class_probs.argmax(axis=1)
        array([0, 1, 0])
    """

    class_shares: FloatArray
    confusion: FloatArray
    class_probs: FloatArray
    log_likelihood: float
    iterations: int
    classes: tuple[str, ...] | None = None
    annotators: tuple[str, ...] | None = None
    case_ids: tuple[str, ...] | None = None


def fit_long(long: Annotations, prior_labels: float = 1.0, tolerance: float = 1e-10) -> DawidSkene:
    """Fit by expectation–maximisation, with the shares as a start."""
    if not long.case.size:
        raise ValueError("no label to fit from")
    first, pattern_of = _patterns(long.one_hot)
    one_hot, counts = long.one_hot[first], long.counts()[first]
    times = np.bincount(pattern_of, minlength=first.size).astype(float)
    probs = (counts + 1 / long.n_classes) / (counts + 1 / long.n_classes).sum(axis=1, keepdims=True)
    pooled = (times[:, None] * probs).T @ counts + 1 / long.n_classes
    pseudo = prior_labels * pooled / pooled.sum(axis=1, keepdims=True)
    before = -np.inf
    for iteration in range(1, MAX_ITERATIONS + 1):
        shares, confusion, log_prior = _maximise(one_hot, times[:, None] * probs, pseudo)
        logs = np.log(shares) + one_hot @ np.log(confusion).transpose(0, 2, 1).reshape(-1, long.n_classes)
        total = logsumexp(logs, axis=1, keepdims=True)
        probs, value = np.exp(logs - total), float(times @ total[:, 0]) + log_prior
        if value - before <= tolerance * abs(value):
            names = (long.classes or None, long.annotators or None, long.case_ids or None)
            return DawidSkene(shares, confusion, probs[pattern_of], value, iteration, *names)
        before = value
    raise ValueError(f"Dawid–Skene did not settle within {MAX_ITERATIONS} iterations")


def _patterns(one_hot: csr_array) -> tuple[IntArray, IntArray]:
    """The first case of each pattern of labels, and each case's pattern."""
    # most cases have few labels, and so few patterns
    one_hot.sort_indices()
    lengths = np.diff(one_hot.indptr)
    first: list[IntArray] = []
    pattern_of = np.empty(len(lengths), dtype=np.int64)
    n_patterns = 0
    for length in np.unique(lengths):
        cases = np.flatnonzero(lengths == length)
        given = one_hot.indices[one_hot.indptr[cases][:, None] + np.arange(length)]
        _, at, which = np.unique(given, axis=0, return_index=True, return_inverse=True)
        first.append(cases[at])
        pattern_of[cases] = n_patterns + which.reshape(-1)
        n_patterns += at.size
    return np.concatenate(first), pattern_of


def _maximise(one_hot: csr_array, weights: FloatArray, pseudo: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Class shares, confusion matrices and their log prior density."""
    n_classes = weights.shape[1]
    given = np.asarray(one_hot.T @ weights).reshape(-1, n_classes, n_classes)  # (A, label, class)
    seen = given.transpose(0, 2, 1) + pseudo
    confusion = seen / seen.sum(axis=2, keepdims=True)
    shares = (weights.sum(axis=0) + 1 / n_classes) / (weights.sum() + 1)
    log_prior = float((pseudo * np.log(confusion)).sum() + np.log(shares).sum() / n_classes)
    return shares, confusion, log_prior
