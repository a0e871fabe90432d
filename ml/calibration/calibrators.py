"""Calibrators of cached outputs (paper §4.2).

A fit starts where it changes nothing and is kept only if it lowers the
loss on cases that it has not seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NotRequired, TypedDict, get_args

import numpy as np
import numpy.typing as npt
from scipy.special import expit, log_softmax

from ml.calibration.calibration import N_SUMMARIES, Calibration, Refinement, Summaries
from ml.calibration.concentration import ConcentrationHead, HeadKind, choose_head
from ml.calibration.disagreement_map import (
    IDENTITY,
    PAIR_RIDGES,
    PAIR_SHARES,
    AnyMap,
    MapKind,
    PairHead,
    cross_fit_map,
    fit_map,
    fit_pair_head,
    highest_disagreement,
    match_disagreement,
    pair_inputs,
    pair_loss,
    principal_components,
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
from ml.calibration.logistic_normal import MOST_CASES, N_NODES, POINT, fit_loadings, member_logits
from ml.calibration.optimise import FitError, minimise
from ml.calibration.scaling import METHODS, Choice, Method, Scaling, choose_scaling
from ml.dataframes import same_rows
from ml.distributions.families import DirichletCpe, DirichletMixtureCpe, softmax_probs
from ml.distributions.likelihood import multinomial_log_likelihood
from ml.metrics.cases import class_frequencies
from ml.util.arrays import FloatArray, as_class_probs, as_features, as_label_counts, as_logits, refuse_probabilities
from ml.util.splits import held_out_folds, split_folds, split_partitions

__all__ = ["Calibration", "FitDocument", "FitReport", "calibrate", "calibration_mix"]

#: Cases with two labels below which nothing is refined: five folds of them say nothing.
FEWEST_PAIRS = 50
#: Kinds of maps, and pairs that the penalty on their slopes is worth: few labels want a strong one.
MAPS: dict[str, tuple[MapKind, float]] = {
    "beta": ("beta", 1.0),
    "piecewise": ("piecewise", 1.0),
    "beta, drawn to a shift": ("beta", 10.0),
    "piecewise, drawn to a shift": ("piecewise", 10.0),
}
Level = Literal["nominal", "ordinal"]
_UNMAPPED = "none"
# prior variance of a class bias: odds seven times as high or as low are one standard deviation (decision 42)
_BIAS_VARIANCE, _LEAST_PROBABILITY = 4.0, 1e-12
# differences of likelihoods that are none
_ROUNDING = 1e-9


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
    neighbours: NotRequired[bool]  # whether a logistic normal replaces the Dirichlet
    dirichlet: NotRequired[float]  # loss by label after a case's first
    logistic_normal: NotRequired[float]
    map: NotRequired[str]  # of φ
    pairs: NotRequired[dict[str, float | None]]
    pair_share: NotRequired[float]  # λ of the pair head, 0 without
    failed: NotRequired[str]  # why nothing was refined


class FitDocument(TypedDict):
    """How each step of a calibration was chosen."""

    n_fit: int
    n_cv: int
    level: NotRequired[Level]
    temperature: NotRequired[Choice]
    vector: NotRequired[Choice]
    matrix: NotRequired[Choice]
    concentration: NotRequired[Choice]
    joint: NotRequired[JointFit]
    refinement: NotRequired[RefinementChoice]
    adaptation: NotRequired[AdaptationDocument]
    class_mix: NotRequired[list[float]]  # (K,) ``calibration_mix`` of the cells of the fit


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
    level: Level = "nominal",
) -> FitReport:
    """Fit scaling and concentration head, and keep what helps out of fold.

    Both are fitted on 80 % of the groups, chosen on the others and refitted
    on all. Then summaries, of ordinal classes a logistic normal in place
    of the Dirichlet, a map of φ and a pair head are tried.

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
        refined: whether to try summaries, a logistic normal, the map and
            a pair head.
        level: ordinal if classes are grades of one scale, so that a label
            may also raise its neighbours.

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
    _refuse_unknown("method", method, METHODS)
    _refuse_unknown("level", level, get_args(Level))
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
    report: FitDocument = {"n_fit": int(fit.sum()), "n_cv": int(cv.sum()), "level": level}
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
        calibration, report["refinement"] = _refine(calibration, head, kind, cases, groups, seed, level)
    report["class_mix"] = calibration_mix(calibration.apply(scores, hidden).class_probs, scaled_by).tolist()
    return FitReport(calibration, report)


def calibration_mix(class_probs: npt.ArrayLike, label_counts: npt.ArrayLike) -> FloatArray:
    """Mix m (K,) for which the probabilities f (N, K) of labelled cells are posteriors: f ∘ π / m fits a mix π.

    With a class bias b that fits the labels, m is e⁻ᵇ times the mean of softmax(log f + b): if the network was trained
    for another mix, b takes it off again. b has a normal prior, so few labels leave m near the mean of f, and half a
    cell in all is added.

    Raises:
        FitError: no label.
        ValueError: shapes that differ, or values out of range.
    """
    probs, counts = as_class_probs(class_probs), as_label_counts(label_counts)
    if probs.shape != counts.shape:
        raise ValueError(f"class_probs {probs.shape} and label_counts {counts.shape} must have one shape")
    labelled = counts.any(axis=1)
    if not labelled.any():
        raise FitError("the class mix cannot be fitted: no cell has a label")
    frequencies, logs = class_frequencies(counts[labelled]), np.log(np.maximum(probs[labelled], _LEAST_PROBABILITY))

    def objective(bias: FloatArray) -> tuple[float, FloatArray]:
        corrected = log_softmax(logs + bias, axis=1)
        loss = float(bias @ bias / (2 * _BIAS_VARIANCE) - (frequencies * corrected).sum())
        return loss, bias / _BIAS_VARIANCE + (np.exp(corrected) - frequencies).sum(axis=0)

    bias, _ = minimise(objective, np.zeros(probs.shape[1]), "class bias")
    mix = np.exp(-bias) * (softmax_probs(logs + bias).sum(axis=0) + 0.5 / len(bias))
    return np.asarray(mix / mix.sum())


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


def _refuse_unknown(name: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise ValueError(f"unknown {name} {given!r}; there are {', '.join(known)}")


def fitted_level(report: FitDocument) -> Level:
    """How classes were understood when a calibration was fitted."""
    return report.get("level", "ordinal" if "neighbours" in report.get("refinement", {}) else "nominal")


def _refine(
    calibration: Calibration,
    head: ConcentrationHead,
    kind: HeadKind,
    outputs: LabelledOutputs,
    groups: Sequence[str],
    seed: int,
    level: Level,
) -> tuple[Calibration, RefinementChoice]:
    """Add summaries, a logistic normal, a map of φ and a pair head, fitted out of fold, if they help."""
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
    if best.variant != PLAIN:
        if by_temperature:
            scaling = Scaling("temperature", best.whole.log_temperature)
        refinement = Refinement(summaries, best.whole.temperature_weight)
        calibration = Calibration(scaling, best.whole.head, refinement=refinement)
    paired = _Paired.of(best, inputs, fold, groups)
    whole = best.whole.predicted(inputs)[0][..., pairs, :]
    neighbours = _fit_neighbours(paired, whole) if level == "ordinal" else None
    extended, choice = _extend(calibration, paired, neighbours, summaries)
    return extended, RefinementChoice(variant=str(best.variant), likelihood=losses, **choice)


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


@dataclass(frozen=True)
class _Paired:
    """What is predicted out of fold of the cases with two labels."""

    outputs: LabelledOutputs
    logits: FloatArray  # (n, K), or (S, n, K) of members
    log_concentration: FloatArray
    fold: npt.NDArray[np.int64]
    group: npt.NDArray[np.int64]  # number of the patient

    @classmethod
    def of(
        cls, trial: _Trial, outputs: LabelledOutputs, fold: npt.NDArray[np.int64], groups: Sequence[str]
    ) -> "_Paired":
        """Of the cases that a trial predicts."""
        rows = outputs.pairs
        group = np.unique(np.array(groups)[rows], return_inverse=True)[1]
        parts = trial.logits[..., rows, :], trial.log_concentration[..., rows]
        return cls(outputs.rows(rows), *parts, fold[rows], np.asarray(group, dtype=np.int64))

    @property
    def n_later_labels(self) -> int:
        counts = self.outputs.counts[self._some]
        return int(counts.sum()) - len(counts)

    @property
    def distribution(self) -> DirichletCpe | DirichletMixtureCpe:
        return _distribution(self.logits, self.log_concentration)

    def loss(self, dpe: FloatArray) -> FloatArray:
        """Loss (n,) of pairs by DPEs that the distribution is moved to, as far as it can be."""
        reached = np.minimum(dpe, highest_disagreement(self.log_concentration, self.outputs.counts.shape[1]))
        return pair_loss(IDENTITY.logits(reached), self.outputs.differ)

    def likelihoods(self, dpe: FloatArray | None = None) -> tuple[FloatArray, FloatArray]:
        """Log-likelihoods of labels after the first and of a first label, moved to DPEs (n,), of enough cases."""
        some = self._some
        logits, a, counts = self.logits[..., some, :], self.log_concentration[..., some], self.outputs.counts[some]
        moved = _distribution(*((logits, a) if dpe is None else match_disagreement(logits, a, dpe[some])))
        first = multinomial_log_likelihood(counts, moved.class_probs) / counts.sum(axis=1)
        return moved.log_likelihood(counts) - first, first

    @property
    def _some(self) -> slice:
        return slice(None, None, -(-len(self.group) // MOST_CASES))

    def is_gain(self, gains: FloatArray) -> bool:
        """Whether gains, of all cases or of enough, are in sum more than their standard error by patient."""
        group = self.group if len(gains) == len(self.group) else self.group[self._some]
        by_group = np.bincount(group, gains - gains.mean())
        return bool(gains.sum() > np.sqrt(by_group @ by_group) + _ROUNDING * len(gains))


def _extend(
    calibration: Calibration, paired: _Paired, neighbours: tuple[_Paired, FloatArray] | None, summaries: Summaries
) -> tuple[Calibration, RefinementChoice]:
    """Add a logistic normal, a map of φ and a pair head, if each helps."""
    head, refinement, choice = calibration.concentration, calibration.refinement, RefinementChoice()
    chosen = _choose_map(paired)
    before = paired.likelihoods(chosen.dpe)
    if neighbours is not None and head is not None:
        other = _choose_map(neighbours[0])
        plain, after = other.paired.likelihoods(), other.paired.likelihoods(other.dpe)
        if any(paired.is_gain(one - moved) for one, moved in zip(plain, after, strict=True)):
            other, after = other.without_map(), plain
        # the next label is more likely after labels, and a first one no less likely
        kept = paired.is_gain(after[0] - before[0]) and not paired.is_gain(before[1] - after[1])
        losses = [float(-likelihood[0].sum() / paired.n_later_labels) for likelihood in (before, after)]
        choice = RefinementChoice(neighbours=kept, dirichlet=losses[0], logistic_normal=losses[1])
        if kept:
            chosen, before, refinement = other, after, replace(refinement, loadings=neighbours[1])
            head = ConcentrationHead(np.zeros(head.weight.shape), POINT)
    refinement = replace(refinement, disagreement_map=chosen.map)
    pair_head = _choose_pair_head(chosen, before)
    if pair_head is not None:
        refinement = replace(refinement, pair_head=pair_head, pair_summaries=summaries)
    share = 0.0 if pair_head is None else pair_head.share
    choice |= RefinementChoice(map=chosen.name, pairs=chosen.losses, pair_share=share)
    return replace(calibration, concentration=head, refinement=refinement), choice


def _fit_neighbours(paired: _Paired, whole: FloatArray) -> tuple[_Paired, FloatArray] | None:
    """Predictions of a logistic normal out of fold, and its loadings, by logits of the final fit; None without."""
    counts = paired.outputs.counts
    # members of an ensemble have their own spread, and of two classes none is nearer than another
    if paired.logits.ndim != 2 or counts.shape[1] < 3:
        return None
    logits = np.empty((N_NODES, *counts.shape))
    try:
        loadings = fit_loadings(softmax_probs(whole), counts)
        for others, unseen in held_out_folds(paired.fold):
            inside = softmax_probs(paired.logits[others]), counts[others]
            logits[:, unseen] = member_logits(paired.logits[unseen], fit_loadings(*inside, start=loadings))
    except FitError:
        return None
    return replace(paired, logits=logits, log_concentration=np.full(logits.shape[:-1], POINT)), loadings


@dataclass(frozen=True)
class _Mapped:
    """A map chosen by the loss of pairs, and DPEs (n,) mapped out of fold."""

    paired: _Paired
    name: str
    map: AnyMap | None
    losses: dict[str, float | None]
    dpe: FloatArray

    def without_map(self) -> "_Mapped":
        return replace(self, name=_UNMAPPED, map=None, dpe=self.paired.distribution.disagreement_probs)


def _choose_map(paired: _Paired) -> _Mapped:
    differ, dpe = paired.outputs.differ, paired.distribution.disagreement_probs
    losses: dict[str, float | None] = {_UNMAPPED: float(paired.loss(dpe).mean())}
    maps: dict[str, AnyMap] = {}
    best, served = _UNMAPPED, dpe
    for name, (kind, pull) in MAPS.items():
        try:
            mapped = expit(cross_fit_map(dpe, differ, paired.fold, kind, pull=pull))
            maps[name] = fit_map(dpe, differ, kind, pull=pull)
        except FitError:
            losses[name] = None
            continue
        loss = losses[name] = float(paired.loss(mapped).mean())
        if loss < (losses[best] or 0.0):
            best, served = name, mapped
    return _Mapped(paired, best, maps.get(best), losses, served)


_TriedShare = tuple[PairHead, FloatArray, FloatArray]  # with losses and DPEs of cases


def _choose_pair_head(mapped: _Mapped, likelihoods: tuple[FloatArray, FloatArray]) -> PairHead | None:
    """Pair head with the lowest loss of pairs, if that is a gain that costs no likelihood; adds losses by share."""
    paired, dpe, losses = mapped.paired, mapped.dpe, mapped.losses
    outputs, differ = paired.outputs, paired.outputs.differ
    if outputs.logits.ndim != 2:
        return None
    components = principal_components(outputs.features)
    centre = outputs.features.mean(axis=0)
    inputs = pair_inputs(dpe, outputs.summaries, (outputs.features - centre) @ components)
    before, tried = paired.loss(dpe), dict[float, _TriedShare]()
    for ridge in PAIR_RIDGES:
        predicted = np.empty(len(dpe))
        try:
            for others, unseen in held_out_folds(paired.fold):
                weight, bias = fit_pair_head(inputs[others], differ[others], ridge)
                predicted[unseen] = expit(inputs[unseen] @ weight + bias)
            weight, bias = fit_pair_head(inputs, differ, ridge)
        except FitError:
            continue
        weight = np.append(weight[: N_SUMMARIES + 1], components @ weight[N_SUMMARIES + 1 :])
        bias -= float(centre @ weight[N_SUMMARIES + 1 :])
        for share in PAIR_SHARES:
            mixed = (1 - share) * dpe + share * predicted
            loss = paired.loss(mixed)
            if share not in tried or loss.sum() < tried[share][1].sum():
                tried[share] = PairHead(share, weight, bias), loss, mixed
    losses |= {f"pair head, {share:g}": float(loss.mean()) for share, (_, loss, _) in tried.items()}
    for head, loss, mixed in sorted(tried.values(), key=lambda one: float(one[1].sum())):
        if not paired.is_gain(before - loss):
            return None
        pairs = zip(likelihoods, paired.likelihoods(mixed), strict=True)
        if not any(paired.is_gain(one - moved) for one, moved in pairs):
            return head
    return None
