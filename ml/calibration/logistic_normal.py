"""Logistic normal of rank two: answers of annotators who confuse neighbouring classes.

q = softmax(μ + Λη), η ~ N(0, I₂), with Λ (K, 2) shared by all cases
(correlated topics: Blei and Lafferty 2007) and μ of each case such that
E[q] = f. The normal is that of 64 fixed quasi-random nodes, so that a
case has 64 point members of equal weight.
"""

from functools import cache

import numpy as np
from scipy.special import log_softmax, ndtri, softmax

from ml.calibration.optimise import FitError, minimise
from ml.distributions.likelihood import mixture_log_likelihood
from ml.util.arrays import FloatArray, IntArray

RANK = 2
N_NODES = 64
#: Log concentration of the members, by which labels choose between them and move none.
POINT = 40.0
#: Cases that are enough to fit loadings, and to see a harm, at even steps of all.
MOST_CASES = 2000
# of a standard normal prior on each loading, by which the fit always has an optimum
_PRIOR = 1.0
# relative fall of the loss in a step below which the search ends
_ENOUGH = 1e-6
# steps of Newton's method at most, the largest change of a logit in one, and the error of E[q] that ends them
_STEPS, _REACH, _TOLERANCE = 60, 2.0, 1e-12


@cache
def nodes() -> FloatArray:
    """Nodes (64, 2) of the standard normal: mean zero, covariance one."""
    # the R₂ sequence (Roberts 2018), a plane lattice of low discrepancy, with its reflection
    plastic = 1.32471795724474602596
    steps = np.arange(1, N_NODES // 2 + 1)[:, None] / plastic ** np.arange(1, RANK + 1)
    half = ndtri((0.5 + steps) % 1.0)
    drawn = np.concatenate([half, -half])
    return np.asarray(drawn @ np.linalg.inv(np.linalg.cholesky(drawn.T @ drawn / N_NODES)).T)


def member_logits(logits: FloatArray, loadings: FloatArray) -> FloatArray:
    """Logits (64, N, K) of members whose mean is softmax(logits)."""
    return _Matched.to(softmax(logits, axis=-1), loadings, logits).logits


class _Matched:
    """Members (64, N, K) with given means f (N, K) at some μ (N, K)."""

    def __init__(self, mu: FloatArray, loadings: FloatArray, probs: FloatArray) -> None:
        self.mu = mu
        self.logits = mu + (nodes() @ loadings.T)[:, None]
        self.members = softmax(self.logits, axis=-1)
        self.excess = probs - self.members.mean(axis=0)

    @classmethod
    def to(cls, probs: FloatArray, loadings: FloatArray, mu: FloatArray) -> "_Matched":
        """Find μ by Newton's method, from a start."""
        matched = cls(mu, loadings, probs)
        for _ in range(_STEPS):
            if np.abs(matched.excess).max(initial=0.0) < _TOLERANCE:
                break
            step = matched.solve(matched.excess)
            step *= np.minimum(1.0, _REACH / np.maximum(np.abs(step).max(axis=-1, keepdims=True), _REACH))
            matched = cls(matched.mu + step, loadings, probs)
        return matched

    def solve(self, right: FloatArray) -> FloatArray:
        """Solve E[diag q − qqᵀ] x = right (N, K), whose rows sum to zero."""
        # scaled by √E[q], or else a rare class leaves a matrix that cannot be inverted
        root = np.sqrt(np.maximum(self.members.mean(axis=0), 1e-290))
        scaled = (self.members / root).transpose(1, 0, 2)
        # a constant is no part of logits: √f √fᵀ keeps it at zero
        # and a little more than one on the diagonal lets members that are certain each be inverted
        matrix = np.eye(root.shape[-1]) * (1 + 1e-12) - scaled.transpose(0, 2, 1) @ scaled / N_NODES
        matrix += root[:, :, None] * root[:, None]
        return np.asarray(np.linalg.solve(matrix, (right / root)[..., None])[..., 0] / root)


def fit_loadings(probs: FloatArray, label_counts: IntArray, start: FloatArray | None = None) -> FloatArray:
    """Loadings Λ (K, 2) by penalised likelihood of labels (N, K) with means f (N, K).

    Raises:
        FitError: no case has two labels, or no convergence.
    """
    # with the mean fixed a case with one label has the same likelihood whatever Λ
    several = np.flatnonzero(label_counts.sum(axis=1) >= 2)
    if not several.size:
        raise FitError("loadings cannot be fitted: no case has two labels")
    several = several[:: -(-several.size // MOST_CASES)]
    f, counts = probs[several], label_counts[several]
    total = counts.sum()
    latest = [np.log(np.maximum(f, 1e-290))]  # μ of the last call, near which the next one is

    def objective(x: FloatArray) -> tuple[float, FloatArray]:
        loadings = x.reshape(-1, RANK)
        matched = _Matched.to(f, loadings, latest[0])
        latest[0] = matched.mu
        q = matched.members
        value, share = mixture_log_likelihood((counts * log_softmax(matched.logits, axis=-1)).sum(axis=-1))
        slope = share[..., None] * (counts.sum(axis=1)[:, None] * q - counts) / total
        # μ follows Λ so that the mean stays
        back = matched.solve(slope.sum(axis=0))
        slope -= q * (back - (q * back).sum(axis=-1, keepdims=True)) / N_NODES
        gradient = np.einsum("snk,sr->kr", slope, nodes()).ravel() + _PRIOR / total * x
        return float(-value.sum() / total + 0.5 * _PRIOR / total * (x @ x)), gradient

    begun = _start(f, counts) if start is None else start
    parameters, _ = minimise(objective, begun.ravel(), "loadings", tolerance=_ENOUGH)
    return parameters.reshape(-1, RANK)


def _start(probs: FloatArray, label_counts: IntArray) -> FloatArray:
    """Loadings by which pairs of labels covary more than the means."""
    n = label_counts.sum(axis=1)[:, None, None]
    pairs = label_counts[:, :, None] * label_counts[:, None] - label_counts[:, :, None] * np.eye(probs.shape[1])
    together = (pairs / (n * (n - 1)) - probs[:, :, None] * probs[:, None]).mean(axis=0)
    spread = np.linalg.pinv(np.diag(probs.mean(axis=0)) - probs.T @ probs / len(probs), rcond=1e-3)
    values, vectors = np.linalg.eigh(spread @ together @ spread)
    return np.asarray(vectors[:, -RANK:] * np.sqrt(np.clip(values[-RANK:], 0.05, 4.0)))
