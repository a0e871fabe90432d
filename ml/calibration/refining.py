"""Cross-validated choice of summaries and of the disagreement map.

The map is fitted on out-of-fold predictions too: a head states less disagreement for cases that it was fitted on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NotRequired, TypedDict

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from ml.calibration.calibration import Calibration, Refinement, Summaries
from ml.calibration.concentration import ConcentrationHead, HeadKind
from ml.calibration.disagreement_map import (
    IDENTITY,
    AnyMap,
    MapKind,
    cross_fit_map,
    fit_map,
    match_disagreement,
    pair_loss,
)
from ml.calibration.joint_fit import (
    PLAIN,
    VARIANTS,
    Fitted,
    LabelledOutputs,
    Variant,
    fit_variant,
    start_without_summaries,
)
from ml.calibration.optimise import FitError
from ml.calibration.scaling import Scaling
from ml.distributions.families import DirichletCpe, DirichletMixtureCpe, softmax_probs
from ml.util.arrays import FloatArray
from ml.util.splits import held_out_folds, split_folds

#: Cases with two labels below which nothing is refined: five folds of them say nothing.
FEWEST_PAIRS = 50
#: Kinds of maps, and pairs that the penalty on their slopes is worth: few labels want a strong one.
MAPS: dict[str, tuple[MapKind, float]] = {
    "beta": ("beta", 1.0),
    "piecewise": ("piecewise", 1.0),
    "beta, drawn to a shift": ("beta", 10.0),
    "piecewise, drawn to a shift": ("piecewise", 10.0),
}
_UNMAPPED = "none"


class RefinementChoice(TypedDict):
    """Losses by refinement, in nats; None: no convergence."""

    variant: NotRequired[str]  # what reads the summaries
    likelihood: NotRequired[dict[str, float | None]]
    map: NotRequired[str]  # of φ
    pairs: NotRequired[dict[str, float | None]]
    failed: NotRequired[str]  # why nothing was refined


def refine_calibration(
    calibration: Calibration,
    head: ConcentrationHead,
    kind: HeadKind,
    outputs: LabelledOutputs,
    groups: Sequence[str],
    seed: int,
) -> tuple[Calibration, RefinementChoice]:
    """Add summaries and a map of φ if they help out of fold."""
    pairs, scaling = outputs.pairs, calibration.scaling
    if pairs.sum() < FEWEST_PAIRS:
        failed = f"{int(pairs.sum())} cases with two labels, fewer than {FEWEST_PAIRS}"
        return calibration, {"failed": failed}
    fold = split_folds(groups, seed)
    if any(not pairs[others].any() or not pairs[unseen].any() for others, unseen in held_out_folds(fold)):
        return calibration, {"failed": "too few patients with cases that have two labels"}
    summaries, by_temperature = Summaries.of(outputs.logits), scaling.method == "temperature"
    # of another scaling only the result is read
    logits = outputs.logits if by_temperature else scaling(outputs.logits)
    inputs = replace(outputs, logits=logits, summaries=summaries(outputs.logits))
    start, losses = start_without_summaries(scaling.log_temperature, head), dict[str, float | None]()
    best: _Trial | None = None
    for variant in VARIANTS:
        if variant.temperature and not by_temperature:
            continue
        trial = _cross_fit(inputs, start, kind, variant, fold, temperature_fixed=not by_temperature)
        losses[str(variant)] = None if trial is None else trial.loss
        if trial is not None and (best is None or trial.loss < best.loss):
            best = trial
    if best is None:
        return calibration, {"failed": "no fit converged"}
    mapped, name, pair_losses = _choose_map(best, outputs, fold)
    choice = RefinementChoice(variant=str(best.variant), likelihood=losses, map=name, pairs=pair_losses)
    if best.variant == PLAIN:
        return replace(calibration, refinement=Refinement(disagreement_map=mapped)), choice
    if by_temperature:
        scaling = Scaling("temperature", best.whole.log_temperature)
    refinement = Refinement(summaries, best.whole.temperature_weight, mapped)
    return Calibration(scaling, best.whole.head, refinement=refinement), choice


@dataclass(frozen=True)
class _Trial:
    """A variant fitted on all cases, and its cross-fitted loss."""

    variant: Variant
    whole: Fitted
    logits: FloatArray
    log_concentration: FloatArray
    loss: float


def _cross_fit(
    outputs: LabelledOutputs,
    start: Fitted,
    kind: HeadKind,
    variant: Variant,
    fold: npt.NDArray[np.int64],
    *,
    temperature_fixed: bool,
) -> _Trial | None:
    """Fit a variant on all cases and all folds but one."""
    logits, a = np.empty(outputs.logits.shape), np.empty(outputs.logits.shape[:-1])
    try:
        whole = fit_variant(outputs, start, kind, variant, temperature_fixed=temperature_fixed)
        for others, unseen in held_out_folds(fold):
            inside = outputs.rows(others)
            fitted = fit_variant(inside, whole, kind, variant, temperature_fixed=temperature_fixed, rough=True)
            logits[..., unseen, :], a[..., unseen] = fitted.predicted(outputs.rows(unseen))
    except FitError:
        return None
    loss = float(-_distribution(logits, a).log_likelihood(outputs.counts).sum() / outputs.counts.sum())
    return _Trial(variant, whole, logits, a, loss)


def _distribution(logits: FloatArray, log_concentration: FloatArray) -> DirichletCpe | DirichletMixtureCpe:
    family = DirichletCpe if logits.ndim == 2 else DirichletMixtureCpe
    return family(softmax_probs(logits), log_concentration)


def _choose_map(
    trial: _Trial, outputs: LabelledOutputs, fold: npt.NDArray[np.int64]
) -> tuple[AnyMap | None, str, dict[str, float | None]]:
    """Choose the map with the lowest loss of pairs out of fold."""
    usable = outputs.pairs
    differ, dpe = np.full(len(usable), np.nan), _distribution(trial.logits, trial.log_concentration).disagreement_probs
    differ[usable] = outputs.differ

    def loss(mapped: FloatArray) -> float:
        return float(pair_loss(IDENTITY.logits(mapped[usable]), differ[usable]).mean())

    losses: dict[str, float | None] = {_UNMAPPED: loss(dpe)}
    maps: dict[str, AnyMap] = {}
    for name, (kind, pull) in MAPS.items():
        try:
            mapped = expit(cross_fit_map(dpe, differ, fold, kind, pull=pull))
            served = _distribution(*match_disagreement(trial.logits, trial.log_concentration, mapped))
            maps[name] = fit_map(dpe[usable], differ[usable], kind, pull=pull)
            losses[name] = loss(served.disagreement_probs)
        except FitError:
            losses[name] = None
    best = min(losses, key=lambda name: np.inf if losses[name] is None else losses[name] or 0.0)
    return maps.get(best), best, losses
