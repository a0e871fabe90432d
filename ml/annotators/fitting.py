"""Fit of annotator models, and the gate that compares two of them.

The penalised log-likelihood is ``Σ_i log p(y_i | x_i) + κ Σ M log C``.
The search is L-BFGS, whose gradient is the expected counts of
opinions divided by the matrices (Fisher's identity).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import expit, softmax

from ml.annotations import Annotations
from ml.annotators.confusions import ReaderModel
from ml.annotators.posterior import Batch, Opinions, batches, member_shares, member_weights, shares
from ml.calibration.optimise import minimise
from ml.dataframes import refuse_row_names
from ml.distributions.families import PredictiveDistribution
from ml.metrics.cases import check_clusters, check_weights, select_sample
from ml.metrics.jackknife import Estimate, mean_replicates, to_estimate
from ml.util.arrays import FloatArray

#: Relative fall of the loss in a step below which a search ends.
TOLERANCE = 1e-7
# ln T and b are searched this far from where the release has them
_WIDEST = 4.0
# share of other answers in the matrices that a search begins with: an answer must be possible to become likely
_POSSIBLE = 0.05
# step of the differences that are the slopes by ln T and b
_STEP = 1e-4
#: Share of other answers that one rate per annotator is pulled towards, and with how many labels.
RATE, RATE_LABELS = 0.02, 10.0


@dataclass(frozen=True)
class FitInputs:
    """Inputs of a fit: the release's prior of N cases, and their labels."""

    opinions: Opinions
    long: Annotations

    def adjusted(self, shift: tuple[float, float]) -> "FitInputs":
        """The same with opinions sharpened and shifted by ln T and b."""
        return replace(self, opinions=self.opinions.adjusted(*shift))

    def of_cases(self, chosen: npt.NDArray[np.bool_]) -> "FitInputs":
        """Some of the cases, renumbered."""
        rows = np.flatnonzero(chosen)
        place = np.where(chosen, np.cumsum(chosen) - 1, -1)
        return FitInputs(self.opinions.rows(rows), self.long.renumbered(place, len(rows)))


@dataclass(frozen=True)
class Anchor:
    """Target of the shrinkage, with κ in labels per row."""

    matrix: FloatArray
    strength: float

    def pseudo_counts(self, n_readers: int) -> FloatArray:
        """κ M (A, K, K)."""
        n_classes = self.matrix.shape[-1]
        return np.broadcast_to(self.strength * self.matrix, (n_readers, n_classes, n_classes))


@dataclass(frozen=True)
class Fit:
    """Matrices (A, K, K), and ln T and b of the opinions."""

    confusions: FloatArray
    shift: tuple[float, float]


def left_out(material: FitInputs, confusions: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Opinions (M, K) before each label, and log-likelihoods (N,)."""
    expected = np.zeros((len(material.long.case), material.long.n_classes))
    log_likelihood = np.zeros(material.long.n_cases)
    for batch in batches(material.long, confusions):
        opinions = material.opinions.rows(batch.cases)
        last = batch.labels.shape[1] - 1
        if last < 0:
            continue
        for label in range(last):
            expected[batch.positions[:, label]] = opinion_means(opinions, batch.without(label))[0]
        expected[batch.positions[:, last]], log_likelihood[batch.cases] = _last_label(opinions, batch)
    return expected, log_likelihood


def opinion_means(opinions: Opinions, batch: Batch) -> tuple[FloatArray, FloatArray]:
    """E[q] (B, K) after a batch's labels, and log-likelihoods (B,)."""
    members, evidence = member_weights(opinions, batch)
    share, total = member_shares(opinions, evidence)
    means = []
    for probs, a, weights in zip(opinions.class_probs, opinions.log_concentration, members, strict=True):
        prior, label = (s[:, None] for s in shares(a, batch.labels.shape[1]))
        means.append(prior * probs + label * weights.mean_counts())
    return np.asarray(np.einsum("sb,sbk->bk", share, np.array(means))), total


def case_log_likelihoods(material: FitInputs, confusions: FloatArray) -> FloatArray:
    """Log-likelihood (N,) of each case's labels."""
    result = np.zeros(material.long.n_cases)
    for batch in batches(material.long, confusions):
        if batch.labels.shape[1] > 0:
            result[batch.cases] = _last_label(material.opinions.rows(batch.cases), batch)[1]
    return result


def _last_label(opinions: Opinions, batch: Batch) -> tuple[FloatArray, FloatArray]:
    """Opinions (B, K) before the last label, and log-likelihoods (B,)."""
    last = batch.labels.shape[1] - 1
    before, evidence = opinion_means(opinions, batch.without(last))
    with np.errstate(divide="ignore"):
        return before, evidence + np.log((before * batch.likelihood[:, last]).sum(axis=1))


def opinion_counts(material: FitInputs, confusions: FloatArray, expected: FloatArray) -> FloatArray:
    """Expected labels (A, K, K) by annotator, opinion and answer."""
    long = material.long
    guess = expected * confusions[long.annotator, :, long.label]
    total = guess.sum(axis=1, keepdims=True)
    guess = np.divide(guess, total, out=np.zeros(guess.shape), where=total > 0)
    result = np.zeros((long.n_annotators, long.n_classes, long.n_classes))
    np.add.at(result.transpose(0, 2, 1), (long.annotator, long.label), guess)
    return result


def log_prior(confusions: FloatArray, pseudo_counts: FloatArray) -> float:
    """κ Σ M_kl log C_kl over all matrices (A, K, K)."""
    used = pseudo_counts > 0
    with np.errstate(divide="ignore"):
        return float((pseudo_counts[used] * np.log(confusions[used])).sum())


def fit_readers(material: FitInputs, anchor: Anchor, start: Fit | None = None, tolerance: float = TOLERANCE) -> Fit:
    """Fit matrices and the spread of opinions."""
    long = material.long
    shape = (long.n_annotators, long.n_classes, long.n_classes)
    anchored = np.broadcast_to(anchor.matrix, shape)
    shift = np.array((0.0, 0.0) if start is None else start.shift)
    if np.isinf(anchor.strength):
        optimum = _search(material, lambda _: (anchored, 0.0), lambda _, __: np.zeros(0), shift, tolerance)
        return Fit(np.array(anchored), _spread(optimum))
    pseudo = anchor.pseudo_counts(long.n_annotators)
    first = (1 - _POSSIBLE) * anchored + _POSSIBLE / long.n_classes if start is None else start.confusions

    def at(x: FloatArray) -> tuple[FloatArray, float]:
        confusions = softmax(x.reshape(shape), axis=2)
        return confusions, log_prior(confusions, pseudo)

    def slope(counts: FloatArray, confusions: FloatArray) -> FloatArray:
        both = counts + pseudo
        return np.asarray((both - both.sum(axis=2, keepdims=True) * confusions).ravel())

    # an answer all but impossible has hardly a slope
    begun = np.log(np.maximum(first, 1e-4)).ravel()
    optimum = _search(material, at, slope, np.append(begun, shift), tolerance)
    return Fit(at(optimum[:-2])[0], _spread(optimum))


def fit_rates(material: FitInputs, other: FloatArray, tolerance: float = TOLERANCE) -> Fit:
    """Fit C = (1 − ε) I + ε H with one ε per annotator."""
    identity, n_readers = np.eye(len(other)), material.long.n_annotators

    def at(x: FloatArray) -> tuple[FloatArray, float]:
        rate = expit(x)[:, None, None]
        prior = RATE_LABELS * (RATE * np.log(expit(x)) + (1 - RATE) * np.log(expit(-x))).sum()
        return (1 - rate) * identity + rate * other, float(prior)

    def slope(counts: FloatArray, confusions: FloatArray) -> FloatArray:
        kept = np.einsum("akk->a", counts) + RATE_LABELS * (1 - RATE)
        changed = counts.sum(axis=(1, 2)) - np.einsum("akk->a", counts) + RATE_LABELS * RATE
        rate = 1 - confusions[:, 0, 0]
        return np.asarray(changed * (1 - rate) - kept * rate)

    begun = np.full(n_readers, np.log(RATE / (1 - RATE)))
    optimum = _search(material, at, slope, np.append(begun, (0.0, 0.0)), tolerance)
    return Fit(at(optimum[:-2])[0], _spread(optimum))


def _spread(found: FloatArray) -> tuple[float, float]:
    return float(found[-2]), float(found[-1])


def _search(
    material: FitInputs,
    at: Callable[[FloatArray], tuple[FloatArray, float]],
    slope: Callable[[FloatArray, FloatArray], FloatArray],
    start: FloatArray,
    tolerance: float,
) -> FloatArray:
    n_labels = len(material.long.case)

    def loss(x: FloatArray) -> tuple[float, FloatArray]:
        confusions, prior = at(x[:-2])
        log_temperature, shift = _spread(x)
        here = material.adjusted((log_temperature, shift))
        expected, log_likelihood = left_out(here, confusions)
        by_matrices = slope(opinion_counts(here, confusions, expected), confusions)
        value = float(log_likelihood.sum())
        by_spread = [
            float(case_log_likelihoods(material.adjusted(beside), confusions).sum() - value) / _STEP
            for beside in ((log_temperature + _STEP, shift), (log_temperature, shift + _STEP))
        ]
        return -(value + prior) / n_labels, -np.append(by_matrices, by_spread) / n_labels

    bounds: list[tuple[float | None, float | None]] = [(None, None)] * (len(start) - 2)
    optimum, _ = minimise(loss, start, "annotators", [*bounds, *[(-_WIDEST, _WIDEST)] * 2], tolerance)
    return optimum


@dataclass(frozen=True)
class HeldOutGain:
    """Fall of the log loss (nats) of a label given its case's others.

    Attributes:
        over_served: from the posterior that takes annotators as alike, as it is served.
        over_alike: from the same with opinions spread anew on the labels that the model was fitted to, so that what is
            left is what names are worth.
    """

    over_served: Estimate
    over_alike: Estimate

    @property
    def passed(self) -> bool:
        """Whether the 95 % interval of both lies above zero."""
        return all(gain.low is not None and gain.low > 0 for gain in (self.over_served, self.over_alike))


def next_label_losses(
    prior: PredictiveDistribution, long: Annotations, names: Sequence[str], model: ReaderModel
) -> FloatArray:
    """Log loss (M,) of each label given its case's others, in nats."""
    confusions = model.matrices(names)
    expected, _ = left_out(FitInputs(model.opinions(prior), long), confusions)
    chance = (expected * confusions[long.annotator, :, long.label]).sum(axis=1)
    with np.errstate(divide="ignore"):
        return np.asarray(-np.log(chance))


def held_out_gain(
    prior: PredictiveDistribution,
    long: Annotations,
    names: Sequence[str],
    models: tuple[ReaderModel, ReaderModel],
    *,
    weights: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> HeldOutGain:
    """Judge a model of named annotators on labels that no fit used.

    Args:
        prior: predictions of N cases, as they are served.
        long: labels of them.
        names: A annotators of the labels.
        models: the model of names, and the same with annotators alike.
        weights: (N,) inverse probabilities of two labels.
        cluster: (N,) patients.

    Raises:
        ValueError: weights or patients that are not one per case.
    """
    refuse_row_names(weights=weights, cluster=cluster)
    weight, patients = check_weights(weights, long.n_cases), check_clusters(cluster, long.n_cases)
    served = ReaderModel.alike(long.n_classes)
    losses = [next_label_losses(prior, long, names, model) for model in (models[0], served, models[1])]
    by_case = [np.bincount(long.case, loss, minlength=long.n_cases) / np.maximum(long.per_case, 1) for loss in losses]
    usable = long.per_case >= 2
    if weight is not None:
        usable &= weight > 0
    sample = select_sample(usable, weight, patients)
    over = [to_estimate(mean_replicates(sample.take(other - by_case[0]), sample), sample) for other in by_case[1:]]
    return HeldOutGain(over[0], over[1])
