"""Predictive distributions over the unknown true class probabilities of a case.

Every distribution offers the same four things: ``class_probs`` (N, K), ``disagreement_probs`` (N,),
``posterior(label_counts)`` and ``log_likelihood(label_counts)``.

============== ============ ======================= ===========================================
distribution   mean         DPE                     posterior after counts y, n = Σy
============== ============ ======================= ===========================================
point          f            1 − Σf²                 f
Dirichlet      f            σ(a)(1 − Σf²)           γf + (1 − γ)μ̂, γ = σ(a − ln n), α ← α + y
ensemble       mean f⁽ˢ⁾    mean of 1 − Σf⁽ˢ⁾²      weights ∝ w_s Π_k (f_k⁽ˢ⁾)^{y_k}
mixture        Σ w_s f⁽ˢ⁾   Σ w_s σ(a_s)(1 − Σf²)   weights ∝ w_s DirMult(y | α⁽ˢ⁾), members updated
============== ============ ======================= ===========================================

Computations use ``a = log α0``, never ``α0`` itself, so that everything works for a in [−40, 40]. Log-likelihoods are
those of the label *sequence* (``ml.distributions.likelihood``).
"""

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logsumexp, softmax

from ml.dataframes import refuse_row_names
from ml.distributions.likelihood import dirichlet_multinomial_nll, log_probs_of, multinomial_log_likelihood
from ml.util.arrays import EqualByValue, FloatArray, IntArray, as_class_probs, as_label_counts, as_vector
from ml.util.arrays import gini as gini


def _dirichlet_posterior(
    class_probs: FloatArray, log_concentration: FloatArray, label_counts: IntArray
) -> tuple[FloatArray, FloatArray]:
    totals = label_counts.sum(axis=-1)
    with np.errstate(divide="ignore"):
        log_n = np.log(totals.astype(np.float64))
    frequencies = label_counts / np.maximum(totals, 1)[..., None]
    prior_weight = expit(log_concentration - log_n)[..., None]
    label_weight = expit(log_n - log_concentration)[..., None]
    mean = prior_weight * class_probs + label_weight * frequencies
    return mean, np.logaddexp(log_concentration, log_n)


def _counts_like(label_counts: npt.ArrayLike, shape: tuple[int, ...]) -> IntArray:
    refuse_row_names(label_counts=label_counts)
    counts = as_label_counts(label_counts)
    if counts.shape != shape:
        raise ValueError(f"label_counts must have shape {shape}, got {counts.shape}")
    return counts


@dataclass(frozen=True, eq=False)
class _Stated(EqualByValue):
    """A disagreement probability stated apart."""

    stated_disagreement: FloatArray | None = field(default=None, kw_only=True)

    def _check_stated(self, n_cases: int) -> None:
        if self.stated_disagreement is None:
            return
        stated = np.asarray(self.stated_disagreement, dtype=np.float64)
        if stated.shape != (n_cases,) or ((stated < 0) | (stated > 1)).any():
            raise ValueError(f"stated_disagreement must be {n_cases} probabilities or NaN, got shape {stated.shape}")
        object.__setattr__(self, "stated_disagreement", stated)

    def _stated_after(self, label_counts: IntArray) -> FloatArray | None:
        stated = self.stated_disagreement
        return None if stated is None else np.where(label_counts.sum(axis=-1) == 0, stated, np.nan)

    @property
    def own_disagreement_probs(self) -> FloatArray:
        """DPE (N,) that follows from the distribution: Σ_s w_s σ(a_s)(1 − Σf⁽ˢ⁾²) (paper eq. 7 and 12)."""
        probs, a, log_weights = members_of(self)
        return np.asarray((np.exp(log_weights) * (expit(a) * gini(probs))).sum(axis=0), dtype=np.float64)

    @property
    def disagreement_probs(self) -> FloatArray:
        """DPE (N,): what is stated, else what follows from the distribution."""
        own, stated = self.own_disagreement_probs, self.stated_disagreement
        return own if stated is None else np.where(np.isnan(stated), own, stated)


@dataclass(frozen=True, eq=False)
class PointCpe(_Stated):
    """The CPE taken as the truth: labels teach it nothing (paper §3.1).

    Args:
        class_probs: (N, K), rows sum to one.

    Examples:
        >>> from secondread import PointCpe
        >>> PointCpe([[0.9, 0.1]]).disagreement_probs.round(2)
        array([0.18])
    """

    class_probs: FloatArray

    def __post_init__(self) -> None:
        refuse_row_names(class_probs=self.class_probs)
        object.__setattr__(self, "class_probs", as_class_probs(self.class_probs))
        self._check_stated(len(self.class_probs))

    def posterior(self, label_counts: npt.ArrayLike) -> "PointCpe":
        """Return itself: a point does not move."""
        counts = _counts_like(label_counts, self.class_probs.shape)
        stated = self._stated_after(counts)
        return self if stated is None else replace(self, stated_disagreement=stated)

    def log_likelihood(self, label_counts: npt.ArrayLike) -> FloatArray:
        """Multinomial log-likelihood (N,) of label sequences."""
        counts = _counts_like(label_counts, self.class_probs.shape)
        return multinomial_log_likelihood(counts, self.class_probs)


@dataclass(frozen=True, eq=False)
class DirichletCpe(_Stated):
    """Dir(α0 f) over the true CPE: α-calibration (paper §4.2).

    Args:
        class_probs: (N, K), rows sum to one.
        log_concentration: (N,), natural logarithm of α0.

    Examples:
        >>> import numpy as np
        >>> from secondread import DirichletCpe
        >>> prior = DirichletCpe(np.array([[0.8, 0.2]]), np.array([0.0]))
        >>> prior.posterior(np.array([[0, 1]])).class_probs.round(3)
        array([[0.4, 0.6]])
    """

    class_probs: FloatArray
    log_concentration: FloatArray

    def __post_init__(self) -> None:
        refuse_row_names(class_probs=self.class_probs, log_concentration=self.log_concentration)
        probs = as_class_probs(self.class_probs)
        object.__setattr__(self, "class_probs", probs)
        a = as_vector(self.log_concentration, len(probs), "log_concentration", -np.inf, np.inf)
        object.__setattr__(self, "log_concentration", a)
        self._check_stated(len(probs))

    def posterior(self, label_counts: npt.ArrayLike) -> "DirichletCpe":
        """Posterior after labels: α ← α + y (paper eq. 13)."""
        counts = _counts_like(label_counts, self.class_probs.shape)
        after = _dirichlet_posterior(self.class_probs, self.log_concentration, counts)
        return DirichletCpe(*after, stated_disagreement=self._stated_after(counts))

    def log_likelihood(self, label_counts: npt.ArrayLike) -> FloatArray:
        """Dirichlet-multinomial log-likelihood (N,)."""
        counts = _counts_like(label_counts, self.class_probs.shape)
        return -dirichlet_multinomial_nll(counts, log_probs_of(self.class_probs), self.log_concentration)


# stands for equal weights until the members' shape is known
_UNIFORM: FloatArray = np.empty(0)


class _Mixture(_Stated):
    """Members with weights."""

    member_class_probs: FloatArray
    log_weights: FloatArray

    def _check_members(self) -> None:
        refuse_row_names(member_class_probs=self.member_class_probs, log_weights=self.log_weights)
        members = as_class_probs(self.member_class_probs, "member_class_probs")
        if members.ndim != 3:
            raise ValueError(f"member_class_probs must have shape (S, N, K), got {members.shape}")
        weights = np.asarray(self.log_weights, dtype=np.float64)
        weights = np.zeros(members.shape[:2]) if weights.size == 0 else weights
        if weights.shape != members.shape[:2]:
            raise ValueError(f"log_weights must have shape {members.shape[:2]}, got {weights.shape}")
        object.__setattr__(self, "member_class_probs", members)
        object.__setattr__(self, "log_weights", np.asarray(weights - logsumexp(weights, axis=0), dtype=np.float64))
        self._check_stated(members.shape[1])

    @property
    def class_probs(self) -> FloatArray:
        """Weighted mean of the members (N, K)."""
        return np.asarray(np.einsum("sn,snk->nk", np.exp(self.log_weights), self.member_class_probs))

    def _likelihood_by_member(self, label_counts: IntArray) -> FloatArray:
        raise NotImplementedError

    def _member_log_likelihood(self, label_counts: npt.ArrayLike) -> FloatArray:
        counts = _counts_like(label_counts, self.member_class_probs.shape[1:])
        return self.log_weights + self._likelihood_by_member(counts)

    def log_likelihood(self, label_counts: npt.ArrayLike) -> FloatArray:
        """Log of the weighted mean of the members' likelihoods (N,)."""
        return np.asarray(logsumexp(self._member_log_likelihood(label_counts), axis=0))


@dataclass(frozen=True, eq=False)
class EnsembleCpe(_Mixture):
    """S point predictions, each true with a weight.

    The paper's supplement sums likelihoods over classes where it must multiply; this is the product.

    Args:
        member_class_probs: (S, N, K).
        log_weights: (S, N), any constant may be added per case; uniform when left out.

    Examples:
        >>> from secondread import EnsembleCpe
        >>> ensemble = EnsembleCpe([[[0.9, 0.1]], [[0.5, 0.5]]])
        >>> ensemble.posterior([[0, 2]]).class_probs.round(3)
        array([[0.515, 0.485]])
    """

    member_class_probs: FloatArray
    log_weights: FloatArray = field(default_factory=lambda: _UNIFORM)

    def __post_init__(self) -> None:
        self._check_members()

    def _likelihood_by_member(self, label_counts: IntArray) -> FloatArray:
        return multinomial_log_likelihood(label_counts, self.member_class_probs)

    def posterior(self, label_counts: npt.ArrayLike) -> "EnsembleCpe":
        """Members stay, weights become w_s Π_k (f_k⁽ˢ⁾)^{y_k}."""
        weights = self._member_log_likelihood(label_counts)
        stated = self._stated_after(np.asarray(label_counts))
        return EnsembleCpe(self.member_class_probs, weights, stated_disagreement=stated)


@dataclass(frozen=True, eq=False)
class DirichletMixtureCpe(_Mixture):
    """A mixture of S Dirichlets, conjugate like a single one.

    Args:
        member_class_probs: (S, N, K).
        member_log_concentration: (S, N).
        log_weights: (S, N), any constant may be added per case; uniform when left out.

    Examples:
        >>> from secondread import DirichletMixtureCpe
        >>> mixture = DirichletMixtureCpe([[[0.9, 0.1]], [[0.5, 0.5]]], [[0.0], [2.0]])
        >>> mixture.posterior([[0, 2]]).class_probs.round(3)
        array([[0.378, 0.622]])
    """

    member_class_probs: FloatArray
    member_log_concentration: FloatArray
    log_weights: FloatArray = field(default_factory=lambda: _UNIFORM)

    def __post_init__(self) -> None:
        refuse_row_names(member_log_concentration=self.member_log_concentration)
        self._check_members()
        a, shape = np.asarray(self.member_log_concentration, dtype=np.float64), self.log_weights.shape
        if a.shape != shape or np.isnan(a).any():
            raise ValueError(f"member_log_concentration must be (S, N) = {shape} without NaN")
        object.__setattr__(self, "member_log_concentration", a)

    def _likelihood_by_member(self, label_counts: IntArray) -> FloatArray:
        logs = log_probs_of(self.member_class_probs)
        return -dirichlet_multinomial_nll(label_counts, logs, self.member_log_concentration)

    def posterior(self, label_counts: npt.ArrayLike) -> "DirichletMixtureCpe":
        """Weights become w_s DirMult(y | α⁽ˢ⁾), every member is updated: exact."""
        weights = self._member_log_likelihood(label_counts)
        counts = _counts_like(label_counts, self.member_class_probs.shape[1:])
        means, a = _dirichlet_posterior(self.member_class_probs, self.member_log_concentration, counts)
        return DirichletMixtureCpe(means, a, weights, stated_disagreement=self._stated_after(counts))


#: What a predictor may return.
PredictiveDistribution = PointCpe | DirichletCpe | EnsembleCpe | DirichletMixtureCpe


def members_of(distribution: _Stated) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Class probabilities (S, N, K), log concentrations and log weights (S, N)."""
    if isinstance(distribution, DirichletCpe):
        a = distribution.log_concentration[None]
        return distribution.class_probs[None], a, np.zeros(a.shape)
    if isinstance(distribution, PointCpe):
        shape = (1, len(distribution.class_probs))
        return distribution.class_probs[None], np.full(shape, np.inf), np.zeros(shape)
    if isinstance(distribution, DirichletMixtureCpe):
        return distribution.member_class_probs, distribution.member_log_concentration, distribution.log_weights
    if isinstance(distribution, EnsembleCpe):
        points = np.full(distribution.log_weights.shape, np.inf)
        return distribution.member_class_probs, points, distribution.log_weights
    raise ValueError(f"a {type(distribution).__name__} is no predictive distribution")


def has_concentration(distribution: PredictiveDistribution) -> bool:
    """Whether labels move the prediction."""
    return isinstance(distribution, DirichletCpe | DirichletMixtureCpe)


def moment_matched(distribution: PredictiveDistribution) -> DirichletCpe:
    """The single Dirichlet with the same mean and DPE φ.

    Its posterior mean is the best one that is linear in the label frequencies (Bühlmann 1967). A distribution
    without spread has infinite concentration.
    """
    mean, dpe = distribution.class_probs, distribution.own_disagreement_probs
    # members that agree leave a difference of rounding errors
    spread = gini(mean) - dpe
    spread = np.where(spread > 1e-15, spread, 0.0)
    with np.errstate(divide="ignore"):
        a = np.log(np.maximum(dpe, 1e-300)) - np.log(spread)
    return DirichletCpe(mean, a)


def softmax_probs(logits: npt.ArrayLike) -> FloatArray:
    """Class probabilities of logits (..., K), in float64."""
    return np.asarray(softmax(np.asarray(logits, dtype=np.float64), axis=-1))
