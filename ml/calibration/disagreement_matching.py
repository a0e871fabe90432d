"""Concentration and temperature that give a distribution a calibrated disagreement probability.

A map of φ must not be a second truth beside the distribution. For a Dirichlet with φ = σ(a)(1 − Σf²) the concentration
that says φ′ is a′ = ln φ′ − ln(1 − Σf² − φ′). A larger a′ makes the posterior slower, and exists only below 1 − Σf²; so
a is raised by at most 1 (or to 0, where a label still weighs as much as the prediction), and what is missing then is
reached by a case-wise temperature that flattens f until σ(a′)(1 − Σf²) = φ′. A label then moves no posterior less than
before by more than a factor e. Members of a mixture are shifted and flattened together.
"""

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from ml.distributions.families import gini, softmax_probs
from ml.util.arrays import FloatArray

#: By how much a log concentration may rise.
LARGEST_RISE = 1.0
#: Where it may always rise to: α0 = 1.
ALWAYS_ALLOWED = 0.0
#: How far one may move at all; by then labels count for everything, or for nothing.
_FARTHEST = 80.0
# halvings of an interval: below the rounding of float64
_STEPS = 60


def match_disagreement(
    logits: FloatArray, log_concentration: FloatArray, disagreement_probs: npt.ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """Logits and log concentrations whose distribution has the given DPEs, or the nearest that it can have.

    Args:
        logits: calibrated, (N, K), or (S, N, K) of the members of a uniform mixture.
        log_concentration: (N,) or (S, N).
        disagreement_probs: (N,) DPEs φ′ > 0.

    Returns:
        Logits, flattened by a temperature where that was needed, and log concentrations, in the shapes given.
    """
    target = np.asarray(disagreement_probs, dtype=np.float64)
    differ = gini(softmax_probs(logits))
    a = _matching_concentration(differ, log_concentration, target)
    short = np.flatnonzero(_mixture_disagreement(differ, a) < target * (1 - 1e-12))
    if not short.size:
        return logits, a
    flat = logits.copy()
    flat[..., short, :] *= _inverse_temperature(logits[..., short, :], a[..., short], target[short])[:, None]
    return flat, a


def _mixture_disagreement(differ: FloatArray, log_concentration: FloatArray) -> FloatArray:
    """DPE (N,) of a mixture from its members' 1 − Σf², (..., N)."""
    members = expit(log_concentration) * differ
    return members if members.ndim == 1 else np.asarray(members.mean(axis=0))


def _matching_concentration(differ: FloatArray, a: FloatArray, wanted: FloatArray) -> FloatArray:
    """Log concentrations (..., N) with the target DPEs, or as near as they may rise."""
    highest = np.maximum(a + LARGEST_RISE, ALWAYS_ALLOWED)
    if a.ndim == 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            exact = np.log(wanted) - np.log(differ - wanted)
        return np.asarray(np.where(differ > wanted, np.clip(exact, a - _FARTHEST, highest), highest))
    low, high = np.full(wanted.shape, -_FARTHEST), np.full(wanted.shape, _FARTHEST)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        enough = _mixture_disagreement(differ, np.minimum(a + middle, highest)) >= wanted
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.asarray(np.minimum(a + high, highest))


def _inverse_temperature(logits: FloatArray, a: FloatArray, wanted: FloatArray) -> FloatArray:
    """Inverse temperature (N,) in (0, 1] at which the DPE reaches its target."""
    low, high = np.zeros(wanted.shape), np.ones(wanted.shape)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        enough = _mixture_disagreement(gini(softmax_probs(logits * middle[:, None])), a) >= wanted
        low, high = np.where(enough, middle, low), np.where(enough, high, middle)
    return high
