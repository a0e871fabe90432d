"""Scalings of logits: temperature, vector, matrix (ODIR).

f = softmax(W u + b) is fitted by maximum likelihood, from the identity,
with penalties λ_b/K Σb² and λ_w/(K(K − 1)) Σ_{k≠k'} W² (Kull et al.
2019; paper §6.1). Logits (S, N, K) of an ensemble have the loss of the
members' uniform mixture.
"""

from dataclasses import dataclass
from typing import Literal, TypedDict

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax

from ml.calibration.optimise import FitError, minimise
from ml.dataframes import refuse_names, refuse_tables, same_rows
from ml.distributions.likelihood import mixture_log_likelihood
from ml.util.arrays import EqualByValue, FloatArray, IntArray, as_label_counts

Method = Literal["none", "temperature", "vector", "matrix"]
METHODS: tuple[Method, ...] = ("none", "temperature", "vector", "matrix")
#: Candidates for λ_w and λ_b, chosen on cases that no fit has seen.
PENALTY_CANDIDATES = (0.1, 1.0, 10.0)
# Newton's steps at most, the factor by which one may change 1/T, and the relative change that ends them; as the error
# is squared by each step, the last one leaves no more than rounding
_NEWTON_STEPS, _NEWTON_REACH, _NEWTON_TOLERANCE = 30, 4.0, 1e-7


@dataclass(frozen=True, eq=False)
class Scaling(EqualByValue):
    """Calibrated logits W u + b.

    Attributes:
        method: which family it is of.
        log_temperature: natural logarithm of T; zero unless the method is ``temperature``.
        weight: (K,) diagonal or (K, K) matrix; None for ``none`` and ``temperature``.
        bias: (K,); None for ``none`` and ``temperature``.
    """

    method: Method = "none"
    log_temperature: float = 0.0
    weight: FloatArray | None = None
    bias: FloatArray | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"unknown calibration method {self.method!r}")
        if not np.isfinite(self.log_temperature):
            raise ValueError("the temperature is not finite")
        if self.method in {"none", "temperature"}:
            return
        weight, bias = (np.empty(0) if array is None else array for array in (self.weight, self.bias))
        square = bias.shape * (1 if self.method == "vector" else 2)
        if not bias.size or weight.shape != square or not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            raise ValueError("weight and bias of a scaling are misshapen or not finite")

    def __call__(self, logits: npt.ArrayLike) -> FloatArray:
        """Calibrated logits (..., K) in float64."""
        refuse_names(logits, "logits")
        scores = np.asarray(logits, dtype=np.float64)
        if self.weight is None or self.bias is None:
            return np.asarray(scores * np.exp(-self.log_temperature))
        turned = scores * self.weight if self.weight.ndim == 1 else scores @ self.weight.T
        return np.asarray(turned + self.bias)


class Choice(TypedDict):
    """Chosen candidate, by its held-out loss in nats per label."""

    cv_before: float
    cv_after: float
    chosen: str  # name of the candidate
    candidates: dict[str, float | None]  # None: no convergence


def scaling_loss(scaling: Scaling, logits: FloatArray, label_counts: IntArray) -> float:
    """Negative log-likelihood a label of softmax(W u + b)."""
    refuse_tables(logits=logits, label_counts=label_counts)
    logs = log_softmax(scaling(logits), axis=-1)
    return float(-mixture_log_likelihood((label_counts * logs).sum(axis=-1))[0].sum() / label_counts.sum())


def temperature_loss(logits: FloatArray, label_counts: IntArray, log_temperature: float) -> tuple[float, float]:
    """Loss of softmax(u / T), and its derivative by log T."""
    refuse_tables(logits=logits, label_counts=label_counts)
    scaled = logits * np.exp(-log_temperature)
    logs = log_softmax(scaled, axis=-1)
    likelihood, share = mixture_log_likelihood((label_counts * logs).sum(axis=-1))
    n_labels, totals = label_counts.sum(), label_counts.sum(axis=1)
    slope = totals * (np.exp(logs) * scaled).sum(axis=-1) - (label_counts * scaled).sum(axis=-1)
    return float(-likelihood.sum() / n_labels), float(-(share * slope).sum() / n_labels)


def _checked(logits: npt.ArrayLike, label_counts: npt.ArrayLike, what: str) -> tuple[FloatArray, IntArray]:
    same_rows(logits=logits, label_counts=label_counts)
    refuse_names(logits, "logits")
    scores, counts = np.asarray(logits, dtype=np.float64), as_label_counts(label_counts)
    if scores.ndim not in {2, 3} or scores.shape[-2:] != counts.shape:
        raise ValueError(f"logits {scores.shape} must have the shape {counts.shape} of label_counts, or (S, N, K)")
    if counts.sum() == 0:
        raise FitError(f"the {what} cannot be fitted: no case has a label")
    return scores, counts


def fit_temperature(logits: npt.ArrayLike, label_counts: npt.ArrayLike) -> tuple[float, int]:
    """Fit log T to logits (N, K) or (S, N, K), and count the iterations.

    Raises:
        FitError: no label, or no convergence.
    """
    scores, counts = _checked(logits, label_counts, "temperature")
    newton_fit = _newton_temperature(scores, counts) if scores.ndim == 2 else None
    if newton_fit is not None:
        return newton_fit

    def objective(x: FloatArray) -> tuple[float, FloatArray]:
        loss, slope = temperature_loss(scores, counts, float(x[0]))
        return loss, np.array([slope])

    parameters, iterations = minimise(objective, np.zeros(1), "temperature")
    return float(parameters[0]), iterations


def _newton_temperature(logits: FloatArray, label_counts: IntArray) -> tuple[float, int] | None:
    """Log T by Newton's steps in 1/T, and their number."""
    # None for labels that want T ≤ 0: the bounded search in log T has ends
    totals = np.einsum("nk->n", label_counts).astype(np.float64)
    below = logits - logits.max(axis=1, keepdims=True)  # so that no exponential overflows
    target, beta = float(np.einsum("nk,nk->", label_counts, below)), 1.0
    for step in range(1, _NEWTON_STEPS + 1):
        weight = np.exp(beta * below)
        total = np.einsum("nk->n", weight)
        weight *= below
        mean = np.einsum("nk->n", weight) / total
        slope = float(totals @ mean) - target
        curvature = float(totals @ (np.einsum("nk,nk->n", weight, below) / total - mean**2))
        if not curvature > 0:
            return None
        # far from the optimum a step may overshoot, below zero too
        next_beta = float(np.clip(beta - slope / curvature, beta / _NEWTON_REACH, beta * _NEWTON_REACH))
        if abs(next_beta - beta) <= _NEWTON_TOLERANCE * beta:
            return -float(np.log(next_beta)), step
        beta = next_beta
    return None


def affine_loss(
    weight: FloatArray, bias: FloatArray, logits: FloatArray, label_counts: IntArray, penalties: tuple[float, float]
) -> tuple[float, FloatArray, FloatArray]:
    """Penalised loss of softmax(W u + b), and its gradients."""
    k, n_labels = len(bias), label_counts.sum()
    off_penalty, bias_penalty = penalties
    diagonal = weight.ndim == 1
    logs = log_softmax((logits * weight if diagonal else logits @ weight.T) + bias, axis=-1)
    likelihood, share = mixture_log_likelihood((label_counts * logs).sum(axis=-1))
    residual = share[..., None] * (label_counts.sum(axis=1, keepdims=True) * np.exp(logs) - label_counts) / n_labels
    residual, inputs = residual.reshape(-1, k), logits.reshape(-1, k)
    loss = -likelihood.sum() / n_labels + bias_penalty / k * (bias**2).sum()
    bias_slope = residual.sum(axis=0) + 2 * bias_penalty / k * bias
    if diagonal:
        return float(loss), (residual * inputs).sum(axis=0), bias_slope
    off = weight - np.diag(np.diag(weight))
    loss += off_penalty / (k * (k - 1)) * (off**2).sum()
    return float(loss), residual.T @ inputs + 2 * off_penalty / (k * (k - 1)) * off, bias_slope


def fit_affine(
    logits: npt.ArrayLike, label_counts: npt.ArrayLike, method: Method, *, off_penalty: float, bias_penalty: float
) -> tuple[Scaling, int]:
    """Fit vector or matrix scaling, and count the iterations.

    Args:
        logits: (N, K), or (S, N, K) of an ensemble.
        label_counts: (N, K).
        method: ``vector`` or ``matrix``.
        off_penalty: λ_w on off-diagonal weights (matrix only).
        bias_penalty: λ_b.

    Raises:
        FitError: no label, or no convergence.
        ValueError: another method.
    """
    if method not in {"vector", "matrix"}:
        raise ValueError(f"method must be 'vector' or 'matrix', got {method!r}")
    scores, counts = _checked(logits, label_counts, f"{method} scaling")
    k = scores.shape[-1]
    shape = (k,) if method == "vector" else (k, k)
    start = np.ones(k) if method == "vector" else np.eye(k)

    def objective(x: FloatArray) -> tuple[float, FloatArray]:
        weight, bias = x[:-k].reshape(shape), x[-k:]
        loss, by_weight, by_bias = affine_loss(weight, bias, scores, counts, (off_penalty, bias_penalty))
        return loss, np.concatenate([by_weight.ravel(), by_bias])

    parameters, iterations = minimise(objective, np.concatenate([start.ravel(), np.zeros(k)]), f"{method} scaling")
    return Scaling(method, 0.0, parameters[:-k].reshape(shape), parameters[-k:]), iterations


def choose_scaling(
    logits: FloatArray,
    label_counts: IntArray,
    fit: npt.NDArray[np.bool_],
    cv: npt.NDArray[np.bool_],
    method: Method,
) -> tuple[Scaling, Scaling, Choice]:
    """Choose the scaling with the lowest loss on ``cv``."""
    # what is chosen next on cv must start from the former
    penalties = _penalty_candidates(method)

    def fit_on(rows: npt.NDArray[np.bool_], name: str) -> Scaling:
        inside, counts = logits[..., rows, :], label_counts[rows]
        if method == "temperature":
            return Scaling("temperature", fit_temperature(inside, counts)[0])
        off_penalty, bias_penalty = penalties[name]
        return fit_affine(inside, counts, method, off_penalty=off_penalty, bias_penalty=bias_penalty)[0]

    identity = Scaling()
    before = scaling_loss(identity, logits[..., cv, :], label_counts[cv])
    fitted = {name: fit_on(fit, name) for name in penalties}
    losses = {name: scaling_loss(scaling, logits[..., cv, :], label_counts[cv]) for name, scaling in fitted.items()}
    best = min(losses, key=lambda name: losses[name], default=None)
    if best is None or losses[best] >= before:
        unchanged = Choice(cv_before=before, cv_after=before, chosen="identity", candidates={**losses})
        return identity, identity, unchanged
    choice = Choice(cv_before=before, cv_after=losses[best], chosen=best, candidates={**losses})
    return fitted[best], fit_on(fit | cv, best), choice


def _penalty_candidates(method: Method) -> dict[str, tuple[float, float]]:
    if method == "matrix":
        pairs = [(off, bias) for bias in PENALTY_CANDIDATES for off in PENALTY_CANDIDATES]
        return {f"bias {bias:g}, off-diagonal {off:g}": (off, bias) for off, bias in pairs}
    if method == "vector":
        return {f"bias {bias:g}": (0.0, bias) for bias in PENALTY_CANDIDATES}
    return {"temperature": (0.0, 0.0)} if method == "temperature" else {}
