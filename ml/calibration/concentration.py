"""Concentration head: likelihood, fit and choice of its penalty.

It starts at a = 0, α0 = 1 everywhere. With a leading axis of S ensemble members the loss is that of the members'
uniform mixture.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import expit, log_softmax

from ml.calibration.optimise import FitError, minimise
from ml.calibration.scaling import Choice, mixture_log_likelihood
from ml.dataframes import refuse_names, refuse_tables, same_rows
from ml.distributions.families import dirichlet_multinomial_nll
from ml.util.arrays import EqualByValue, FloatArray, IntArray, as_label_counts


@dataclass(frozen=True)
class _Step:
    """Likelihood terms of the labels after the first ``step`` of a sequence."""

    log_step: float
    # (L,) cases with more labels than ``step``
    longer: npt.NDArray[np.intp]
    # (M,) case of each class with more labels than ``step``: few, so they are picked
    cells: npt.NDArray[np.intp]
    # (..., M) ln f of those classes; 0 where f is zero
    log_probs: FloatArray
    # (..., M) where f is zero, None where it nowhere is: such a term has no f in the limit
    impossible: npt.NDArray[np.bool_] | None

    @classmethod
    def of(cls, step: int, label_counts: IntArray, log_probs: FloatArray) -> "_Step":
        """Step of label counts (N, K) and ln f (..., N, K)."""
        cells, classes = np.nonzero(label_counts > step)
        picked = log_probs[..., cells, classes]
        impossible = np.isneginf(picked)
        longer = np.flatnonzero(label_counts.sum(axis=1) > step)
        if not impossible.any():
            return cls(float(np.log(step)), longer, cells, picked, None)
        return cls(float(np.log(step)), longer, cells, np.where(impossible, 0.0, picked), impossible)


class SequenceLikelihood:
    """Dirichlet-multinomial likelihood of label sequences as a function of a; all that a does not touch is kept.

    Args:
        label_counts: (N, K).
        log_probs: (..., N, K) ln f.
    """

    def __init__(self, label_counts: IntArray, log_probs: FloatArray) -> None:
        longest = int(label_counts.sum(axis=1).max(initial=0))
        self.constant = -np.where(label_counts >= 1, log_probs, 0.0).sum(axis=-1)
        self.steps = [_Step.of(step, label_counts, log_probs) for step in range(1, longest)]

    @classmethod
    def of_probs(cls, label_counts: IntArray, class_probs: FloatArray) -> "SequenceLikelihood":
        """Build from class probabilities (..., N, K), which may be zero."""
        with np.errstate(divide="ignore"):
            return cls(label_counts, np.log(class_probs))

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
            value = step.log_probs + value
            if step.impossible is not None:
                value, share = np.where(step.impossible, offset, value), np.where(step.impossible, 1.0, share)
            cells: Any = (..., step.cells)  # NumPy's types know of no ellipsis here
            # a case may have several such classes
            np.subtract.at(nll, cells, value)
            np.add.at(slope, cells, share)
        return nll, slope


def _softplus(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln(1 + eˣ) and its derivative, from one exponential."""
    small = np.exp(-np.abs(x))
    return np.maximum(x, 0.0) + np.log1p(small), np.where(x >= 0, 1.0, small) / (1.0 + small)


#: λ_α of the penalty λ_α/N Σ a² on the log concentration (paper §6.1).
LOG_CONCENTRATION_PENALTY = 0.005
#: Candidate ridge penalties on the head's weights for standardised features, chosen on the cv part.
RIDGE_CANDIDATES = (0.0, 1e-3, 1e-2, 1e-1)
#: Cases a feature below which a head without ridge is not tried: it has no well-defined optimum then.
CASES_PER_FEATURE = 10
#: Weaker λ_α, tried after the paper's.
WEAKER_PENALTIES = (5e-4, 5e-5)
Normalization = Literal["label", "instance"]


@dataclass(frozen=True, eq=False)
class ConcentrationHead(EqualByValue):
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
    refuse_tables(class_probs=class_probs, label_counts=label_counts, log_concentration=log_concentration)
    likelihood = SequenceLikelihood.of_probs(label_counts, class_probs)
    return _penalised(likelihood, label_counts.sum(axis=1), log_concentration, penalty, normalization)


def _penalised(
    likelihood: SequenceLikelihood,
    totals: IntArray,
    log_concentration: FloatArray,
    penalty: float,
    normalization: Normalization,
) -> tuple[float, FloatArray]:
    member_nll, slope = likelihood(log_concentration)
    mixed, share = mixture_log_likelihood(-member_nll)
    if normalization == "label":
        weight = np.full(len(totals), 1.0 / max(totals.sum(), 1))
    elif normalization == "instance":
        weight = totals / max(totals.mean(), 1e-300) / len(totals)
    else:
        raise ValueError(f"normalization must be 'label' or 'instance', got {normalization!r}")
    value = -weight @ mixed + penalty * (log_concentration**2).mean()
    return float(value), weight * share * slope + 2 * penalty * log_concentration / log_concentration.size


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
    same_rows(features=features, class_probs=class_probs, label_counts=label_counts)
    refuse_names(class_probs, "class_probs")
    counts, probs = as_label_counts(label_counts), np.asarray(class_probs, dtype=np.float64)
    if not (counts.sum(axis=1) >= 2).any():
        raise FitError("the concentration cannot be fitted: no case has two labels, and one says nothing about it")
    table = _Design.of(np.asarray(features, dtype=np.float64), ridge)
    members, likelihood, totals = probs.shape[:-1], SequenceLikelihood.of_probs(counts, probs), counts.sum(axis=1)

    def objective(x: FloatArray) -> tuple[float, FloatArray]:
        a = table.log_concentration(x).reshape(members)
        value, by_a = _penalised(likelihood, totals, a, penalty, normalization)
        shrink, slope = ridge or 0.0, by_a.ravel()
        gradient = table.slopes(slope)
        gradient[:-1] += shrink * x[:-1]
        return value + 0.5 * shrink * float(x[:-1] @ x[:-1]), gradient

    parameters, iterations = minimise(objective, np.zeros(table.centred.shape[1] + 1), "concentration head")
    return table.head(parameters), iterations


@dataclass(frozen=True)
class _Design:
    """Centred features (M, D) with what standardises them and undoes it; no column for a constant head."""

    # Dividing D weights by the spread is standardising M · D features without a pass through them.

    centred: FloatArray
    centre: FloatArray
    spread: FloatArray

    @classmethod
    def of(cls, features: FloatArray, ridge: float | None) -> "_Design":
        raw = features.reshape(-1, features.shape[-1])
        centre = raw.mean(axis=0)
        centred = raw - centre
        spread = np.sqrt(np.einsum("md,md->d", centred, centred) / len(raw))
        spread = np.where(spread > 1e-12 * np.maximum(1.0, np.abs(centre)), spread, 1.0)
        return cls(centred if ridge is not None else centred[:, :0], centre, spread)

    @property
    def _scale(self) -> FloatArray:
        return self.spread[: self.centred.shape[1]]

    def log_concentration(self, x: FloatArray) -> FloatArray:
        """Log concentrations (M,) for weights and bias of the standardised features."""
        return np.asarray(self.centred @ (x[:-1] / self._scale) + x[-1])

    def slopes(self, by_a: FloatArray) -> FloatArray:
        """Derivatives by these weights and the bias of what has these derivatives (M,) by the log concentrations."""
        return np.append((by_a @ self.centred) / self._scale, by_a.sum())

    def head(self, x: FloatArray) -> ConcentrationHead:
        """Head of the raw features for weights and bias of the standardised ones."""
        weight = x[:-1] / self.spread if self.centred.shape[1] else np.zeros(len(self.centre))
        return ConcentrationHead(weight, float(x[-1] - weight @ self.centre))

    def parameters(self, head: ConcentrationHead) -> FloatArray:
        """The opposite of ``head``."""
        weight = head.weight * self.spread if self.centred.shape[1] else np.empty(0)
        return np.append(weight, head.bias + head.weight @ self.centre)


def joint_loss(
    logits: FloatArray, label_counts: IntArray, log_temperature: float, log_concentration: FloatArray, penalty: float
) -> tuple[float, FloatArray, float]:
    """``concentration_loss`` of softmax(u / T), and its gradients by a and by log T.

    Args:
        logits: (N, K), or (S, N, K) of an ensemble.
        label_counts: (N, K).
        log_temperature: log T.
        log_concentration: (N,) or (S, N).
        penalty: λ_α.
    """
    shared = np.full(logits.shape[:-1], log_temperature)
    value, slope, by_t = case_temperature_loss(logits, label_counts, shared, log_concentration, penalty)
    return value, slope, float(by_t.sum())


def case_temperature_loss(
    logits: FloatArray,
    label_counts: IntArray,
    log_temperatures: FloatArray,
    log_concentration: FloatArray,
    penalty: float,
) -> tuple[float, FloatArray, FloatArray]:
    """``joint_loss`` with a log T for each case (and member), (N,) or (S, N); its gradients by a and by each log T."""
    refuse_tables(logits=logits, label_counts=label_counts, log_concentration=log_concentration)
    # a line search may try anything
    scaled = logits * np.exp(-np.clip(log_temperatures, -20.0, 20.0))[..., None]
    logs = log_softmax(scaled, axis=-1)
    probs = np.exp(logs)
    # of ln f: f itself may underflow to zero where a line search tries a small T
    likelihood = SequenceLikelihood(label_counts, logs)
    value, slope = _penalised(likelihood, label_counts.sum(axis=1), log_concentration, penalty, "label")
    # −∂NLL/∂ln f_k = 1{y_k ≥ 1} + Σ_{l<y_k} σ(ln f_k − ln l + a)
    rate = np.broadcast_to(label_counts >= 1, logs.shape).astype(np.float64)
    for step in range(1, int(label_counts.max(initial=0))):
        more: Any = (..., *np.nonzero(label_counts > step))
        rows: Any = more[:2]
        rate[more] += expit(logs[more] - np.log(step) + log_concentration[rows])
    by_t = (rate * scaled).sum(axis=-1) - rate.sum(axis=-1) * (probs * scaled).sum(axis=-1)
    share = mixture_log_likelihood(-dirichlet_multinomial_nll(label_counts, logs, log_concentration))[1]
    return value, slope, np.asarray(share * by_t / label_counts.sum())


def fit_jointly(
    logits: FloatArray,
    features: FloatArray,
    label_counts: IntArray,
    start: tuple[float, ConcentrationHead],
    kind: "HeadKind",
    *,
    temperature_fixed: bool = False,
) -> tuple[float, ConcentrationHead]:
    """Fit temperature and concentration head together, on the one likelihood that both belong to.

    Args:
        logits: (N, K), or (S, N, K) of an ensemble.
        features: (N, D), or (S, N, D).
        label_counts: (N, K).
        start: log T and head that were fitted one after the other.
        kind: ridge and penalty of the head.
        temperature_fixed: fit the head only.

    Returns:
        log T and head.

    Raises:
        FitError: no convergence.
    """
    refuse_tables(logits=logits, features=features, label_counts=label_counts)
    table = _Design.of(features, kind.ridge)
    shrink = kind.ridge or 0.0

    def objective(x: FloatArray) -> tuple[float, FloatArray]:
        a = table.log_concentration(x[:-1]).reshape(logits.shape[:-1])
        value, by_a, by_t = joint_loss(logits, label_counts, float(x[-1]), a, kind.penalty)
        slope = by_a.ravel()
        by_t = 0.0 if temperature_fixed else by_t
        gradient = np.append(table.slopes(slope), by_t)
        gradient[:-2] += shrink * x[:-2]
        return value + 0.5 * shrink * float(x[:-2] @ x[:-2]), gradient

    first = np.append(table.parameters(start[1]), start[0])
    parameters, _ = minimise(objective, first, "temperature and concentration")
    return float(parameters[-1]), table.head(parameters[:-1])


@dataclass(frozen=True)
class HeadKind:
    """A kind of concentration head: ridge ρ (None for a constant head) and penalty λ_α."""

    ridge: float | None
    penalty: float

    def __str__(self) -> str:
        kind = "constant" if self.ridge is None else f"ridge {self.ridge:g}"
        return kind if self.penalty == LOG_CONCENTRATION_PENALTY else f"{kind}, penalty {self.penalty:g}"


def choose_head(
    features: FloatArray,
    probs: tuple[FloatArray, FloatArray],
    counts: IntArray,
    fit: npt.NDArray[np.bool_],
    cv: npt.NDArray[np.bool_],
) -> tuple[ConcentrationHead, HeadKind | None, Choice]:
    """Candidates from the free head to a constant one; the best on the cv part is refitted, a = 0 if none helps.

    The paper's λ_α pulls α0 towards 1, which is far too small where predictions are nearly right; weaker
    penalties are tried for the best ridge and for a constant head.

    Args:
        features: (N, D), or (S, N, D) of an ensemble.
        probs: class probabilities (..., N, K) by a scaling fitted on the fit part, to choose with, and by the final
            one, to refit with.
        counts: (N, K).
        fit: (N,) cases to fit on.
        cv: (N,) cases to choose on.

    Returns:
        The head, its kind (None where a = 0 is kept), and the losses.

    Raises:
        FitError: no candidate converged.
    """
    refuse_tables(features=features, probs=probs, counts=counts, fit=fit, cv=cv)
    chosen_on, final = probs
    losses: dict[str, float | None] = {}

    def try_candidate(candidate: HeadKind) -> float:
        try:
            head = _fitted(candidate, features, chosen_on, counts, fit)
        except FitError:  # with few cases for many features the free head has no well-defined optimum
            losses[str(candidate)] = None
            return np.inf
        a = head(features[..., cv, :])
        loss = concentration_loss(chosen_on[..., cv, :], counts[cv], a, penalty=0.0)[0]
        losses[str(candidate)] = loss
        return loss

    start = ConcentrationHead(np.zeros(features.shape[-1]), 0.0)
    before = concentration_loss(chosen_on[..., cv, :], counts[cv], start(features[..., cv, :]), penalty=0.0)[0]
    enough = (counts[fit].sum(axis=1) >= 2).sum() >= CASES_PER_FEATURE * features.shape[-1]
    ridges = [ridge for ridge in RIDGE_CANDIDATES if ridge > 0 or enough]
    tried = {kind: try_candidate(kind) for kind in (HeadKind(r, LOG_CONCENTRATION_PENALTY) for r in (*ridges, None))}
    weaker = {min(tried, key=lambda kind: tried[kind]).ridge, None}
    tried |= {kind: try_candidate(kind) for kind in (HeadKind(r, p) for r in weaker for p in WEAKER_PENALTIES)}
    if not np.isfinite(list(tried.values())).any():
        raise FitError("no fit of the concentration head converged")
    best = min(tried, key=lambda kind: tried[kind])
    if tried[best] >= before:
        return start, None, Choice(before, before, "start", losses)
    try:
        head = _fitted(best, features, final, counts, fit | cv)
    except FitError:  # it did converge on the fit part
        head = _fitted(best, features, chosen_on, counts, fit)
    return head, best, Choice(before, tried[best], str(best), losses)


def _fitted(
    candidate: HeadKind,
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
