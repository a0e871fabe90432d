"""Calibrators fitted after training, on cached logits and features, in float64 with SciPy's L-BFGS.

Class probabilities are calibrated by a scaling of the logits (``ml.scaling``). The concentration head
(α-calibration, paper §4.2) reads the penultimate features: a = wᵀg + c is the log concentration of Dir(α0 f).
Both start where they change nothing (identity; a = 0, α0 = 1), and a fit is kept only where it lowers the loss
on cases that it has not seen.

Logits and features may have a leading axis of S ensemble members (Monte-Carlo dropout, test-time augmentation):
the losses are then those of the members' uniform mixture, and the result is an ensemble or a Dirichlet mixture.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from ml.arrays import FloatArray, IntArray, as_label_counts
from ml.distributions import (
    DirichletCpe,
    DirichletMixtureCpe,
    EnsembleCpe,
    PointCpe,
    PredictiveDistribution,
    dirichlet_multinomial_nll,
    softmax_probs,
)
from ml.fitting import FitError, minimise
from ml.scaling import Method, Scaling, choose_scaling, mixture_log_likelihood
from ml.splits import split_partitions

CALIBRATION_VERSION = 1
#: λ_α of the penalty λ_α/N Σ a² on the log concentration (paper §6.1).
LOG_CONCENTRATION_PENALTY = 0.005
#: Candidate ridge penalties on the head's weights for standardised features, chosen on the cv part.
RIDGE_CANDIDATES = (0.0, 1e-3, 1e-2, 1e-1)
#: Weaker λ_α, tried after the paper's.
WEAKER_PENALTIES = (5e-4, 5e-5)
Normalization = Literal["label", "instance"]


@dataclass(frozen=True)
class ConcentrationHead:
    """Log concentration a = wᵀg + c of features g.

    Attributes:
        weight: (D,).
        bias: c.
    """

    weight: FloatArray
    bias: float

    def __call__(self, features: npt.ArrayLike) -> FloatArray:
        """Log concentration (...,) of features (..., D)."""
        return np.asarray(np.asarray(features, dtype=np.float64) @ self.weight + self.bias)


@dataclass(frozen=True)
class Calibration:
    """What turns a network's outputs into a predictive distribution.

    Attributes:
        scaling: how class probabilities are calibrated.
        concentration: the head, or None where no case had two labels to learn it from.
    """

    scaling: Scaling
    concentration: ConcentrationHead | None

    def apply(self, logits: npt.ArrayLike, features: npt.ArrayLike) -> PredictiveDistribution:
        """Predictive distribution of logits (N, K) and features (N, D), or (S, N, K) and (S, N, D) of an ensemble.

        Raises:
            ValueError: neither two nor three axes.
        """
        probs = softmax_probs(self.scaling(logits))
        if probs.ndim not in {2, 3}:
            raise ValueError(f"logits must have shape (N, K) or (S, N, K), got {probs.shape}")
        if self.concentration is None:
            return PointCpe(probs) if probs.ndim == 2 else EnsembleCpe(probs)
        a = self.concentration(features)
        return DirichletCpe(probs, a) if probs.ndim == 2 else DirichletMixtureCpe(probs, a)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values, float64 to the last bit."""
        head = self.concentration
        return {
            "version": CALIBRATION_VERSION,
            **self.scaling.to_dict(),
            "concentration": None if head is None else {"weight": head.weight.tolist(), "bias": head.bias},
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> "Calibration":
        """Read back what ``to_dict`` wrote.

        Raises:
            ValueError: another version, or a field is missing, misshapen or not finite.
        """
        try:
            if document["version"] != CALIBRATION_VERSION:
                raise ValueError(f"calibration version {document['version']} is not {CALIBRATION_VERSION}")
            scaling, head = Scaling.from_dict(document), document["concentration"]
            if head is None:
                return cls(scaling, None)
            weight, bias = np.array(head["weight"], dtype=np.float64), float(head["bias"])
        except (KeyError, TypeError) as exc:
            raise ValueError(f"not a calibration document: {exc!r}") from exc
        if weight.ndim != 1 or not (np.isfinite(weight).all() and np.isfinite(bias)):
            raise ValueError("not a calibration document: the concentration head is misshapen or not finite")
        return cls(scaling, ConcentrationHead(weight, bias))


def concentration_loss(
    class_probs: FloatArray,
    label_counts: IntArray,
    log_concentration: FloatArray,
    *,
    penalty: float = LOG_CONCENTRATION_PENALTY,
    normalization: Normalization = "label",
) -> tuple[float, FloatArray]:
    """Penalised Dirichlet-multinomial loss of log concentrations (..., N), and its gradient by them.

    ``label`` (paper eq. 14): −1/Σn Σ log DirMult(y | α0 f) + λ/N Σ a². ``instance`` (the authors' code):
    1/N Σ (n_i/n̄) NLL_i + λ/N Σ a², in which λ acts n̄ times weaker. With a leading member axis DirMult is the
    uniform mixture of the members' and the penalty their mean.

    Raises:
        ValueError: an unknown normalization.
    """
    totals = label_counts.sum(axis=1)
    member_nll, slope = _sequence_nll(class_probs, label_counts, log_concentration)
    likelihood, share = mixture_log_likelihood(-member_nll)
    if normalization == "label":
        weight = np.full(len(totals), 1.0 / max(totals.sum(), 1))
    elif normalization == "instance":
        weight = totals / max(totals.mean(), 1e-300) / len(totals)
    else:
        raise ValueError(f"normalization must be 'label' or 'instance', got {normalization!r}")
    value = -weight @ likelihood + penalty * (log_concentration**2).mean()
    return float(value), weight * share * slope + 2 * penalty * log_concentration / log_concentration.size


def _sequence_nll(
    class_probs: FloatArray, label_counts: IntArray, log_concentration: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Dirichlet-multinomial negative log-likelihoods (..., N) and their derivatives by a."""
    totals = label_counts.sum(axis=1)
    with np.errstate(divide="ignore"):
        logs = np.log(class_probs)
    slope = np.zeros(log_concentration.shape)
    for step in range(1, int(totals.max(initial=0))):
        offset = np.log(step) - log_concentration
        slope -= np.where(totals > step, expit(offset), 0.0)
        # only cells with a further label of the same class matter: few, so pick them
        rows, columns = np.nonzero(label_counts > step)
        if rows.size:
            log_f = logs[..., rows, columns]
            # −∞ − (−∞) where f is zero: such a term does not depend on a in the limit
            cells: Any = (..., rows)
            np.add.at(slope, cells, expit(offset[cells] - np.where(np.isfinite(log_f), log_f, -1e300)))
    return dirichlet_multinomial_nll(label_counts, logs, log_concentration), slope


def fit_concentration(
    features: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    label_counts: npt.ArrayLike,
    *,
    penalty: float = LOG_CONCENTRATION_PENALTY,
    ridge: float | None = 0.0,
    normalization: Normalization = "label",
) -> tuple[ConcentrationHead, int]:
    """Fit the concentration head, starting from α0 = 1 everywhere.

    Args:
        features: (N, D) or (S, N, D), standardised inside, which leaves the model unchanged.
        class_probs: (N, K) or (S, N, K) calibrated class probabilities.
        label_counts: (N, K); cases with one label carry no information on a.
        penalty: λ_α.
        ridge: penalty ρ/2 |w|² on the weights of standardised features; None for a constant head, w = 0.
        normalization: as in ``concentration_loss``.

    Returns:
        The head and the number of iterations.

    Raises:
        FitError: no case has two labels, or no convergence.
    """
    counts, probs = as_label_counts(label_counts), np.asarray(class_probs, dtype=np.float64)
    if not (counts.sum(axis=1) >= 2).any():
        raise FitError("the concentration cannot be fitted: no case has two labels, and one says nothing about it")
    raw = np.asarray(features, dtype=np.float64)
    members, raw = raw.shape[:-1], raw.reshape(-1, raw.shape[-1])
    centre, spread = raw.mean(axis=0), raw.std(axis=0)
    spread = np.where(spread > 1e-12 * np.maximum(1.0, np.abs(centre)), spread, 1.0)
    design = (raw - centre) / spread
    if ridge is None:
        design = design[:, :0]

    def objective(x: FloatArray) -> tuple[float, FloatArray]:
        a = (design @ x[:-1] + x[-1]).reshape(members)
        value, by_a = concentration_loss(probs, counts, a, penalty=penalty, normalization=normalization)
        shrink, slope = ridge or 0.0, by_a.ravel()
        gradient = np.append(design.T @ slope + shrink * x[:-1], slope.sum())
        return value + 0.5 * shrink * float(x[:-1] @ x[:-1]), gradient

    found, iterations = minimise(objective, np.zeros(design.shape[1] + 1), "concentration head")
    weight = found[:-1] / spread if ridge is not None else np.zeros(raw.shape[1])
    return ConcentrationHead(weight, float(found[-1] - weight @ centre)), iterations


@dataclass(frozen=True)
class FitReport:
    """How a calibration was chosen: losses on the cv part before and after, and what was kept."""

    calibration: Calibration
    report: dict[str, Any]


def calibrate(
    logits: npt.ArrayLike,
    features: npt.ArrayLike,
    label_counts: npt.ArrayLike,
    groups: list[str],
    *,
    method: Method = "temperature",
    alpha: bool = True,
    seed: int = 0,
) -> FitReport:
    """Fit scaling and concentration head on 80 % of the groups, choose what helps on the other 20 %, refit on all.

    Args:
        logits: (N, K), or (S, N, K) of an ensemble.
        features: (N, D), or (S, N, D).
        label_counts: (N, K).
        groups: patient of each case, or the case itself.
        method: how class probabilities are calibrated.
        alpha: whether to fit the concentration head.
        seed: of the split.

    Returns:
        The calibration and a report of its losses.

    Raises:
        FitError: a fit did not converge, or there is no label.
    """
    scores, counts = np.asarray(logits, dtype=np.float64), as_label_counts(label_counts)
    hidden = np.asarray(features, dtype=np.float64)
    if len(counts) < 10 or counts.sum() == 0:
        raise FitError(f"calibration needs at least ten labelled cases, got {len(counts)} with {counts.sum()} labels")
    part = split_partitions(groups, {"fit": 0.8, "cv": 0.2}, seed)
    fit, cv = part == "fit", part == "cv"
    if counts[fit].sum() == 0 or counts[cv].sum() == 0:
        raise FitError(f"calibration needs labelled cases of at least three patients, got {len(set(groups))} patients")
    report: dict[str, Any] = {"n_fit": int(fit.sum()), "n_cv": int(cv.sum())}
    scaling = Scaling()
    if method != "none":
        scaling, report[method] = choose_scaling(scores, counts, fit, cv, method)
    probs = softmax_probs(scaling(scores))
    head = None
    if alpha and (counts[fit].sum(axis=1) >= 2).any() and (counts[cv].sum(axis=1) >= 2).any():
        head, report["concentration"] = _choose_head(hidden, probs, counts, fit, cv)
    return FitReport(Calibration(scaling, head), report)


@dataclass(frozen=True)
class _Candidate:
    """A kind of concentration head: ridge ρ (None for a constant head) and penalty λ_α."""

    ridge: float | None
    penalty: float

    def __str__(self) -> str:
        kind = "constant" if self.ridge is None else f"ridge {self.ridge:g}"
        return kind if self.penalty == LOG_CONCENTRATION_PENALTY else f"{kind}, penalty {self.penalty:g}"


def _choose_head(
    features: FloatArray,
    probs: FloatArray,
    counts: IntArray,
    fit: npt.NDArray[np.bool_],
    cv: npt.NDArray[np.bool_],
) -> tuple[ConcentrationHead, dict[str, Any]]:
    """Candidates from the free head to a constant one; the best on the cv part is refitted, a = 0 if none helps.

    The paper's λ_α pulls α0 towards 1, which is far too small where predictions are nearly right; weaker
    penalties are tried for the best ridge and for a constant head.

    Raises:
        FitError: no candidate converged.
    """
    losses: dict[str, float | None] = {}

    def try_candidate(candidate: _Candidate) -> float:
        try:
            head = _fitted(candidate, features, probs, counts, fit)
        except FitError:  # with few cases for many features the free head has no well-defined optimum
            losses[str(candidate)] = None
            return np.inf
        a = head(features[..., cv, :])
        loss = concentration_loss(probs[..., cv, :], counts[cv], a, penalty=0.0)[0]
        losses[str(candidate)] = loss
        return loss

    start = ConcentrationHead(np.zeros(features.shape[-1]), 0.0)
    before = concentration_loss(probs[..., cv, :], counts[cv], start(features[..., cv, :]), penalty=0.0)[0]
    tried = {_Candidate(ridge, LOG_CONCENTRATION_PENALTY): np.inf for ridge in (*RIDGE_CANDIDATES, None)}
    tried = {candidate: try_candidate(candidate) for candidate in tried}
    ridges = {min(tried, key=lambda one: tried[one]).ridge, None}
    weaker = [_Candidate(ridge, penalty) for ridge in ridges for penalty in WEAKER_PENALTIES]
    tried |= {candidate: try_candidate(candidate) for candidate in weaker}
    if not np.isfinite(list(tried.values())).any():
        raise FitError("no fit of the concentration head converged")
    best = min(tried, key=lambda one: tried[one])
    report = {"cv_before": before, "cv_after": min(before, tried[best]), "candidates": losses}
    if tried[best] >= before:
        return start, report | {"chosen": "start"}
    try:
        return _fitted(best, features, probs, counts, fit | cv), report | {"chosen": str(best)}
    except FitError:  # it did converge on the fit part
        return _fitted(best, features, probs, counts, fit), report | {"chosen": str(best)}


def _fitted(
    candidate: _Candidate,
    features: FloatArray,
    probs: FloatArray,
    counts: IntArray,
    rows: npt.NDArray[np.bool_],
) -> ConcentrationHead:
    return fit_concentration(
        features[..., rows, :],
        probs[..., rows, :],
        counts[rows],
        ridge=candidate.ridge,
        penalty=candidate.penalty,
    )[0]
