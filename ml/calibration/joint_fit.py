"""Temperature and concentration head fitted by one likelihood.

Both may read summaries of the logits: the head by a = wᵀg + vᵀs + c,
the temperature by log T = t + rᵀs (Tomani et al. 2022).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax

from ml.calibration.calibration import N_SUMMARIES
from ml.calibration.concentration import ConcentrationHead, HeadDesign, HeadKind, penalised_loss
from ml.calibration.optimise import FitError, minimise
from ml.distributions.likelihood import DirichletMultinomial
from ml.metrics.cases import observed_disagreement
from ml.util.arrays import FloatArray, IntArray, as_label_counts


def case_temperature_loss(
    logits: FloatArray,
    label_counts: IntArray,
    log_temperatures: FloatArray,
    log_concentration: FloatArray,
    penalty: float,
) -> tuple[float, FloatArray, FloatArray]:
    """Loss of softmax(u / T) with a log T of each case; gradients."""
    # a line search may try anything
    scaled = logits * np.exp(-np.clip(log_temperatures, -20.0, 20.0))[..., None]
    logs = log_softmax(scaled, axis=-1)
    # of ln f: f itself may underflow to zero if a line search tries a small T
    likelihood = DirichletMultinomial(label_counts, logs)
    terms = likelihood(log_concentration)
    value, slope, weight = penalised_loss(*terms, label_counts.sum(axis=1), log_concentration, penalty)
    rate = likelihood.slopes_by_log_probs(log_concentration)
    by_t = (rate * scaled).sum(axis=-1) - rate.sum(axis=-1) * (np.exp(logs) * scaled).sum(axis=-1)
    return value, slope, np.asarray(weight * by_t)


#: Ridge ρ/2 |·|² on the weights of the standardised summaries.
SUMMARY_RIDGE = 1e-3
#: Relative fall of the loss in a step below which a rough search ends.
ROUGHLY = 1e-6


@dataclass(frozen=True)
class LabelledOutputs:
    """Network outputs, (N, …) or (S, N, …), and labels."""

    logits: FloatArray  # (N, K)
    features: FloatArray  # (N, D)
    counts: IntArray  # (N, K)
    # not of labels that were asked for because others differ: their pairs differ less
    paired: IntArray  # (N, K) labels whose pairs teach φ
    summaries: FloatArray  # (N, 4) or (N, 0)

    @classmethod
    def of(
        cls,
        logits: npt.ArrayLike,
        features: npt.ArrayLike,
        label_counts: npt.ArrayLike,
        pair_label_counts: npt.ArrayLike | None = None,
    ) -> "LabelledOutputs":
        """Check and convert arrays; all labels are paired if no others are given."""
        counts = as_label_counts(label_counts)
        paired = counts if pair_label_counts is None else as_label_counts(pair_label_counts)
        if paired.shape != counts.shape or (paired > counts).any():
            raise FitError("pair_label_counts must be some of label_counts")
        scores = np.asarray(logits, dtype=np.float64)
        none = np.empty((*scores.shape[:-1], 0))
        return cls(scores, np.asarray(features, dtype=np.float64), counts, paired, none)

    @property
    def pairs(self) -> npt.NDArray[np.bool_]:
        """Mask of the cases that were read twice."""
        return np.asarray(self.paired.sum(axis=1) >= 2)

    @property
    def differ(self) -> FloatArray:
        """Share of pairs that differ, of each case that was read twice."""
        return observed_disagreement(self.paired[self.pairs])

    def rows(self, rows: npt.NDArray[np.bool_]) -> "LabelledOutputs":
        """Some of the cases."""
        logits, features, seen = (part[..., rows, :] for part in (self.logits, self.features, self.summaries))
        return LabelledOutputs(logits, features, self.counts[rows], self.paired[rows], seen)


@dataclass(frozen=True)
class Variant:
    """Whether head and temperature read the summaries."""

    head: bool
    temperature: bool

    def __str__(self) -> str:
        readers = [name for name, reads in (("head", self.head), ("temperature", self.temperature)) if reads]
        return " and ".join(readers) if readers else "neither"


PLAIN = Variant(False, False)
VARIANTS = (PLAIN, Variant(True, False), Variant(False, True), Variant(True, True))


@dataclass(frozen=True)
class Fitted:
    """Temperature t, weights r (4,) and head (D + 4,)."""

    log_temperature: float
    temperature_weight: FloatArray
    head: ConcentrationHead

    def predicted(self, outputs: LabelledOutputs) -> tuple[FloatArray, FloatArray]:
        """Calibrated logits and log concentrations."""
        log_t = self.log_temperature + outputs.summaries @ self.temperature_weight
        inputs = np.concatenate([outputs.features, outputs.summaries], axis=-1)
        return outputs.logits * np.exp(-log_t)[..., None], self.head(inputs)


def start_without_summaries(log_temperature: float, head: ConcentrationHead) -> Fitted:
    """Extend a fit without summaries by zero weights for them."""
    none = np.zeros(N_SUMMARIES)
    return Fitted(log_temperature, none, ConcentrationHead(np.append(head.weight, none), head.bias))


def fit_variant(
    outputs: LabelledOutputs,
    start: Fitted,
    kind: HeadKind,
    variant: Variant,
    *,
    temperature_fixed: bool = False,
    rough: bool = False,
) -> Fitted:
    """Fit a variant by penalised likelihood, roughly or fully."""
    problem = _Problem(outputs, kind, variant, start, temperature_fixed)
    what = f"temperature and concentration ({variant} with summaries)"
    parameters, _ = minimise(problem, problem.start(start), what, tolerance=ROUGHLY if rough else None)
    return problem.fitted(parameters)


class _Problem:
    """Loss as a function of head weights, bias, t and r."""

    def __init__(
        self, outputs: LabelledOutputs, kind: HeadKind, variant: Variant, start: Fitted, temperature_fixed: bool
    ) -> None:
        self.outputs, self.penalty = outputs, kind.penalty
        self.seen = outputs.summaries.reshape(outputs.logits[..., 0].size, -1)
        features = HeadDesign.of(outputs.features, kind.ridge)
        self.design = features.with_standardised(self.seen, SUMMARY_RIDGE, read=variant.head)
        self.free_t = not temperature_fixed
        self.case_t = variant.temperature and not temperature_fixed

    def __call__(self, x: FloatArray) -> tuple[float, FloatArray]:
        n = self.design.columns.shape[1]
        of_head, log_t, by_case = x[: n + 1], x[n + 1], x[n + 2 :]
        outputs, members = self.outputs, self.outputs.logits.shape[:-1]
        a = self.design.log_concentration(of_head).reshape(members)
        log_ts = (log_t + self.seen @ by_case).reshape(members)
        loss, by_a, by_t = case_temperature_loss(outputs.logits, outputs.counts, log_ts, a, self.penalty)
        loss, by_head = self.design.penalised(of_head, loss, by_a)
        slope_t = by_t.ravel()
        by_summaries = (self.seen.T @ slope_t + SUMMARY_RIDGE * by_case) * self.case_t
        value = loss + 0.5 * SUMMARY_RIDGE * float(by_case @ by_case)
        return value, np.concatenate([by_head, [slope_t.sum() * self.free_t], by_summaries])

    def start(self, fitted: Fitted) -> FloatArray:
        by_case = fitted.temperature_weight if self.case_t else np.zeros(self.seen.shape[1])
        return np.concatenate([self.design.parameters(fitted.head), [fitted.log_temperature], by_case])

    def fitted(self, x: FloatArray) -> Fitted:
        n = self.design.columns.shape[1]
        return Fitted(float(x[n + 1]), x[n + 2 :].copy(), self.design.head(x[: n + 1]))
