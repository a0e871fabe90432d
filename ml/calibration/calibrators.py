"""Calibrators of cached outputs (paper §4.2).

A fit starts where it changes nothing and is kept only if it lowers the
loss on cases that it has not seen.
"""

from dataclasses import dataclass
from typing import NotRequired, TypedDict

import numpy as np
import numpy.typing as npt

from ml.calibration.calibration import Calibration
from ml.calibration.concentration import ConcentrationHead, HeadKind, choose_head
from ml.calibration.domain_adaptation import AdaptationDocument
from ml.calibration.joint_fit import LabelledOutputs, case_temperature_loss, fit_jointly
from ml.calibration.optimise import FitError
from ml.calibration.refining import RefinementChoice, refine_calibration
from ml.calibration.scaling import METHODS, Choice, Method, Scaling, choose_scaling
from ml.dataframes import same_rows
from ml.distributions.families import softmax_probs
from ml.util.arrays import as_features, as_label_counts, as_logits, refuse_probabilities
from ml.util.splits import split_partitions

__all__ = ["Calibration", "FitDocument", "FitReport", "calibrate"]


class JointFit(TypedDict):
    """Temperature and head fitted together, if that helped."""

    kept: bool
    cv_before: NotRequired[float]
    cv_after: NotRequired[float]
    temperature: NotRequired[float]  # T, if kept
    failed: NotRequired[str]  # why a fit failed


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
        raise FitError(f"calibration needs at least ten labelled cases, got {len(counts)} with {counts.sum()} labels")
    part = split_partitions(groups, {"fit": 0.8, "cv": 0.2}, seed)
    fit, cv = part == "fit", part == "cv"
    if counts[fit].sum() == 0 or counts[cv].sum() == 0:
        raise FitError(f"calibration needs labelled cases of at least three patients, got {len(set(groups))} patients")
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
        calibration, report["refinement"] = refine_calibration(calibration, head, kind, cases, groups, seed)
    return FitReport(calibration, report)


def _fit_jointly(
    cases: LabelledOutputs,
    fit: npt.NDArray[np.bool_],
    log_temperature: float,
    scaling: Scaling,
    head: ConcentrationHead,
    kind: HeadKind,
) -> tuple[Scaling, ConcentrationHead, JointFit]:
    # A temperature fitted alone takes the class probabilities for the truth, and explains the labels' extra spread,
    # which belongs to the concentration, by flatter probabilities (or in an ensemble by its members).
    inside, unseen = cases.rows(fit), cases.rows(~fit)

    def cv_loss(log_t: float, fitted: ConcentrationHead) -> float:
        a = fitted(unseen.features)
        return case_temperature_loss(unseen.logits, unseen.counts, np.full(a.shape, log_t), a, 0.0)[0]

    try:
        # both are judged as fitted on the fit part alone
        start = (log_temperature, head)
        before = fit_jointly(inside, start, kind, temperature_fixed=True)
        after = fit_jointly(inside, start, kind)
        loss_before, loss_after = cv_loss(*before), cv_loss(*after)
        if loss_after >= loss_before:
            return scaling, head, {"kept": False, "cv_before": loss_before, "cv_after": loss_after}
        log_t, joint = fit_jointly(cases, (scaling.log_temperature, head), kind)
    except FitError as exc:  # what was fitted one after the other stands
        return scaling, head, {"kept": False, "failed": str(exc)}
    choice = JointFit(kept=True, cv_before=loss_before, cv_after=loss_after, temperature=float(np.exp(log_t)))
    return Scaling("temperature", log_t), joint, choice
