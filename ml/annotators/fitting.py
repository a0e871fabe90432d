"""Fit of annotator models, and the gate that compares two of them.

The penalised log-likelihood is ``Σ_i log p(y_i | x_i) + κ Σ M log C − ridge/2 Σ b²``.
The search is L-BFGS over the matrices, ln T, the shift of a and the
class bias b. Its gradient is an expectation over the opinions given
the labels (Fisher's identity).
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

#: ln T, the shift of a, and the class bias (K,).
Shift = tuple[float, float, FloatArray]
#: Relative fall of the loss in a step below which a search ends.
TOLERANCE = 1e-7
# ln T and the shift of a are searched this far from where the release has them
_WIDEST = 4.0
#: Precision of the class bias's normal prior around zero: a standard deviation of one half.
BIAS_RIDGE = 4.0
# share of other answers in the matrices that a search begins with: an answer must be possible to become likely
_POSSIBLE = 0.05
#: Share of other answers that one rate per annotator is pulled towards, and with how many labels.
RATE, RATE_LABELS = 0.02, 10.0


@dataclass(frozen=True)
class FitInputs:
    """Inputs of a fit: the release's prior of N cases, and their labels."""

    opinions: Opinions
    long: Annotations

    def adjusted(self, shift: Shift) -> "FitInputs":
        """The same with opinions sharpened and shifted."""
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
    """Matrices (A, K, K), how opinions are shifted, and the labels (A, K) that each row rests on."""

    confusions: FloatArray
    shift: Shift
    row_labels: FloatArray


def left_out(material: FitInputs, confusions: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Opinions (M, K) before each label, log-likelihoods (N,), and those (M,) of each case's other labels."""
    expected, others = np.zeros((len(material.long.case), material.long.n_classes)), np.zeros(len(material.long.case))
    log_likelihood = np.zeros(material.long.n_cases)
    for batch in batches(material.long, confusions, len(material.opinions.log_weights)):
        opinions = material.opinions.rows(batch.cases)
        n_labels = batch.labels.shape[1]
        for label in range(n_labels):
            rows = batch.positions[:, label]
            expected[rows], others[rows] = opinion_means(opinions, batch.without(label))
        if n_labels:
            # that of all labels follows from the last one
            chance = (expected[rows] * batch.likelihood[:, -1]).sum(axis=1)
            with np.errstate(divide="ignore"):
                log_likelihood[batch.cases] = others[rows] + np.log(chance)
    return expected, log_likelihood, others


def opinion_means(opinions: Opinions, batch: Batch) -> tuple[FloatArray, FloatArray]:
    """E[q] (B, K) after a batch's labels, and log-likelihoods (B,)."""
    weights, evidence = member_weights(opinions, batch)
    share, total = member_shares(opinions, evidence)
    prior, label = (s[..., None] for s in shares(opinions.log_concentration, batch.labels.shape[1]))
    means = prior * opinions.class_probs + label * weights.mean_counts().reshape(opinions.class_probs.shape)
    return np.asarray(np.einsum("sb,sbk->bk", share, means)), total


def case_log_likelihoods(material: FitInputs, confusions: FloatArray) -> FloatArray:
    """Log-likelihood (N,) of each case's labels."""
    result = np.zeros(material.long.n_cases)
    for batch in batches(material.long, confusions, len(material.opinions.log_weights)):
        if batch.labels.shape[1] > 0:
            opinions = material.opinions.rows(batch.cases)
            result[batch.cases] = member_shares(opinions, member_weights(opinions, batch)[1])[1]
    return result


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
    shift = np.zeros(2 + long.n_classes) if start is None else np.concatenate([start.shift[:2], start.shift[2]])
    if np.isinf(anchor.strength):
        optimum = _search(material, lambda _: (anchored, 0.0), lambda _, __: np.zeros(0), shift, tolerance)
        return Fit(np.array(anchored), _shift(optimum, long.n_classes), np.full(shape[:2], np.inf))
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
    confusions, found = at(optimum[: begun.size])[0], _shift(optimum, long.n_classes)
    here = material.adjusted(found)
    counts = opinion_counts(here, confusions, left_out(here, confusions)[0])
    return Fit(confusions, found, (counts + pseudo).sum(axis=2))


def fit_rates(material: FitInputs, other: FloatArray, tolerance: float = TOLERANCE) -> Fit:
    """Fit C = (1 − ε) I + ε H with one ε per annotator."""
    identity, n_readers, n_classes = np.eye(len(other)), material.long.n_annotators, len(other)

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
    optimum = _search(material, at, slope, np.append(begun, np.zeros(2 + n_classes)), tolerance)
    # all labels of an annotator tell of the one rate
    rests_on = np.bincount(material.long.annotator, minlength=n_readers) + RATE_LABELS
    row_labels = np.repeat(rests_on[:, None], n_classes, axis=1)
    return Fit(at(optimum[:n_readers])[0], _shift(optimum, n_classes), row_labels)


def _shift(found: FloatArray, n_classes: int) -> Shift:
    bias = found[-n_classes:]
    return float(found[-n_classes - 2]), float(found[-n_classes - 1]), bias - bias.mean()


def shift_slopes(material: FitInputs, confusions: FloatArray, shift: Shift) -> FloatArray:
    """Gradient of the log-likelihood by ln T, the shift of a and the class bias (2 + K,).

    With opinions counted as m, ``∂/∂b_k = A_k − f_k Σ A`` for A_k = E Σ_{j < m_k} α0 f_k / (α0 f_k + j).

    Args:
        material: already adjusted by ``shift``.
        confusions: (A, K, K).
        shift: how opinions are shifted.
    """
    by_bias, by_temperature, by_concentration = np.zeros(material.long.n_classes), 0.0, 0.0
    for batch in batches(material.long, confusions, len(material.opinions.log_weights)):
        opinions, n_labels = material.opinions.rows(batch.cases), batch.labels.shape[1]
        if n_labels == 0:
            continue
        weights, evidence = member_weights(opinions, batch)
        share, probs = member_shares(opinions, evidence)[0], opinions.class_probs
        a, logs = opinions.log_concentration[..., None], np.log(np.maximum(probs, np.finfo(np.float64).tiny))
        counted, drawn = np.zeros(probs.shape), np.zeros(a.shape)
        for j in range(n_labels):
            likely = weights.more_than(j).reshape(probs.shape)
            counted += likely * (expit(a + logs - np.log(j)) if j else 1.0)
            drawn += expit(a - np.log(j)) if j else 1.0
        moved = share[..., None] * (counted - probs * counted.sum(axis=-1, keepdims=True))
        by_bias += moved.sum(axis=(0, 1))
        by_temperature -= float((moved * (logs - shift[2])).sum())
        by_concentration += float((share[..., None] * (counted.sum(axis=-1, keepdims=True) - drawn)).sum())
    return np.concatenate([[by_temperature, by_concentration], by_bias])


def _search(
    material: FitInputs,
    at: Callable[[FloatArray], tuple[FloatArray, float]],
    slope: Callable[[FloatArray, FloatArray], FloatArray],
    start: FloatArray,
    tolerance: float,
) -> FloatArray:
    n_labels, n_classes = len(material.long.case), material.long.n_classes
    n_matrix = len(start) - n_classes - 2

    def loss(x: FloatArray) -> tuple[float, FloatArray]:
        confusions, prior = at(x[:n_matrix])
        shift = float(x[n_matrix]), float(x[n_matrix + 1]), x[n_matrix + 2 :]
        here = material.adjusted(shift)
        expected, log_likelihood, _ = left_out(here, confusions)
        by_matrices = slope(opinion_counts(here, confusions, expected), confusions)
        by_shift = shift_slopes(here, confusions, shift)
        by_shift[2:] -= BIAS_RIDGE * shift[2]
        value = float(log_likelihood.sum()) + prior - BIAS_RIDGE / 2 * float((shift[2] ** 2).sum())
        return -value / n_labels, -np.append(by_matrices, by_shift) / n_labels

    free: list[tuple[float | None, float | None]] = [(None, None)]
    bounds = free * n_matrix + [(-_WIDEST, _WIDEST), (-_WIDEST, _WIDEST)] + free * n_classes
    return minimise(loss, start, "annotators", bounds, tolerance)[0]


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
    chances, evidence = [], []
    for part in model.components(prior, names):
        expected, _, others = left_out(FitInputs(part.opinions, long), part.confusions)
        chances.append((expected * part.confusions[long.annotator, :, long.label]).sum(axis=1))
        evidence.append(np.log(part.weight) + others)
    shares = softmax(np.maximum(evidence, np.finfo(np.float64).min), axis=0)
    with np.errstate(divide="ignore"):
        return np.asarray(-np.log((shares * chances).sum(axis=0)))


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
