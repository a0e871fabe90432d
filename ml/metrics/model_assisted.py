"""Model-assisted means of losses known for some cases.

A regression m(x) on features of all cases predicts the loss, and the
weighted mean of what it misses corrects it:

    θ̂ = Σ_all v λ m(x) / Σ v + Σ_labelled w (ℓ − λ m(x)) / Σ w,

with λ of least estimated variance, shrunk by the degrees of freedom
that the regression takes. m and λ are fitted without the patient for
whom they are used, so that θ̂ is as unbiased as the weighted mean. The
first label's loss is a feature by its mean over a case's labels. EL is
L − φ̂ in every case, so the mean L of all is added to that of −φ̂.

Sources: Cassel, Särndal and Wretman 1976; PPI++, arXiv 2311.01453.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ml.metrics.bayesian_bootstrap import MANY
from ml.metrics.cases import Sample
from ml.metrics.jackknife import (
    SQUARED_LOSS,
    Bounds,
    Estimate,
    ModelAssisted,
    Replicates,
    degrees_of_freedom,
    few_cases_interval,
    mean_replicates,
    ratio_replicates,
    to_estimate,
)
from ml.util.arrays import FloatArray

# clusters whose regressions are solved at once
_CLUSTERS = 2**14
# of the regression's slopes, in cases: keeps it from following a handful of labels
_RIDGE = 1.0
_TINY = float(np.finfo(np.float64).tiny)
#: Losses (n,) of some cases, the range of a case's (None for differences), and whether the first label's loss, which is
#: the last feature, is to be added.
Loss = tuple[FloatArray, Bounds | None, bool]


def prediction_features(class_probs: FloatArray, disagreement_probs: FloatArray) -> FloatArray:
    """Features of a prediction's own loss (n, 3): φ, 1 − Σf² and φ(1 − φ)."""
    squares = np.einsum("nk,nk->n", class_probs, class_probs)
    # column by column in memory, which is how they are gone through
    return np.stack((disagreement_probs, 1 - squares, disagreement_probs * (1 - disagreement_probs))).T


@dataclass(frozen=True)
class TwoPhaseSample:
    """Two-phase sample of N cases: some labelled once, fewer twice."""

    features: FloatArray  # (N, p) of the predictions
    everyone: Sample  # all N cases
    labelled: Sample  # those with a label, with weights of order 1
    paired: Sample  # those with two, with weights of order 2
    first_loss: FloatArray  # (n,) loss of one label of each of the former
    paired_loss: FloatArray  # (n,) and of the latter, by all their labels

    def of_order_1(self, terms: FloatArray, term: Bounds | None = None) -> ModelAssisted | None:
        """Mean of terms (n,); None if all are labelled."""
        if self.labelled.dropped == 0:
            return None
        return self._assisted([(terms, term, False)], self.labelled, self.features, self.everyone)[0]

    def of_order_2(self, *losses: Loss) -> list[ModelAssisted]:
        """Means of losses (n,) that need two labels."""
        first = _spread(self.first_loss, self.labelled, len(self.features))
        first[self.paired.rows] = self.paired_loss
        features = np.vstack([self.features.T, first]).T
        return self._assisted(losses, self.paired, features, self.labelled)

    def _assisted(
        self, losses: Sequence[Loss], sample: Sample, features: FloatArray, population: Sample
    ) -> list[ModelAssisted]:
        size = len(features)
        weight = population.take(_spread(sample.weight, sample, size))
        spread = [(population.take(_spread(loss, sample, size)), term, added) for loss, term, added in losses]
        return model_assisted_means(spread, weight, population.take(features), population)


def _spread(values: FloatArray, sample: Sample, size: int) -> FloatArray:
    """Values (n,) at their positions among all, 0 elsewhere."""
    spread = np.zeros(size)
    spread[sample.rows] = values
    return spread


def model_assisted_means(
    losses: Sequence[Loss], weight: FloatArray, features: FloatArray, population: Sample
) -> list[ModelAssisted]:
    """Mean losses by one regression on features of all cases."""
    known, is_known, first = replace(population, weight=weight), weight > 0, features[:, -1]
    values = np.stack([np.where(is_known, loss, 0.0) for loss, *_ in losses]).T
    # best where the design is noisiest: certain reads add no noise
    predicted = cross_fitted(values, np.maximum(weight * (weight - 1), 0.0), features, population)
    columns = zip(losses, np.ascontiguousarray(values.T), np.ascontiguousarray(predicted.T), strict=True)
    means = []
    for (_, term, added), loss, guess in columns:
        mean = _assisted_mean(loss, guess, known, population)
        estimate = _with_first(first, mean, known, population, term) if added else to_estimate(mean, known, term=term)
        means.append(ModelAssisted(estimate.value, estimate.se, estimate.low, estimate.high, estimate.p_of_fall))
    return means


def _assisted_mean(values: FloatArray, predicted: FloatArray, known: Sample, population: Sample) -> Replicates:
    plain = mean_replicates(values, known)
    # a constant is known of all cases and needs no estimate
    predicted = predicted - float(population.weight @ predicted) / max(population.total_weight, _TINY)
    noise, parts = _noise(predicted, known, population)
    moved, by = plain.value - plain.without, noise.value - noise.without
    if not (moved.size and np.isfinite(moved).all() and np.isfinite(by).all()):
        return plain
    share = _shares(moved, by)
    value = plain.value - float(share @ parts)
    return Replicates(value, value - (moved - share * by))


def _with_first(loss: FloatArray, rest: Replicates, known: Sample, everyone: Sample, term: Bounds | None) -> Estimate:
    """First labels' mean loss and the mean rest, with half cases at the ends of both ranges."""
    first = mean_replicates(loss, everyone)
    both = Replicates(first.value + rest.value, first.without + rest.without)
    estimate = to_estimate(both, known)
    if term is None or estimate.se is None or known.n_clusters >= MANY:
        return estimate
    # the upper end counts a quarter of a disagreement that was not seen: with all it missed 5 %, with none 1 %
    light, heavy = everyone.largest_weight * known.total_weight / everyone.total_weight, known.largest_weight
    at = np.array([*SQUARED_LOSS, *term]) + first.value * np.array([-1, -1, 1, 1])
    whole, weights = Bounds(SQUARED_LOSS.low + term.low, SQUARED_LOSS.high), np.array([light, light, heavy, heavy])
    halves = [(at * w, w * [0, 0, 1, 1]) for w in (weights, weights * [1, 1, 0.25, 1])]
    low, high = (few_cases_interval(both, known, whole, half)[end] for end, half in enumerate(halves))
    return replace(estimate, low=low, high=high)


def _noise(values: FloatArray, known: Sample, population: Sample) -> tuple[Replicates, FloatArray]:
    parts = [sample.per_cluster(sample.weight * values) for sample in (known, population)]
    means = [
        ratio_replicates(float(part.sum()), part, sample)
        for part, sample in zip(parts, (known, population), strict=True)
    ]
    shares = [part / max(sample.total_weight, _TINY) for part, sample in zip(parts, (known, population), strict=True)]
    return means[0] - means[1], shares[0] - shares[1]


def _shares(moved: FloatArray, by: FloatArray) -> FloatArray:
    """λ (G,) in [0, 1] of least variance, by other clusters."""
    # a λ that has seen its own cluster biased L_φ at 500 cases by .9 % (± .3)
    moved, by = moved - moved.mean(), by - by.mean()
    trust = max(0.0, 1 - 10 / degrees_of_freedom(moved))  # the regression takes two for each coefficient
    crossed, spread = moved * by, by**2
    rest = spread.sum() - spread
    usable = rest > 1e-12 * spread.sum()
    return np.where(usable, trust * np.clip((crossed.sum() - crossed) / np.where(usable, rest, 1.0), 0.0, 1.0), 0.0)


def cross_fitted(values: FloatArray, precision: FloatArray, features: FloatArray, population: Sample) -> FloatArray:
    """Predictions (n,) by fits without the case's patient."""
    design, rows = _Design.of(features, population.weight), np.flatnonzero(precision > 0)
    if rows.size == 0:  # there may be no cases at all
        return np.zeros(values.shape)
    targets = values.reshape(len(values), -1)
    cluster = np.arange(len(values)) if population.cluster is None else population.cluster
    used, target = design.of_cases(rows), precision[rows, None] * targets[rows]
    scaled = precision[rows, None] * used
    ridge = np.diag([1e-6, *[_RIDGE] * features.shape[1]]) * precision[rows].mean()
    gram, moment = scaled.T @ used + ridge, used.T @ target
    slopes, predicted = np.linalg.solve(gram, moment), np.empty(targets.shape)
    for first in range(0, len(predicted), _CLUSTERS):
        block = slice(first, first + _CLUSTERS)
        predicted[block] = design.of_cases(block) @ slopes  # right for unseen patients
    starts = np.flatnonzero(np.diff(cluster[rows], prepend=-1))
    for first in range(0, starts.size, _CLUSTERS):
        last = starts[first + _CLUSTERS] if first + _CLUSTERS < starts.size else rows.size
        part, at = slice(starts[first], last), starts[first : first + _CLUSTERS] - starts[first]
        own_gram = np.add.reduceat(scaled[part, :, None] * used[part, None, :], at)
        own_moment = np.add.reduceat(used[part, :, None] * target[part, None, :], at)
        without = np.linalg.solve(gram - own_gram, moment - own_moment)
        cases, patient = _cases_of(cluster[rows[part]][at], cluster)
        predicted[cases] = np.einsum("np,npt->nt", design.of_cases(cases), without[patient])
    return predicted.reshape(values.shape)


def _cases_of(
    clusters: npt.NDArray[np.intp], cluster: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Cases (m,) of clusters (g,), and each one's place."""
    low, high = np.searchsorted(cluster, clusters, side="left"), np.searchsorted(cluster, clusters, side="right")
    sizes = high - low
    position = np.repeat(np.arange(clusters.size), sizes)
    return np.arange(position.size) + (low - (np.cumsum(sizes) - sizes))[position], position


@dataclass(frozen=True)
class _Design:
    # made for the cases at hand: all of them would take much memory

    features: FloatArray
    mean: FloatArray
    spread: FloatArray  # (p,) infinite for a constant

    @classmethod
    def of(cls, features: FloatArray, weight: FloatArray) -> "_Design":
        total = max(float(weight.sum()), _TINY)
        mean = np.array([weight @ feature for feature in features.T]) / total
        pairs = zip(features.T, mean, strict=True)
        spread = np.sqrt(np.array([weight @ (feature - centre) ** 2 for feature, centre in pairs]) / total)
        return cls(features, mean, np.where(spread > 1e-9, spread, np.inf))

    def of_cases(self, rows: slice | npt.NDArray[np.intp]) -> FloatArray:
        scaled = [(f[rows] - m) / s for f, m, s in zip(self.features.T, self.mean, self.spread, strict=True)]
        return np.stack([np.ones(len(scaled[0])), *scaled], axis=1)
