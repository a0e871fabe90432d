"""Cross-validated strength of pooling between annotators, and the weight of the model of names.

Patients are dealt into folds; matrices are fitted on the others and judged by the log-likelihood of the labels of each
fold, by annotator. The pull is towards one rate of other answers per annotator, itself pulled towards the identity, or
towards the population of such a fit. The likelihoods of the best and of the exchangeable model are stacked (Wolpert
1992): λ maximises Σ log(λ p_named + (1 − λ) p_exchangeable) over the cases, each left out.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ml.annotations import Annotations
from ml.annotators.confusions import ReaderModel
from ml.annotators.fitting import TOLERANCE, Anchor, Fit, FitInputs, case_log_likelihoods, fit_rates, fit_readers
from ml.annotators.posterior import Opinions, require_fit
from ml.dataframes import refuse_row_names
from ml.distributions.families import PredictiveDistribution
from ml.util.arrays import FloatArray, IntArray

#: Strengths κ that are tried, in labels per opinion, the strongest first.
STRENGTHS = (30.0, 10.0, 3.0)
FOLDS = 3
#: Relative fall of the loss in a step below which a search that is only compared with others ends.
ROUGHLY = 3e-6
#: What the population may say other than it thinks, at most, on average over classes: beyond that it could as well be
#: opinions that are spread.
MOST_OTHER = 0.1
ALIKE, RATE = "alike", "rate"


@dataclass(frozen=True)
class Choice:
    """A fitted model and what it was chosen by.

    Attributes:
        model: of the annotators, mixed with ``alike``; without names if these do not help to predict left-out labels.
        kind: how matrices were pulled: "alike", "rate" (one number per annotator), "rate 30",
            "population 30" (towards what, and how many labels per opinion that weighs).
        losses: mean negative log-likelihood of a left-out label, in nats, by kind.
        alike: the exchangeable model, refitted to the same labels: what names are worth is more.
    """

    model: ReaderModel
    kind: str
    losses: dict[str, float]
    alike: ReaderModel


def choose_readers(
    prior: PredictiveDistribution,
    long: Annotations,
    names: Sequence[str],
    groups: npt.ArrayLike | None = None,
    *,
    experts: Sequence[str] = (),
    progress: Callable[[float], None] = lambda _: None,
) -> Choice:
    """Fit annotators' matrices with cross-validated pooling.

    Args:
        prior: a release's predictions of N cases.
        long: labels of these cases.
        names: A names of the annotators of ``long``.
        groups: (N,) patient of each case.
        experts: annotators whose mean is the population; all by default.
        progress: receives the share that is done.

    Raises:
        ValueError: no label, or names, experts or groups that do not fit.
    """
    refuse_row_names(groups=groups)
    if len(names) != long.n_annotators:
        raise ValueError(f"{len(names)} names for {long.n_annotators} annotators")
    unknown = sorted(set(experts) - set(names))
    if unknown:
        raise ValueError(f"no label by {', '.join(unknown)}, whose answers would be the population's")
    patients = np.arange(long.n_cases) if groups is None else np.asarray(groups)
    if patients.shape != (long.n_cases,):
        raise ValueError(f"groups must name the patient of each of {long.n_cases} cases, got shape {patients.shape}")
    opinions = Opinions.of(prior)
    require_fit(opinions, long, np.empty((len(names), long.n_classes, long.n_classes)))
    material = FitInputs(opinions, long).of_cases(long.per_case > 0)
    patient = np.unique(patients, return_inverse=True)[1][long.per_case > 0]
    fold, weights = _folds(patient), _population_weights(material.long, [name in experts for name in names])

    def judged(number: int) -> dict[str, FloatArray]:
        held_out = material.of_cases(fold == number)
        path = _path(material.of_cases(fold != number), weights)
        return {kind: case_log_likelihoods(held_out.adjusted(f.shift), f.confusions) for kind, f in path.items()}

    with ThreadPoolExecutor(2) as workers:
        fold_losses = []
        for values in workers.map(judged, range(FOLDS)):
            fold_losses.append(values)
            progress(len(fold_losses) / (FOLDS + 1))
    by_kind = {kind: np.concatenate([values[kind] for values in fold_losses]) for kind in fold_losses[0]}
    losses = {kind: -float(values.sum()) / len(long.case) for kind, values in by_kind.items()}
    best = min((kind for kind in losses if kind != ALIKE), key=lambda kind: losses[kind])
    weight = stacking_weight(by_kind[best], by_kind[ALIKE])
    if weight == 0:
        best = ALIKE
    final = _path(material, weights, only=best)
    n_labels = np.bincount(long.annotator, minlength=len(names)).astype(np.int64)
    none = np.zeros((0, long.n_classes, long.n_classes))
    alike = ReaderModel((), n_labels[:0], none, np.eye(long.n_classes), *final[ALIKE].shift)
    progress(1.0)
    if best == ALIKE:
        return Choice(alike, best, losses, alike)
    fitted = final[best]
    population = np.einsum("a,akl->kl", weights, fitted.confusions)
    spread = _population_spread(fitted, weights, one_rate=best == RATE)
    parameters = tuple(names), n_labels, fitted.confusions, population, *fitted.shift
    return Choice(ReaderModel(*parameters, spread, weight, alike), best, losses, alike)


def stacking_weight(named: FloatArray, exchangeable: FloatArray) -> float:
    """λ that maximises Σ log(λ p_named + (1 − λ) p_exchangeable), of log-likelihoods (N,) of left-out cases."""
    with np.errstate(invalid="ignore"):
        # labels that neither model allows tell nothing
        better = np.where(named == exchangeable, 0.0, named - exchangeable)
    ratio = np.expm1(np.clip(better, -30, 30))

    def slope(weight: float) -> float:
        return float((ratio / (1 + weight * ratio)).sum())

    if slope(0.0) <= 0:
        return 0.0
    from scipy.optimize import brentq  # slow to load

    return 1.0 if slope(1.0) >= 0 else float(brentq(slope, 0.0, 1.0))


def _population_spread(fitted: Fit, weights: FloatArray, *, one_rate: bool) -> FloatArray:
    """Σ_l Cov(C̄_kl, C̄_jl) (K, K), each row of a matrix being Dirichlet with the labels that it rests on."""
    confusions, n_classes = fitted.confusions, fitted.confusions.shape[-1]
    variance = weights[:, None, None] ** 2 * confusions * (1 - confusions) / (fitted.row_labels[..., None] + 1)
    if not one_rate:
        return np.diag(variance.sum(axis=(0, 2)))
    # all rows of an annotator move with the one rate
    change = (1 - np.eye(n_classes)) / max(n_classes - 1, 1) - np.eye(n_classes)
    return np.asarray(variance[:, 0, 0].sum() * change @ change.T)


def _folds(patient: IntArray) -> IntArray:
    patients, number = np.unique(patient, return_inverse=True)
    if len(patients) < FOLDS:
        raise ValueError(
            f"{len(patients)} patients with labels: at least {FOLDS} are needed to choose by left-out labels"
        )
    dealt = np.random.default_rng(0).permutation(len(patients)) % FOLDS
    return np.asarray(dealt[number], dtype=np.int64)


def _population_weights(long: Annotations, expert: Sequence[bool]) -> FloatArray:
    n_labels = np.bincount(long.annotator, minlength=long.n_annotators).astype(np.float64)
    chosen = np.array(expert, dtype=bool)
    weights = np.where(chosen, n_labels, 0.0) if chosen.any() else n_labels
    return np.asarray(weights / weights.sum())


def _path(material: FitInputs, weights: FloatArray, only: str | None = None) -> dict[str, Fit]:
    """Fits from alike to hardly pulled, each from the last."""
    n_classes = material.long.n_classes
    identity = np.eye(n_classes)

    def tolerance(kind: str) -> float:
        return TOLERANCE if kind == only else ROUGHLY

    fits = {ALIKE: fit_readers(material, Anchor(identity, np.inf), tolerance=tolerance(ALIKE))}
    if only == ALIKE:
        return fits
    last = fits[RATE] = fit_rates(material, (1 - identity) / (n_classes - 1), tolerance(RATE))
    for strength in STRENGTHS if only != RATE else ():
        by_rate, by_population = f"{RATE} {strength:g}", f"population {strength:g}"
        last = fit_readers(material, Anchor(fits[RATE].confusions, strength), last, tolerance(by_rate))
        fits[by_rate] = last
        if only in {None, by_population}:
            population = np.einsum("a,akl->kl", weights, last.confusions)
            other = float((1 - np.diag(population)).mean())
            share = min(1.0, MOST_OTHER / other) if other > 0 else 1.0
            anchor = Anchor(share * population + (1 - share) * identity, strength)
            fits[by_population] = fit_readers(material, anchor, last, tolerance(by_population))
        if only in {by_rate, by_population}:
            break
    return fits
