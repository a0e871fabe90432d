"""Calibrators of cached outputs (paper §4.2).

A fit starts where it changes nothing and is kept only if it lowers the
loss on cases that it has not seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NotRequired, TypedDict

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from ml.calibration.calibration import Calibration, Refinement, Summaries
from ml.calibration.concentration import ConcentrationHead, HeadKind, choose_head
from ml.calibration.disagreement_map import (
    IDENTITY,
    AnyMap,
    MapKind,
    cross_fit_map,
    fit_map,
    match_disagreement,
    pair_loss,
)
from ml.calibration.domain_adaptation import AdaptationDocument
from ml.calibration.joint_fit import (
    PLAIN,
    VARIANTS,
    Fitted,
    LabelledOutputs,
    Variant,
    case_temperature_loss,
    fit_variant,
    start_without_summaries,
)
from ml.calibration.optimise import FitError
from ml.calibration.scaling import METHODS, Choice, Method, Scaling, choose_scaling
from ml.dataframes import same_rows
from ml.distributions.families import DirichletCpe, DirichletMixtureCpe, softmax_probs
from ml.util.arrays import FloatArray, as_features, as_label_counts, as_logits, refuse_probabilities
from ml.util.splits import held_out_folds, split_folds, split_partitions

__all__ = ["Calibration", "FitDocument", "FitReport", "calibrate"]

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


class JointFit(TypedDict):
    """Temperature and head fitted together, if that helped."""

    kept: bool
    cv_before: NotRequired[float]
    cv_after: NotRequired[float]
    temperature: NotRequired[float]  # T, if kept
    failed: NotRequired[str]  # why a fit failed


class RefinementChoice(TypedDict):
    """Losses by refinement, in nats; None: no convergence."""

    variant: NotRequired[str]  # what reads the summaries
    likelihood: NotRequired[dict[str, float | None]]
    map: NotRequired[str]  # of φ
    pairs: NotRequired[dict[str, float | None]]
    failed: NotRequired[str]  # why nothing was refined


class FitDocument(TypedDict):
    """How each step of a calibration was chosen."""

    n_fit: int
    n_cv: int
    temperature: NotRequired[Choice]
    vector: NotRequired[Choice]
    matrix: NotRequired[Choice]
    concentration: NotRequired[Choice]
    joint: NotRequired[JointFit]
    refinement: NotRequired[RefinementChoice]
    adaptation: NotRequired[AdaptationDocument]


@dataclass(frozen=True)
class FitReport:
    """A calibration, refitted on all cases, and how it was chosen."""

    calibration: Calibration
    report: FitDocument


def calibrate(
    logits: npt.ArrayLike,
    features: npt.ArrayLike,
    label_counts: npt.ArrayLike,
    groups: list[str],
    *,
    method: Method = "temperature",
    alpha: bool = True,
    seed: int = 0,
    scaling_label_counts: npt.ArrayLike | None = None,
    refined: bool = True,
) -> FitReport:
    """Fit scaling and concentration head, and keep what helps out of fold.

    Both are fitted on 80 % of the groups, chosen on the others and refitted
    on all. Then summaries and a map of φ are tried.

    Args:
        logits: (N, K), or (S, N, K) of an ensemble.
        features: (N, D), or (S, N, D).
        label_counts: (N, K).
        groups: patient of each case, or the case itself.
        method: how class probabilities are calibrated.
        alpha: whether to fit the concentration head.
        seed: of the split.
        scaling_label_counts: (N, K) labels by which class probabilities
            are scaled and φ is mapped; all if left out. Leave out labels
            that were asked for because others differ: they would pass
            for overconfidence.
        refined: whether to try summaries and the map.

    Returns:
        The calibration and a report of its losses.

    Raises:
        FitError: a fit did not converge, or there is no label.
        ValueError: inputs that do not fit, or probabilities as logits.

    Examples:
        >>> import numpy as np
        >>> from secondread import calibrate
        >>> from secondread.distributions import softmax_probs
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.normal(size=(200, 3))
        >>> label_counts = np.stack([rng.multinomial(2, probs) for probs in softmax_probs(logits)])
        >>> overconfident = calibrate(3 * logits, np.ones((200, 1)), label_counts, [f"patient {i}" for i in range(200)])
        >>> round(float(np.exp(overconfident.calibration.scaling.log_temperature)), 1)
        3.0
    """
    same_rows(
        **{"logits": logits, "features": features, "label_counts": label_counts, "groups": groups},
        **{"scaling_label_counts": scaling_label_counts},
    )
    scores, counts = as_logits(logits), as_label_counts(label_counts)
    hidden = as_features(features, scores)
    refuse_probabilities(scores)
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; there are {', '.join(METHODS)}")
    if scores.shape[-2:] != counts.shape or np.shape(groups) != counts.shape[:1]:
        raise ValueError(
            f"logits {scores.shape}, label_counts {counts.shape} and groups {np.shape(groups)} must be of the same "
            "cases and classes"
        )
    if len(counts) < 10 or counts.sum() == 0:
        raise FitError(f"calibration needs at least ten labelled cells, got {len(counts)} with {counts.sum()} labels")
    part = split_partitions(groups, {"fit": 0.8, "cv": 0.2}, seed)
    fit, cv = part == "fit", part == "cv"
    if counts[fit].sum() == 0 or counts[cv].sum() == 0:
        raise FitError(f"calibration needs labelled cells of at least three patients, got {len(set(groups))} patients")
    scaled_by = counts if scaling_label_counts is None else as_label_counts(scaling_label_counts)
    if (scaled_by > counts).any() or scaled_by[fit].sum() == 0 or scaled_by[cv].sum() == 0:
        raise FitError("scaling_label_counts must be some of label_counts, of at least three patients")
    cases = LabelledOutputs.of(scores, hidden, counts, scaled_by)
    report: FitDocument = {"n_fit": int(fit.sum()), "n_cv": int(cv.sum())}
    chosen = scaling = Scaling()
    head = kind = None
    if method != "none":
        chosen, scaling, report[method] = choose_scaling(scores, scaled_by, fit, cv, method)
    if alpha and (counts[fit].sum(axis=1) >= 2).any() and (counts[cv].sum(axis=1) >= 2).any():
        probs = softmax_probs(chosen(scores)), softmax_probs(scaling(scores))
        head, kind, report["concentration"] = choose_head(hidden, probs, counts, fit, cv)
        if method == "temperature" and kind is not None:
            scaling, head, report["joint"] = _fit_jointly(cases, fit, chosen.log_temperature, scaling, head, kind)
    calibration = Calibration(scaling, head)
    if refined and head is not None and kind is not None:
        calibration, report["refinement"] = _refine(calibration, head, kind, cases, groups, seed)
    return FitReport(calibration, report)


def _fit_jointly(
    cases: LabelledOutputs,
    fit: npt.NDArray[np.bool_],
    log_temperature: float,
    scaling: Scaling,
    head: ConcentrationHead,
    kind: HeadKind,
) -> tuple[Scaling, ConcentrationHead, JointFit]:
    # a temperature fitted alone explains the labels' extra spread, which belongs
    # to the concentration, by flatter probabilities
    inside, unseen = cases.rows(fit), cases.rows(~fit)

    def cv_loss(fitted: Fitted) -> float:
        a = fitted.head(unseen.features)
        log_ts = np.full(a.shape, fitted.log_temperature)
        return case_temperature_loss(unseen.logits, unseen.counts, log_ts, a, 0.0)[0]

    try:
        # both are judged as fitted on the fit part alone
        start = Fitted(log_temperature, np.empty(0), head)
        loss_before = cv_loss(fit_variant(inside, start, kind, PLAIN, temperature_fixed=True))
        loss_after = cv_loss(fit_variant(inside, start, kind, PLAIN))
        if loss_after >= loss_before:
            return scaling, head, {"kept": False, "cv_before": loss_before, "cv_after": loss_after}
        joint = fit_variant(cases, replace(start, log_temperature=scaling.log_temperature), kind, PLAIN)
    except FitError as exc:  # what was fitted one after the other stands
        return scaling, head, {"kept": False, "failed": str(exc)}
    temperature = float(np.exp(joint.log_temperature))
    choice = JointFit(kept=True, cv_before=loss_before, cv_after=loss_after, temperature=temperature)
    return Scaling("temperature", joint.log_temperature), joint.head, choice


def _refine(
    calibration: Calibration,
    head: ConcentrationHead,
    kind: HeadKind,
    outputs: LabelledOutputs,
    groups: Sequence[str],
    seed: int,
) -> tuple[Calibration, RefinementChoice]:
    """Add summaries and a map of φ, fitted out of fold, if they help."""
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
    # infinite if a cell has a label that the others' fit rules out
    return _Trial(variant, whole, logits, a, loss) if np.isfinite(loss) else None


def _distribution(logits: FloatArray, log_concentration: FloatArray) -> DirichletCpe | DirichletMixtureCpe:
    family = DirichletCpe if logits.ndim == 2 else DirichletMixtureCpe
    return family(softmax_probs(logits), log_concentration)


def _choose_map(
    trial: _Trial, outputs: LabelledOutputs, fold: npt.NDArray[np.int64]
) -> tuple[AnyMap | None, str, dict[str, float | None]]:
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
