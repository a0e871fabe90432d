"""Cross-validated choice of the summaries' use and of the disagreement map.

What reads the summaries is chosen by the likelihood of the labels, the map by the pairs among them, both predicted
out of fold; the map is fitted on out-of-fold predictions too, since a head says less disagreement of cases that it was
fitted on than it will of others.
"""

from dataclasses import dataclass
from typing import NotRequired, TypedDict

import numpy as np
import numpy.typing as npt

from ml.calibration.concentration import HeadKind
from ml.calibration.disagreement_map import AnyMap, MapKind, fit_map, pair_loss
from ml.calibration.disagreement_matching import match_disagreement
from ml.calibration.joint_fit import PLAIN, VARIANTS, Fitted, Outputs, Variant, fit_variant
from ml.calibration.optimise import FitError
from ml.distributions.families import DirichletCpe, DirichletMixtureCpe, softmax_probs
from ml.metrics.histograms import observed_disagreement
from ml.util.arrays import FloatArray, IntArray
from ml.util.splits import split_partitions

FOLDS = 5
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


class RefinementDocument(TypedDict):
    """A ``RefinementChoice`` as JSON values."""

    variant: NotRequired[str]
    likelihood: NotRequired[dict[str, float | None]]
    map: NotRequired[str]
    pairs: NotRequired[dict[str, float | None]]
    failed: NotRequired[str]


@dataclass(frozen=True)
class RefinementChoice:
    """Cross-validated choice among refinements, with its losses.

    Attributes:
        variant: what reads the summaries.
        likelihood: loss of each variant in nats per label, None where its fit did not converge.
        map: kind of the map of φ.
        pairs: loss of each map in nats per pair of labels.
        failed: why nothing was refined.
    """

    variant: str = str(PLAIN)
    likelihood: dict[str, float | None] | None = None
    map: str = _UNMAPPED
    pairs: dict[str, float | None] | None = None
    failed: str | None = None

    def to_dict(self) -> RefinementDocument:
        """Return it as JSON values."""
        if self.failed is not None or self.likelihood is None or self.pairs is None:
            return {"failed": self.failed or "nothing was tried"}
        return {"variant": self.variant, "likelihood": self.likelihood, "map": self.map, "pairs": self.pairs}


@dataclass(frozen=True)
class RefinedFit:
    """A fit that reads summaries or not, its map, and how both were chosen."""

    fitted: Fitted
    variant: Variant
    disagreement_map: AnyMap | None
    choice: RefinementChoice


def refine(
    outputs: Outputs,
    start: Fitted,
    kind: HeadKind,
    groups: list[str],
    *,
    seed: int,
    temperature_fixed: bool,
    pair_label_counts: IntArray | None = None,
) -> RefinedFit:
    """Choose what reads the summaries and how φ is mapped, and fit both.

    Args:
        outputs: of the calibration cases.
        start: temperature and head that were fitted without summaries, which stand where nothing helps.
        kind: ridge and penalty of the head.
        groups: patient of each case, or the case itself; no group falls into two folds.
        seed: of the folds.
        temperature_fixed: the temperature is not fitted, and reads no summaries.
        pair_label_counts: (N, K) those of the labels whose pairs the map is fitted to; all where left out. A label
            that was asked for because others differ makes the pairs of its case differ less.
    """
    paired = outputs.label_counts if pair_label_counts is None else pair_label_counts
    pairs = paired.sum(axis=1) >= 2
    if pairs.sum() < FEWEST_PAIRS:
        failed = f"{int(pairs.sum())} cases with two labels, fewer than {FEWEST_PAIRS}"
        return RefinedFit(start, PLAIN, None, RefinementChoice(failed=failed))
    fold = split_partitions(groups, {str(k): 1 / FOLDS for k in range(FOLDS)}, seed)
    if any(not pairs[fold != k].any() or not pairs[fold == k].any() for k in np.unique(fold)):
        return RefinedFit(
            start, PLAIN, None, RefinementChoice(failed="too few patients with cases that have two labels")
        )
    problem = _Folds(outputs, paired, fold, kind, temperature_fixed)
    variants = [variant for variant in VARIANTS if not (variant.temperature and temperature_fixed)]
    tried = {variant: problem.tried(start, variant) for variant in variants}
    losses = {str(variant): None if trial is None else trial.said.loss(outputs) for variant, trial in tried.items()}
    converged = {variant: trial for variant, trial in tried.items() if trial is not None}
    if not converged:
        return RefinedFit(start, PLAIN, None, RefinementChoice(failed="no fit converged"))
    best = min(converged, key=lambda variant: converged[variant].said.loss(outputs))
    mapped, name, pair_losses = problem.choose_map(converged[best].said)
    fitted = start if best == PLAIN else converged[best].whole
    return RefinedFit(fitted, best, mapped, RefinementChoice(str(best), losses, name, pair_losses))


@dataclass(frozen=True)
class _FoldPredictions:
    """Cross-fitted calibrated logits and log concentrations."""

    logits: FloatArray
    log_concentration: FloatArray

    @property
    def distribution(self) -> DirichletCpe | DirichletMixtureCpe:
        family = DirichletCpe if self.logits.ndim == 2 else DirichletMixtureCpe
        return family(softmax_probs(self.logits), self.log_concentration)

    def loss(self, outputs: Outputs) -> float:
        """Negative log-likelihood a label."""
        counts = outputs.label_counts
        return float(-self.distribution.log_likelihood(counts).sum() / counts.sum())

    def mapped(self, dpe: FloatArray) -> "_FoldPredictions":
        return _FoldPredictions(*match_disagreement(self.logits, self.log_concentration, dpe))


@dataclass(frozen=True)
class _VariantTrial:
    """A variant fitted on all cases, and its cross-fitted predictions."""

    whole: Fitted
    said: _FoldPredictions


class _Folds:
    """Fits on all folds but one, and what they say of that one."""

    def __init__(
        self, outputs: Outputs, paired: IntArray, fold: npt.NDArray[np.str_], kind: HeadKind, temperature_fixed: bool
    ) -> None:
        self.outputs, self.paired, self.fold = outputs, paired, fold
        self.kind, self.temperature_fixed = kind, temperature_fixed

    def tried(self, start: Fitted, variant: Variant) -> "_VariantTrial | None":
        """A variant fitted on all cases, and what it says of each fold; None where a fit did not converge."""
        fixed = self.temperature_fixed
        logits, a = np.empty(self.outputs.logits.shape), np.empty(self.outputs.logits.shape[:-1])
        try:
            whole = fit_variant(self.outputs, start, self.kind, variant, temperature_fixed=fixed)
            for k in np.unique(self.fold):
                inside, unseen = self.outputs.rows(self.fold != k), self.fold == k
                fitted = fit_variant(inside, whole, self.kind, variant, temperature_fixed=fixed, rough=True)
                logits[..., unseen, :], a[..., unseen] = fitted.predicted(self.outputs.rows(unseen))
        except FitError:
            return None
        return _VariantTrial(whole, _FoldPredictions(logits, a))

    def choose_map(self, said: _FoldPredictions) -> tuple[AnyMap | None, str, dict[str, float | None]]:
        """The map of out-of-fold φ with the lowest loss of pairs on folds that it was not fitted on, None for none."""
        usable = self.paired.sum(axis=1) >= 2
        differ, dpe = observed_disagreement(self.paired[usable]), said.distribution.disagreement_probs
        losses: dict[str, float | None] = {_UNMAPPED: _loss_of_pairs(dpe[usable], differ)}
        maps: dict[str, AnyMap] = {}
        for name, (kind, pull) in MAPS.items():
            try:
                mapped = np.empty(len(dpe))
                for k in np.unique(self.fold):
                    others = (self.fold != k) & usable
                    seen = observed_disagreement(self.paired[others])
                    mapped[self.fold == k] = fit_map(dpe[others], seen, kind, pull=pull)(dpe[self.fold == k])
                served = said.mapped(mapped).distribution.disagreement_probs
                maps[name] = fit_map(dpe[usable], differ, kind, pull=pull)
                losses[name] = _loss_of_pairs(served[usable], differ)
            except FitError:
                losses[name] = None
        best = min(losses, key=lambda name: np.inf if losses[name] is None else losses[name] or 0.0)
        return maps.get(best), best, losses


def _loss_of_pairs(dpe: FloatArray, differ: FloatArray) -> float:
    certain = np.clip(dpe, 1e-9, 1 - 1e-9)
    return float(pair_loss(np.log(certain) - np.log1p(-certain), differ).mean())
