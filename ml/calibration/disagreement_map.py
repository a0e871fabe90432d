"""Calibration of disagreement probabilities (beyond the paper).

Beta calibration (Kull, Silva Filho and Flach 2017) is fitted to pairs
of labels; the monotone map keeps the ranking. The distribution gets φ′
by its concentration, raised by at most 1 (or to 0), and then by a
temperature of the case, which flattens f. A pair head, a regression of
"these two labels differ", may be mixed into φ′ before.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import expit, log_expit, logit

from ml.calibration.optimise import FitError, minimise
from ml.distributions.families import softmax_probs
from ml.metrics.cases import observed_disagreement
from ml.util.arrays import EqualByValue, FloatArray, as_label_counts, as_vector, gini
from ml.util.splits import held_out_folds, split_folds

# probabilities beyond this are as good as certain
_LEAST = 1e-9
# shares of what pairs tell below the knots of a piecewise map
_KNOTS = (0.05, 0.2, 0.4, 0.6, 0.8, 0.95)
# pairs that the penalty on a change of slope is worth
_BEND = 10.0
#: Components of the features that a pair head reads, and candidates for its ridge, worth as many pairs.
PAIR_COMPONENTS = 8
PAIR_RIDGES = (1.0, 10.0, 100.0)
# cases that are enough for the components, at even steps of all
_COMPONENT_CASES = 1000
#: Shares λ of a pair head that are tried.
PAIR_SHARES = (0.25, 0.5, 0.75, 1.0)
#: By how much a log concentration may rise.
LARGEST_RISE = 1.0
#: Where it may always rise to: α0 = 1.
ALWAYS_ALLOWED = 0.0
#: How far one may move at all; by then labels count for everything, or for nothing.
_FARTHEST = 80.0
# halvings of an interval: below the rounding of float64
_STEPS = 60


@dataclass(frozen=True)
class DisagreementMap:
    """φ′ by logit φ′ = a ln φ − b ln(1 − φ) + c."""

    low: float
    high: float
    offset: float
    kind: Literal["beta"] = "beta"

    def __post_init__(self) -> None:
        if not (np.isfinite([self.low, self.high, self.offset]).all() and min(self.low, self.high) >= 0):
            raise ValueError("the map of disagreement probabilities is not increasing")

    def logits(self, disagreement_probs: npt.ArrayLike) -> FloatArray:
        """Logits of the mapped DPEs, in the shape of the DPEs."""
        return np.asarray(_beta_design(_clipped(disagreement_probs)) @ np.array([self.low, self.high, self.offset]))

    def __call__(self, disagreement_probs: npt.ArrayLike) -> FloatArray:
        """Mapped DPEs, in the shape of the DPEs."""
        return np.asarray(expit(self.logits(disagreement_probs)))


@dataclass(frozen=True, eq=False)
class PiecewiseMap(EqualByValue):
    """φ′ piecewise linear in logit φ, never falling."""

    knots: FloatArray  # (M,) logits of DPEs, rising
    slopes: FloatArray  # (M + 1,) of segments
    offset: float  # logit φ′ at the first knot
    kind: Literal["piecewise"] = "piecewise"

    def __post_init__(self) -> None:
        if self.knots.ndim != 1 or not self.knots.size or self.slopes.shape != (len(self.knots) + 1,):
            raise ValueError("the map of disagreement probabilities is misshapen")
        rising = (np.diff(self.knots) > 0).all() and (self.slopes >= 0).all()
        if not (rising and np.isfinite([*self.knots, *self.slopes, self.offset]).all()):
            raise ValueError("the map of disagreement probabilities is not increasing")

    def logits(self, disagreement_probs: npt.ArrayLike) -> FloatArray:
        """Logits of the mapped DPEs, in the shape of the DPEs."""
        design = _piecewise_design(_clipped(disagreement_probs), self.knots)
        return np.asarray(design @ np.append(self.slopes, self.offset))

    def __call__(self, disagreement_probs: npt.ArrayLike) -> FloatArray:
        """Mapped DPEs, in the shape of the DPEs."""
        return np.asarray(expit(self.logits(disagreement_probs)))


@dataclass(frozen=True, eq=False)
class PairHead(EqualByValue):
    """φ″ = (1 − λ) φ′ + λ σ(wᵀ(summaries, logit φ′, features) + c)."""

    share: float  # λ
    weight: FloatArray  # (5 + D,) w
    bias: float  # c

    def __post_init__(self) -> None:
        if not (0 < self.share <= 1 and self.weight.ndim == 1 and np.isfinite([*self.weight, self.bias]).all()):
            raise ValueError("the pair head is misshapen, not finite or has no share in (0, 1]")

    def __call__(self, mapped: FloatArray, summaries: FloatArray, features: npt.ArrayLike) -> FloatArray:
        """DPEs (N,) of mapped DPEs (N,), summaries (N, 4) and features (N, D)."""
        inputs = pair_inputs(mapped, summaries, np.asarray(features, dtype=np.float64))
        return np.asarray((1 - self.share) * mapped + self.share * expit(inputs @ self.weight + self.bias))


def pair_inputs(dpe: FloatArray, summaries: FloatArray, features: FloatArray) -> FloatArray:
    """Inputs (N, 5 + D) of a pair head."""
    return np.column_stack([summaries, logit(_clipped(dpe)), features])


AnyMap = DisagreementMap | PiecewiseMap
MapKind = Literal["beta", "piecewise"]
IDENTITY = DisagreementMap(1.0, 1.0, 0.0)


def _clipped(disagreement_probs: npt.ArrayLike) -> FloatArray:
    return np.clip(np.asarray(disagreement_probs, dtype=np.float64), _LEAST, 1 - _LEAST)


def _beta_design(dpe: FloatArray) -> FloatArray:
    """Terms (..., 3) of DPEs: ln φ, −ln(1 − φ) and 1."""
    return np.stack([np.log(dpe), -np.log1p(-dpe), np.ones_like(dpe)], axis=-1)


def _piecewise_design(dpe: FloatArray, knots: FloatArray) -> FloatArray:
    """Terms (..., M + 2) of DPEs: rise in each segment, and 1."""
    z = np.log(dpe) - np.log1p(-dpe)
    below = np.minimum(z - knots[0], 0.0)
    between = [np.clip(z - low, 0.0, high - low) for low, high in pairwise(knots)]
    above = np.maximum(z - knots[-1], 0.0)
    return np.stack([below, *between, above, np.ones_like(z)], axis=-1)


def _knots(dpe: FloatArray) -> FloatArray:
    """Logits of DPEs at given shares of Σ φ(1 − φ)."""
    ordered = np.sort(dpe)
    information = np.cumsum(ordered * (1 - ordered))
    knots = ordered[np.searchsorted(information, np.array(_KNOTS) * information[-1]).clip(max=len(ordered) - 1)]
    return np.unique(np.log(knots) - np.log1p(-knots))


def pair_loss(logits: FloatArray, differ: FloatArray) -> FloatArray:
    """−φ̂ ln φ′ − (1 − φ̂) ln(1 − φ′) of logits and shares φ̂ of differing pairs."""
    return np.asarray(-differ * log_expit(logits) - (1 - differ) * log_expit(-logits))


def fit_map(dpe: FloatArray, differ: FloatArray, kind: MapKind = "beta", *, pull: float = 0.0) -> AnyMap:
    """Map DPEs (N,) to shares (N,) of differing pairs."""
    clipped = _clipped(dpe)
    knots = _knots(clipped)
    design = _beta_design(clipped) if kind == "beta" else _piecewise_design(clipped, knots)
    n_slopes = design.shape[1] - 1
    start = np.append(np.ones(n_slopes), 0.0 if kind == "beta" else knots[0])
    bend = 0.0 if kind == "beta" else _BEND
    change = np.diff(np.eye(n_slopes), axis=0)

    def objective(x: FloatArray) -> tuple[float, FloatArray]:
        value, off, bends = design @ x, x[:-1] - 1.0, change @ x[:-1]
        penalty = 0.5 * (pull * float(off @ off) + bend * float(bends @ bends)) / len(dpe)
        gradient = design.T @ (expit(value) - differ) / len(dpe)
        gradient[:-1] += (pull * off + bend * (change.T @ bends)) / len(dpe)
        return float(pair_loss(value, differ).mean()) + penalty, gradient

    bounds = [*[(0.0, None)] * n_slopes, (None, None)]
    parameters, _ = minimise(objective, start, "map of disagreement probabilities", bounds)
    if kind == "beta":
        return DisagreementMap(*parameters.tolist())
    return PiecewiseMap(knots, parameters[:-1], float(parameters[-1]))


def cross_fit_map(
    dpe: FloatArray, differ: FloatArray, fold: npt.NDArray[np.int64], kind: MapKind = "beta", *, pull: float = 0.0
) -> FloatArray:
    """Logits (N,) of DPEs mapped by fits to the other folds."""
    logits, paired = np.empty(len(dpe)), np.isfinite(differ)
    for others, unseen in held_out_folds(fold):
        seen = others & paired
        logits[unseen] = fit_map(dpe[seen], differ[seen], kind, pull=pull).logits(dpe[unseen])
    return logits


def principal_components(features: FloatArray) -> FloatArray:
    """Weights (D, P) of at most eight uncorrelated components of features (N, D), each of variance one."""
    some = features[:: -(-len(features) // _COMPONENT_CASES)]
    centred = some - some.mean(axis=0)
    spread = centred.std(axis=0)
    varies = spread > 1e-9 * np.maximum(1.0, np.abs(some).max(axis=0))
    standard = np.where(varies, 1 / np.where(varies, spread, 1.0), 0.0)
    _, values, directions = np.linalg.svd(centred * standard, full_matrices=False)
    used = np.flatnonzero(values > 1e-6 * values.max(initial=1e-300))[:PAIR_COMPONENTS]
    return np.asarray(standard[:, None] * directions[used].T / values[used] * np.sqrt(len(some)))


def fit_pair_head(inputs: FloatArray, differ: FloatArray, ridge: float) -> tuple[FloatArray, float]:
    """Weights (P,) and constant of a logistic regression of "these two labels differ"."""

    def objective(x: FloatArray) -> tuple[float, FloatArray]:
        value = inputs @ x[:-1] + x[-1]
        slope = (expit(value) - differ) / len(differ)
        by_weight = inputs.T @ slope + ridge * x[:-1] / len(differ)
        penalty = 0.5 * ridge * float(x[:-1] @ x[:-1]) / len(differ)
        return float(pair_loss(value, differ).mean()) + penalty, np.append(by_weight, slope.sum())

    parameters, _ = minimise(objective, np.zeros(inputs.shape[1] + 1), "pair head")
    return parameters[:-1], float(parameters[-1])


def fit_disagreement_map(
    disagreement_probs: npt.ArrayLike, label_counts: npt.ArrayLike, groups: list[str], *, seed: int = 0
) -> AnyMap:
    """Fit a map to pairs; ``IDENTITY`` if it does not help."""
    counts = as_label_counts(label_counts)
    given = as_vector(disagreement_probs, len(counts), "disagreement_probs", 0.0, 1.0)
    usable = np.flatnonzero(counts.sum(axis=1) >= 2)
    if usable.size < 10:
        raise FitError(f"a map of disagreement probabilities needs ten cases with two labels, got {usable.size}")
    dpe, differ = given[usable], observed_disagreement(counts[usable])
    fold = split_folds(groups, seed)[usable]
    if np.unique(fold).size < 2:
        raise FitError("a map of disagreement probabilities needs cases with two labels of several patients")
    before, after = (pair_loss(z, differ).mean() for z in (IDENTITY.logits(dpe), cross_fit_map(dpe, differ, fold)))
    return fit_map(dpe, differ) if after < before else IDENTITY


def match_disagreement(
    logits: FloatArray, log_concentration: FloatArray, disagreement_probs: npt.ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """Adjust logits and concentrations to given DPEs (N,)."""
    target = np.asarray(disagreement_probs, dtype=np.float64)
    differ = gini(softmax_probs(logits))
    a = _matching_concentration(differ, log_concentration, target)
    short = np.flatnonzero(_mixture_disagreement(differ, a) < target * (1 - 1e-12))
    if not short.size:
        return logits, a
    flat = logits.copy()
    flat[..., short, :] *= _inverse_temperature(logits[..., short, :], a[..., short], target[short])[:, None]
    return flat, a


def highest_disagreement(log_concentration: FloatArray, n_classes: int) -> FloatArray:
    """Largest DPEs (N,) that ``match_disagreement`` reaches, by flat members."""
    return _mixture_disagreement(1 - 1 / n_classes, np.maximum(log_concentration + LARGEST_RISE, ALWAYS_ALLOWED))


def _mixture_disagreement(differ: FloatArray | float, log_concentration: FloatArray) -> FloatArray:
    members = np.asarray(expit(log_concentration) * differ)
    return members if members.ndim == 1 else np.asarray(members.mean(axis=0))


def _matching_concentration(differ: FloatArray, a: FloatArray, target: FloatArray) -> FloatArray:
    highest = np.maximum(a + LARGEST_RISE, ALWAYS_ALLOWED)
    if a.ndim == 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            exact = np.log(target) - np.log(differ - target)
        return np.asarray(np.where(differ > target, np.clip(exact, a - _FARTHEST, highest), highest))
    low, high = np.full(target.shape, -_FARTHEST), np.full(target.shape, _FARTHEST)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        enough = _mixture_disagreement(differ, np.minimum(a + middle, highest)) >= target
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.asarray(np.minimum(a + high, highest))


def _inverse_temperature(logits: FloatArray, a: FloatArray, target: FloatArray) -> FloatArray:
    low, high = np.zeros(target.shape), np.ones(target.shape)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        enough = _mixture_disagreement(gini(softmax_probs(logits * middle[:, None])), a) >= target
        low, high = np.where(enough, middle, low), np.where(enough, high, middle)
    return high
