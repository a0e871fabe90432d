"""Adaptation of a calibration to new annotators.

A few double reads teach three numbers: a change of the temperature,
and level and slope of logit φ, each drawn to what was shipped.
"""

from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from ml.calibration.calibration import Calibration
from ml.calibration.concentration import ConcentrationHead
from ml.calibration.disagreement_map import IDENTITY, AnyMap, DisagreementMap, PiecewiseMap, pair_loss
from ml.calibration.joint_fit import LabelledOutputs
from ml.calibration.optimise import FitError, minimise
from ml.calibration.scaling import Scaling
from ml.metrics.losses import Verdict, judge_disagreement
from ml.util.arrays import FloatArray
from ml.util.splits import held_out_folds, split_folds

#: Pairs below which nothing is learned.
FEWEST_PAIRS = 20
#: Strength of the penalties on the change of log T, and on slope and level of logit φ, in labels and in pairs.
PULL_TEMPERATURE, PULL_SLOPE, PULL_LEVEL = 40.0, 15.0, 0.1


class AdaptationDocument(TypedDict):
    """Figures of an adaptation to other annotators, before and after."""

    n_cases: int
    n_double_reads: int  # with two labels or more
    temperature_before: float  # T at the mean case
    temperature_after: float
    rise: float  # of log concentrations
    slope: float  # of logit φ
    level: float
    seen: float  # share of pairs that differ
    mean_before: float  # mean stated DPE
    mean_after: float
    verdict: Verdict  # of own DPEs, out of fold
    constant: float | None  # None: own DPEs are stated


@dataclass(frozen=True)
class HeldOutPredictions:
    """Cross-fitted class probabilities and DPEs."""

    class_probs: FloatArray
    disagreement_probs: FloatArray
    own_disagreement_probs: FloatArray


@dataclass(frozen=True)
class Adaptation:
    """An adapted calibration, its figures and predictions."""

    calibration: Calibration
    figures: AdaptationDocument
    unseen: HeldOutPredictions


def recalibrate_for_annotators(
    calibration: Calibration,
    logits: npt.ArrayLike,
    features: npt.ArrayLike,
    label_counts: npt.ArrayLike,
    groups: list[str],
    *,
    pair_label_counts: npt.ArrayLike | None = None,
    seed: int = 0,
) -> Adaptation:
    """Adapt a calibration to new annotators, judged out of fold."""
    # a constant replaces stated disagreement only if that is surely worse, and is
    # replaced only by one surely better; an ensemble always states its own
    reads = LabelledOutputs.of(logits, features, label_counts, pair_label_counts)
    require_head(calibration)
    if reads.pairs.sum() < FEWEST_PAIRS:
        raise FitError(
            f"adapting needs {FEWEST_PAIRS} cases with two labels or more, there are {int(reads.pairs.sum())}: have "
            "more cases read twice"
        )
    fitted = fit_adaptation(calibration, reads)
    probs, own, rate = _out_of_fold(calibration, reads, split_folds(groups, seed))
    cluster = np.array(groups) if len(set(groups)) < len(groups) else None
    verdict = judge_disagreement(reads.paired, own, cluster=cluster)
    stating = verdict != "better" if calibration.constant_disagreement is not None else verdict == "worse"
    stating = stating and reads.logits.ndim == 2
    adapted, seen = fitted.calibration, float(reads.differ.mean())
    if stating:
        adapted = replace(adapted, constant_disagreement=seen)
    before, after = (_mean_disagreement(candidate, reads.rows(reads.pairs)) for candidate in (calibration, adapted))
    t = np.exp([calibration.scaling.log_temperature, calibration.scaling.log_temperature + fitted.log_t_change])
    figures: AdaptationDocument = {
        "n_cases": int((reads.counts.sum(axis=1) > 0).sum()),
        "n_double_reads": int(reads.pairs.sum()),
        "temperature_before": float(t[0]),
        "temperature_after": float(t[1]),
        "rise": fitted.rise,
        "slope": fitted.slope,
        "level": fitted.level,
        "seen": seen,
        "mean_before": before,
        "mean_after": after,
        "verdict": verdict,
        "constant": seen if stating else None,
    }
    return Adaptation(adapted, figures, HeldOutPredictions(probs, rate if stating else own, own))


def require_head(calibration: Calibration) -> None:
    """Refuse a calibration without a concentration head."""
    if calibration.concentration is None:
        raise FitError(
            "a calibration without a concentration head has no disagreement that could be adapted: fit one first, to "
            "cases with two labels"
        )


@dataclass(frozen=True)
class FittedAdaptation:
    """An adapted calibration and its four numbers."""

    calibration: Calibration
    log_t_change: float
    rise: float
    slope: float
    level: float


def fit_adaptation(calibration: Calibration, reads: LabelledOutputs) -> FittedAdaptation:
    """Fit temperature, rise, slope and level."""
    # a pair head is of the annotators whose pairs taught it
    refinement = replace(calibration.refinement, pair_head=None, pair_summaries=None)
    own = replace(calibration, constant_disagreement=None, refinement=refinement)
    change = _fit_scale_changes(own, reads, rises=False)
    paired, differ = reads.rows(reads.pairs), reads.differ
    # a map may lower a concentration, but hardly raise it
    if _mean_disagreement(_change_temperature(own, float(change[0])), paired) < differ.mean():
        change = _fit_scale_changes(own, reads, rises=True)
    tempered = _apply_scale_changes(own, change)
    slope, level = _fit_affine_map(tempered.apply(paired.logits, paired.features).own_disagreement_probs, differ)
    mapped = _compose_affine_map(tempered.refinement.disagreement_map or IDENTITY, slope, level)
    adapted = replace(tempered, refinement=replace(tempered.refinement, disagreement_map=mapped))
    return FittedAdaptation(adapted, float(change[0]), float(change[1]), slope, level)


def _fit_scale_changes(own: Calibration, reads: LabelledOutputs, *, rises: bool) -> FloatArray:
    n_labels = reads.counts.sum()
    pull = np.array([PULL_TEMPERATURE, PULL_LEVEL])[: 1 + rises]

    def likelihood(x: FloatArray) -> float:
        return _nll(_apply_scale_changes(own, x), reads)

    def loss(x: FloatArray) -> tuple[float, FloatArray]:
        # two numbers: a difference is as good as a derivative
        steps = 1e-4 * np.eye(len(x))
        slope = np.array([(likelihood(x + step) - likelihood(x - step)) / 2e-4 for step in steps])
        return likelihood(x) + 0.5 * float(pull @ x**2) / n_labels, slope + pull * x / n_labels

    bounds = [(-2.0, 2.0), (0.0, 8.0)][: 1 + rises]
    change, _ = minimise(loss, np.zeros(1 + rises), "temperature of the new annotators", bounds, tolerance=1e-6)
    return np.append(change, np.zeros(2 - len(change)))


def _apply_scale_changes(calibration: Calibration, change: FloatArray) -> Calibration:
    tempered, head = _change_temperature(calibration, float(change[0])), calibration.concentration
    if head is None or len(change) == 1:
        return tempered
    return replace(tempered, concentration=ConcentrationHead(head.weight, head.bias + float(change[1])))


def _out_of_fold(
    calibration: Calibration, reads: LabelledOutputs, fold: npt.NDArray[np.int64]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    probs = np.empty(reads.counts.shape)
    own, rate = np.empty(len(fold)), np.empty(len(fold))
    for fitted, unseen in held_out_folds(fold):
        others = reads.rows(fitted)
        if not others.pairs.any():
            raise FitError("the cases with two labels must be of at least two patients")
        inside, adapted = reads.rows(unseen), fit_adaptation(calibration, others).calibration
        predicted = adapted.apply(inside.logits, inside.features)
        probs[unseen], own[unseen] = predicted.class_probs, predicted.disagreement_probs
        rate[unseen] = others.differ.mean()
    return probs, own, rate


def _nll(calibration: Calibration, reads: LabelledOutputs) -> float:
    predicted = calibration.apply(reads.logits, reads.features)
    return float(-predicted.log_likelihood(reads.counts).sum() / reads.counts.sum())


def _mean_disagreement(calibration: Calibration, reads: LabelledOutputs) -> float:
    return float(calibration.apply(reads.logits, reads.features).disagreement_probs.mean())


def _change_temperature(calibration: Calibration, change: float) -> Calibration:
    scaling = calibration.scaling
    if scaling.weight is None or scaling.bias is None:
        return replace(calibration, scaling=Scaling("temperature", scaling.log_temperature + change))
    cooler = float(np.exp(-change))
    return replace(calibration, scaling=replace(scaling, weight=scaling.weight * cooler, bias=scaling.bias * cooler))


def _fit_affine_map(dpe: FloatArray, differ: FloatArray) -> tuple[float, float]:
    """Slope s ≥ 0 and level c of logit φ′ = s logit φ + c."""
    z = IDENTITY.logits(dpe)
    # level and slope hardly depend on each other around the mean
    centre = float(z.mean())
    design = np.column_stack([z - centre, np.ones_like(z)])
    pull = np.array([PULL_SLOPE, PULL_LEVEL])
    shipped = np.array([1.0, centre])

    def objective(x: FloatArray) -> tuple[float, FloatArray]:
        value, off = design @ x, x - shipped
        gradient = (design.T @ (expit(value) - differ) + pull * off) / len(z)
        return float(pair_loss(value, differ).mean() + 0.5 * pull @ off**2 / len(z)), gradient

    (slope, at_centre), _ = minimise(
        objective, shipped, "disagreement of the new annotators", [(0.0, None), (None, None)]
    )
    return float(slope), float(at_centre - slope * centre)


def _compose_affine_map(mapped: AnyMap, slope: float, level: float) -> AnyMap:
    offset = slope * mapped.offset + level
    if isinstance(mapped, PiecewiseMap):
        return PiecewiseMap(mapped.knots, slope * mapped.slopes, offset)
    return DisagreementMap(slope * mapped.low, slope * mapped.high, offset)
