"""Beneficial and optimal concentrations: the paper's Theorem 1 as functions of three moments.

For a case (or a group of cases alike to the network) with prediction f and unknown true class probabilities q:

- ``predicted`` G = 1 − Σf², the disagreement that f itself implies;
- ``observed`` U = E[1 − Σq²], the disagreement of two annotators;
- ``epistemic`` V = E[Σ_k (q_k − f_k)²], the error of f. (The paper's v_Q lacks the sum over k.)

Where f is the mean of q, U = G − V, and both optima below are the same: α0 = U/V, the Dirichlet of q's own mean
and variance. All functions return log concentrations; −∞ and +∞ are valid answers.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ml.dataframes import refuse_row_names
from ml.distributions.families import gini
from ml.util.arrays import EqualByValue, FloatArray, as_class_probs


@dataclass(frozen=True, eq=False)
class Moments(EqualByValue):
    """The three moments that decide, each (N,) or a number.

    Attributes:
        predicted: G = 1 − Σf².
        observed: U = E[1 − Σq²].
        epistemic: V = E Σ(q − f)².
    """

    predicted: FloatArray
    observed: FloatArray
    epistemic: FloatArray

    def __post_init__(self) -> None:
        refuse_row_names(predicted=self.predicted, observed=self.observed, epistemic=self.epistemic)

    @classmethod
    def of(cls, true_probs: npt.ArrayLike, class_probs: npt.ArrayLike) -> "Moments":
        """Moments over draws of q (M, N, K) for predictions f (N, K)."""
        refuse_row_names(true_probs=true_probs, class_probs=class_probs)
        q, f = as_class_probs(true_probs, "true_probs"), as_class_probs(class_probs)
        return cls(gini(f), gini(q).mean(axis=0), ((q - f) ** 2).sum(axis=-1).mean(axis=0))


def _log_odds(share: FloatArray) -> FloatArray:
    """Logit of shares clipped to [0, 1]."""
    inside = np.clip(share, 0.0, 1.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(inside) - np.log1p(-inside))


def disagreement_optimum(moments: Moments) -> FloatArray:
    """The log α0 that minimises E(φ − φ_q)² for φ = σ(log α0) G: σ = U/G, or +∞ where U ≥ G."""
    return _log_odds(np.asarray(moments.observed / moments.predicted))


def disagreement_lower_end(moments: Moments) -> FloatArray:
    """The log α0 from which upwards φ is no worse than G itself: σ ≥ 2U/G − 1 (Theorem 1, DPE)."""
    return _log_odds(np.asarray(2 * moments.observed / moments.predicted - 1))


def posterior_optimum(moments: Moments) -> FloatArray:
    """The log α0 that minimises the posterior's EL after any number of labels: ln(U/V)."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(moments.observed) - np.log(moments.epistemic))


def posterior_lower_end(moments: Moments, n_labels: int = 1) -> FloatArray:
    """The log α0 from which upwards the posterior is no worse than the prior: α0 ≥ (U − nV)/(2V).

    Raises:
        ValueError: ``n_labels`` below one.
    """
    if n_labels < 1:
        raise ValueError(f"n_labels must be at least 1, got {n_labels}")
    with np.errstate(divide="ignore"):
        excess = np.maximum(moments.observed - n_labels * moments.epistemic, 0.0)
        return np.asarray(np.log(excess) - np.log(2 * moments.epistemic))


def disagreement_error(moments: Moments, log_concentration: npt.ArrayLike) -> FloatArray:
    """(φ − U)² for φ = σ(log α0) G: what α0 can change of E(φ − φ_q)²; the rest is the variance of φ_q."""
    refuse_row_names(log_concentration=log_concentration)
    share = 1 / (1 + np.exp(-np.asarray(log_concentration, dtype=np.float64)))
    return np.asarray((share * moments.predicted - moments.observed) ** 2)


def posterior_epistemic_error(moments: Moments, log_concentration: npt.ArrayLike, n_labels: int = 1) -> FloatArray:
    """EL of the posterior after n labels: γ²V + (1 − γ)²U/n, γ = α0/(α0 + n)."""
    refuse_row_names(log_concentration=log_concentration)
    prior = 1 / (1 + np.exp(np.log(n_labels) - np.asarray(log_concentration, dtype=np.float64)))
    return np.asarray(prior**2 * moments.epistemic + (1 - prior) ** 2 * moments.observed / n_labels)
