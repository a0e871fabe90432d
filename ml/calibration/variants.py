"""Variants of the calibration that also read summaries of the logits (``ml.calibration.summaries``).

The head may see them beside the features, a = wᵀg + vᵀs + c, and the temperature may depend on them, log T = t + rᵀs
(parameterised temperature scaling, Tomani et al. 2022). Temperature and head are fitted together, on the one
Dirichlet-multinomial likelihood that both belong to.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ml.calibration.concentration import ConcentrationHead, HeadKind, case_temperature_loss
from ml.calibration.optimise import minimise
from ml.calibration.summaries import N_SUMMARIES
from ml.util.arrays import FloatArray, IntArray

#: Ridge ρ/2 |·|² on the weights of the standardised summaries.
SUMMARY_RIDGE = 1e-3
#: Relative fall of the loss in a step below which a rough search ends.
ROUGHLY = 1e-6


@dataclass(frozen=True)
class Variant:
    """Parameters that read the summaries.

    Attributes:
        head: the concentration head.
        temperature: the temperature, which then differs between cases.
    """

    head: bool
    temperature: bool

    def __str__(self) -> str:
        readers = [name for name, reads in (("head", self.head), ("temperature", self.temperature)) if reads]
        return " and ".join(readers) if readers else "neither"


PLAIN = Variant(False, False)
VARIANTS = (PLAIN, Variant(True, False), Variant(False, True), Variant(True, True))


@dataclass(frozen=True)
class Outputs:
    """Logits and features of N cases with their summaries, and their labels.

    Attributes:
        logits: (N, K), or (S, N, K) of an ensemble; scaled already where the scaling is no temperature.
        features: (N, D) or (S, N, D).
        summaries: (N, 4) or (S, N, 4) of the logits as they came.
        label_counts: (N, K).
    """

    logits: FloatArray
    features: FloatArray
    summaries: FloatArray
    label_counts: IntArray

    def rows(self, rows: npt.NDArray[np.bool_]) -> "Outputs":
        """Some of the cases."""
        return Outputs(
            self.logits[..., rows, :],
            self.features[..., rows, :],
            self.summaries[..., rows, :],
            self.label_counts[rows],
        )


@dataclass(frozen=True)
class Fitted:
    """Temperature and head.

    Attributes:
        log_temperature: t.
        temperature_weight: r (4,), of the standardised summaries.
        head: of the features and, behind them, the standardised summaries: weights (D + 4,).
    """

    log_temperature: float
    temperature_weight: FloatArray
    head: ConcentrationHead

    def log_temperatures(self, summaries: FloatArray) -> FloatArray:
        """Log T of each case (…, N) by summaries (…, N, 4)."""
        return np.asarray(self.log_temperature + summaries @ self.temperature_weight)

    def predicted(self, outputs: Outputs) -> tuple[FloatArray, FloatArray]:
        """Calibrated logits and log concentrations."""
        scaled = outputs.logits * np.exp(-self.log_temperatures(outputs.summaries))[..., None]
        return scaled, self.head(np.concatenate([outputs.features, outputs.summaries], axis=-1))

    def loss(self, outputs: Outputs) -> float:
        """Dirichlet-multinomial loss in nats a label."""
        a = self.head(np.concatenate([outputs.features, outputs.summaries], axis=-1))
        log_t = self.log_temperatures(outputs.summaries)
        return case_temperature_loss(outputs.logits, outputs.label_counts, log_t, a, 0.0)[0]


def start_without_summaries(log_temperature: float, head: ConcentrationHead) -> Fitted:
    """Extend a fit without summaries by zero weights for them."""
    none = np.zeros(N_SUMMARIES)
    return Fitted(log_temperature, none, ConcentrationHead(np.append(head.weight, none), head.bias))


def fit_variant(
    outputs: Outputs,
    start: Fitted,
    kind: HeadKind,
    variant: Variant,
    *,
    temperature_fixed: bool = False,
    rough: bool = False,
) -> Fitted:
    """Fit a variant by the penalised Dirichlet-multinomial likelihood.

    Args:
        outputs: of the cases to fit on.
        start: where the search begins.
        kind: ridge of the features' weights, and penalty on the log concentration.
        variant: what reads the summaries.
        temperature_fixed: t stays as it is, and no temperature reads summaries.
        rough: end the search early, where a fit is only compared with others.

    Raises:
        FitError: no convergence.
    """
    problem = _Problem(outputs, kind, variant, start, temperature_fixed)
    what = f"calibration ({variant} with summaries)"
    parameters, _ = minimise(problem, problem.start(start), what, tolerance=ROUGHLY if rough else None)
    return problem.fitted(parameters)


class _Problem:
    """The loss as a function of head weights of standardised features and summaries, c, t and r, in one vector."""

    def __init__(
        self, outputs: Outputs, kind: HeadKind, variant: Variant, start: Fitted, temperature_fixed: bool
    ) -> None:
        self.outputs, self.kind, self.first = outputs, kind, start
        self.members = outputs.logits.shape[:-1]
        self.width = outputs.features.shape[-1]
        raw = outputs.features.reshape(-1, self.width)
        self.centre, spread = raw.mean(axis=0), raw.std(axis=0)
        self.spread = np.where(spread > 1e-12 * np.maximum(1.0, np.abs(self.centre)), spread, 1.0)
        seen = outputs.summaries.reshape(-1, N_SUMMARIES)
        by_features = (raw - self.centre) / self.spread
        read = np.concatenate([np.full(self.width, kind.ridge is not None), np.full(N_SUMMARIES, variant.head)])
        self.design = np.column_stack([by_features, seen])[:, read]
        self.read, self.seen = read, seen
        self.ridge = np.where(np.arange(self.width + N_SUMMARIES) < self.width, kind.ridge or 0.0, SUMMARY_RIDGE)[read]
        self.free_t = not temperature_fixed
        self.case_t = variant.temperature and not temperature_fixed

    def __call__(self, x: FloatArray) -> tuple[float, FloatArray]:
        n = self.design.shape[1]
        weight, bias, log_t, by_case = x[:n], x[n], x[n + 1], x[n + 2 :]
        a = (self.design @ weight + bias).reshape(self.members)
        log_ts = (log_t + self.seen @ by_case).reshape(self.members)
        value, by_a, by_t = case_temperature_loss(
            self.outputs.logits, self.outputs.label_counts, log_ts, a, self.kind.penalty
        )
        slope_a, slope_t = by_a.ravel(), by_t.ravel()
        value += 0.5 * float(self.ridge @ weight**2) + 0.5 * SUMMARY_RIDGE * float(by_case @ by_case)
        gradient = np.concatenate(
            [
                self.design.T @ slope_a + self.ridge * weight,
                [slope_a.sum(), slope_t.sum() * self.free_t],
                (self.seen.T @ slope_t + SUMMARY_RIDGE * by_case) * self.case_t,
            ]
        )
        return value, gradient

    def start(self, fitted: Fitted) -> FloatArray:
        """Parameters of a fit, without the weights of what is not read."""
        weight = np.append(fitted.head.weight[: self.width] * self.spread, fitted.head.weight[self.width :])
        bias = fitted.head.bias + float(fitted.head.weight[: self.width] @ self.centre)
        by_case = fitted.temperature_weight if self.case_t else np.zeros(N_SUMMARIES)
        return np.concatenate([weight[self.read], [bias, fitted.log_temperature], by_case])

    def fitted(self, x: FloatArray) -> Fitted:
        """The opposite of ``start``."""
        n = self.design.shape[1]
        weight = np.zeros(self.width + N_SUMMARIES)
        weight[self.read] = x[:n]
        weight[: self.width] /= self.spread
        bias = float(x[n] - weight[: self.width] @ self.centre)
        return Fitted(float(x[n + 1]), x[n + 2 :].copy(), ConcentrationHead(weight, bias))
