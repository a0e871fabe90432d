"""Likelihoods of label sequences.

The multinomial coefficient, which depends on no parameter, is left out. Members stand on leading axes (S, N, K).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logsumexp

from ml.dataframes import refuse_tables
from ml.util.arrays import FloatArray, IntArray

# cases at once, which bounds the memory of the steps of long sequences
_BLOCK = 65_536


def log_probs_of(class_probs: FloatArray) -> FloatArray:
    """Logarithm of f, −∞ if f is zero."""
    with np.errstate(divide="ignore"):
        return np.log(class_probs)


def multinomial_log_likelihood(label_counts: IntArray, class_probs: FloatArray) -> FloatArray:
    """Log-likelihood (..., N) of label counts (N, K)."""
    logs = np.where(label_counts > 0, log_probs_of(class_probs), 0.0)
    return np.asarray((label_counts * logs).sum(axis=-1), dtype=np.float64)


def mixture_log_likelihood(member_log_likelihood: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Log-likelihood (N,) of a uniform mixture, and members' shares.

    The shares are the weights of the members' gradients, and zero for a case that is impossible under every member.
    """
    if member_log_likelihood.ndim == 1:
        return member_log_likelihood, np.ones(member_log_likelihood.shape)
    members = member_log_likelihood.reshape(-1, member_log_likelihood.shape[-1])
    total = logsumexp(members, axis=0)
    finite_total = np.where(np.isneginf(total), 0.0, total)
    return np.asarray(total - np.log(len(members))), np.asarray(np.exp(member_log_likelihood - finite_total))


def dirichlet_multinomial_nll(
    label_counts: IntArray, log_class_probs: FloatArray, log_concentration: FloatArray
) -> FloatArray:
    """Negative log-likelihood (..., N) under Dir(α0 f), a = log α0.

    ``Σ_{l<n} softplus(ln l − a) − Σ_k [1{y_k ≥ 1} ln f_k + Σ_{l<y_k} logaddexp(ln f_k, ln l − a)]``
    (paper eq. 10, rewritten without lgamma).

    Args:
        label_counts: (N, K).
        log_class_probs: (..., N, K), with leading ensemble axes if there are members.
        log_concentration: (..., N).
    """
    refuse_tables(label_counts=label_counts, log_class_probs=log_class_probs, log_concentration=log_concentration)
    nll = np.empty(log_class_probs.shape[:-1])
    for start in range(0, len(label_counts), _BLOCK):
        rows = slice(start, start + _BLOCK)
        likelihood = DirichletMultinomial(label_counts[rows], log_class_probs[..., rows, :])
        nll[..., rows] = likelihood(log_concentration[..., rows])[0]
    return nll


@dataclass(frozen=True)
class _Step:
    log_step: float
    longer: npt.NDArray[np.intp]  # (L,) cases with more labels
    cells: npt.NDArray[np.intp]  # (M,) of counts above
    classes: npt.NDArray[np.intp]
    log_probs: FloatArray  # (..., M) ln f, or 0
    impossible: npt.NDArray[np.bool_]  # (..., M) f is zero

    @classmethod
    def of(cls, step: int, label_counts: IntArray, log_probs: FloatArray) -> "_Step":
        cells, classes = np.nonzero(label_counts > step)
        picked = log_probs[..., cells, classes]
        impossible = np.isneginf(picked)
        longer = np.flatnonzero(label_counts.sum(axis=1) > step)
        return cls(float(np.log(step)), longer, cells, classes, np.where(impossible, 0.0, picked), impossible)


class DirichletMultinomial:
    """Dirichlet-multinomial likelihood as a function of a."""

    def __init__(self, label_counts: IntArray, log_probs: FloatArray) -> None:
        longest = int(label_counts.sum(axis=1).max(initial=0))
        self.observed = label_counts >= 1
        self.constant = np.asarray(-np.where(self.observed, log_probs, 0.0).sum(axis=-1), dtype=np.float64)
        self.steps = [_Step.of(step, label_counts, log_probs) for step in range(1, longest)]

    def __call__(self, log_concentration: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Negative log-likelihoods (..., N) and their derivatives by a."""
        nll, slope = self.constant.copy(), np.zeros(self.constant.shape)
        for step in self.steps:
            value, share = _softplus(step.log_step - log_concentration[..., step.longer])
            nll[..., step.longer] += value
            slope[..., step.longer] -= share
            offset = step.log_step - log_concentration[..., step.cells]
            value, share = _softplus(offset - step.log_probs)
            # logaddexp(ln f, offset) = ln f + softplus(offset − ln f)
            value = np.where(step.impossible, offset, step.log_probs + value)
            share = np.where(step.impossible, 1.0, share)
            cells: Any = (..., step.cells)  # NumPy's types know of no ellipsis here
            # a case may have several such classes
            np.subtract.at(nll, cells, value)
            np.add.at(slope, cells, share)
        return nll, slope

    def slopes_by_log_probs(self, log_concentration: FloatArray) -> FloatArray:
        """Derivatives (..., N, K) by ln f."""
        slopes = np.broadcast_to(self.observed, (*self.constant.shape, self.observed.shape[-1])).astype(np.float64)
        for step in self.steps:
            log_odds = step.log_probs - step.log_step + log_concentration[..., step.cells]
            slopes[..., step.cells, step.classes] += ~step.impossible * expit(log_odds)
        return slopes


def _softplus(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln(1 + eˣ) and its derivative."""
    small = np.exp(-np.abs(x))
    return np.maximum(x, 0.0) + np.log1p(small), np.where(x >= 0, 1.0, small) / (1.0 + small)
