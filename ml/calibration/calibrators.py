"""Calibrators fitted after training, on cached logits and features, in float64 with SciPy's L-BFGS.

Class probabilities are calibrated by a scaling of the logits (``ml.calibration.scaling``). The concentration head
(α-calibration, paper §4.2) reads the penultimate features: a = wᵀg + c is the log concentration of Dir(α0 f).
Both start where they change nothing (identity; a = 0, α0 = 1), and a fit is kept only where it lowers the loss
on cases that it has not seen.

Logits and features may have a leading axis of S ensemble members (Monte-Carlo dropout, test-time augmentation):
the losses are then those of the members' uniform mixture, and the result is an ensemble or a Dirichlet mixture.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ml.calibration.calibration import CALIBRATION_VERSION, Calibration, Refinement
from ml.calibration.concentration import ConcentrationHead, HeadKind, choose_head, fit_jointly, joint_loss
from ml.calibration.fit_report import FitDocument, FitReport, JointFit
from ml.calibration.optimise import FitError
from ml.calibration.refining import RefinementChoice, refine
from ml.calibration.scaling import METHODS, Method, Scaling, choose_scaling
from ml.calibration.summaries import Summaries
from ml.calibration.variants import PLAIN, Outputs, start_without_summaries
from ml.dataframes import same_rows
from ml.distributions.families import softmax_probs
from ml.util.arrays import FloatArray, IntArray, as_features, as_label_counts, as_logits, refuse_probabilities
from ml.util.splits import split_partitions

__all__ = ["CALIBRATION_VERSION", "Calibration", "FitDocument", "FitReport", "calibrate"]


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
    """Fit scaling and concentration head on 80 % of the groups, choose what helps on the other 20 %, refit on all.

    Then head and temperature may read summaries of the logits, and φ be mapped, where that helps out of fold.

    Args:
        logits: (N, K), or (S, N, K) of an ensemble.
        features: (N, D), or (S, N, D).
        label_counts: (N, K).
        groups: patient of each case, or the case itself.
        method: how class probabilities are calibrated.
        alpha: whether to fit the concentration head.
        seed: of the split.
        scaling_label_counts: (N, K) those of the labels that class probabilities alone are scaled by, and to whose
            pairs φ is mapped; all where left out. Leave out labels that were asked for because others differ: to the
            likelihood of a Dirichlet multinomial it does not matter why somebody was asked, to that of independent
            labels it does, and more labels of contested cases pass for overconfidence (T = 1.24 fitted where 1 is
            true); and with each further label the pairs of a case that differs differ less.
        refined: whether to try summaries and the map; without them it is the paper's method.

    Returns:
        The calibration and a report of its losses.

    Raises:
        FitError: a fit did not converge, or there is no label.
        ValueError: shapes or names that do not fit, values that are not finite, or probabilities in place of logits.

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
    parts = _Parts(scores, hidden, counts, scaled_by, fit, cv)
    chosen = scaling = Scaling()
    scaling_choice = head = kind = head_choice = joint = None
    if method != "none":
        chosen, scaling, scaling_choice = choose_scaling(scores, scaled_by, fit, cv, method)
    if alpha and (counts[fit].sum(axis=1) >= 2).any() and (counts[cv].sum(axis=1) >= 2).any():
        probs = softmax_probs(chosen(scores)), softmax_probs(scaling(scores))
        head, kind, head_choice = choose_head(hidden, probs, counts, fit, cv)
        if method == "temperature" and kind is not None:
            scaling, head, joint = _fit_jointly(parts, chosen.log_temperature, scaling, head, kind)
    calibration, refinement = Calibration(scaling, head), None
    if refined and head is not None and kind is not None:
        calibration, refinement = _refine_calibration(parts, calibration, head, kind, groups, seed)
    sizes = int(fit.sum()), int(cv.sum())
    return FitReport(calibration, *sizes, method, scaling_choice, head_choice, joint, refinement)


@dataclass(frozen=True)
class _Parts:
    """Outputs, labels, those whose number no label decided, and which cases are fitted on and chosen on."""

    logits: FloatArray
    features: FloatArray
    counts: IntArray
    planned: IntArray
    fit: npt.NDArray[np.bool_]
    cv: npt.NDArray[np.bool_]

    def take(self, rows: npt.NDArray[np.bool_]) -> tuple[FloatArray, FloatArray, IntArray]:
        return self.logits[..., rows, :], self.features[..., rows, :], self.counts[rows]


def _fit_jointly(
    parts: _Parts, log_temperature: float, scaling: Scaling, head: ConcentrationHead, kind: HeadKind
) -> tuple[Scaling, ConcentrationHead, JointFit]:
    """Temperature and head fitted together, where that lowers the loss on the cv part; else as they were."""
    # A temperature fitted alone takes the class probabilities for the truth, and explains the labels' extra spread,
    # which belongs to the concentration, by flatter probabilities (or in an ensemble by its members).
    logits, features, counts = parts.take(parts.cv)

    def cv_loss(log_t: float, fitted: ConcentrationHead) -> float:
        return joint_loss(logits, counts, log_t, fitted(features), 0.0)[0]

    try:
        # both are judged as fitted on the fit part alone
        before = fit_jointly(*parts.take(parts.fit), (log_temperature, head), kind, temperature_fixed=True)
        after = fit_jointly(*parts.take(parts.fit), (log_temperature, head), kind)
        loss_before, loss_after = cv_loss(*before), cv_loss(*after)
        if loss_after >= loss_before:
            return scaling, head, JointFit(False, loss_before, loss_after)
        start = (scaling.log_temperature, head)
        log_t, joint = fit_jointly(*parts.take(parts.fit | parts.cv), start, kind)
    except FitError as exc:  # what was fitted one after the other stands
        return scaling, head, JointFit(False, failed=str(exc))
    report = JointFit(True, loss_before, loss_after, temperature=float(np.exp(log_t)))
    return Scaling("temperature", log_t), joint, report


def _refine_calibration(
    parts: _Parts, calibration: Calibration, head: ConcentrationHead, kind: HeadKind, groups: list[str], seed: int
) -> tuple[Calibration, RefinementChoice]:
    """Summaries and a map of φ, where they help on folds that no fit has seen; else the calibration as it was."""
    scaling, summaries = calibration.scaling, Summaries.of(parts.logits)
    by_temperature = scaling.method == "temperature"
    # of another scaling only the result is read
    logits = parts.logits if by_temperature else scaling(parts.logits)
    outputs = Outputs(logits, parts.features, summaries(parts.logits), parts.counts)
    start = start_without_summaries(scaling.log_temperature, head)
    try:
        refined = refine(
            outputs,
            start,
            kind,
            groups,
            seed=seed,
            temperature_fixed=not by_temperature,
            pair_label_counts=parts.planned,
        )
    except FitError as exc:  # the fit on all cases alone did not converge
        return calibration, RefinementChoice(failed=str(exc))
    if refined.variant == PLAIN:
        refinement = Refinement(disagreement_map=refined.disagreement_map)
        return Calibration(scaling, head, refinement=refinement), refined.choice
    fitted = refined.fitted
    refinement = Refinement(summaries, fitted.temperature_weight, refined.disagreement_map)
    if by_temperature:
        scaling = Scaling("temperature", fitted.log_temperature)
    return Calibration(scaling, fitted.head, refinement=refinement), refined.choice
