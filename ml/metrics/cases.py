"""Cases of an estimator, and their terms."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ml.dataframes import by_class, same_rows
from ml.util.arrays import FloatArray, IntArray, as_class_probs, as_label_counts, as_vector

_T = TypeVar("_T", bound=np.generic)
#: Weights (N,) of all estimators, or a pair: those of estimators that need one label, and of those that need two.
SampleWeight = npt.ArrayLike | tuple[npt.ArrayLike | None, npt.ArrayLike | None] | None


@dataclass(frozen=True)
class Sample:
    """The cases that an estimator may use."""

    rows: npt.NDArray[np.intp]  # positions, a cluster's together
    weight: FloatArray  # (n,) instance weights
    cluster: npt.NDArray[np.intp] | None  # (n,) from 0, rising; None: each case its own
    n_clusters: int  # number of clusters
    dropped: int  # cases left out
    whole: bool  # whether these are all cases, in the order of the input

    def take(self, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Rows of these cases; not a copy where they are all."""
        return values if self.whole else values[self.rows]

    def per_cluster(self, values: FloatArray) -> FloatArray:
        """Sum values (n,) within clusters."""
        if self.cluster is None:
            return values
        return np.asarray(np.bincount(self.cluster, weights=values, minlength=self.n_clusters), dtype=np.float64)

    @cached_property
    def total_weight(self) -> float:
        """Σw."""
        return float(self.weight.sum())

    @cached_property
    def cluster_weight(self) -> FloatArray:
        """Weight (n_clusters,) of each cluster."""
        return self.per_cluster(self.weight)

    @cached_property
    def largest_weight(self) -> float:
        """Largest weight of a case, or mean one Σw²/Σw of a cluster's."""
        return largest_share(self.per_cluster(self.weight**2), self.cluster_weight)

    @property
    def heaviest(self) -> float:
        """Largest weight of a case."""
        return float(self.weight.max(initial=0.0))

    @cached_property
    def ess(self) -> float:
        """Effective sample size (Σw)²/Σw²."""
        return effective_size(self.weight)

    @cached_property
    def effective_clusters(self) -> float:
        """Effective number of clusters, the same by the weights of the clusters."""
        return effective_size(self.cluster_weight)


def largest_share(squares: FloatArray, weight: FloatArray) -> float:
    """Largest Σw²/Σw of clusters."""
    positive = weight > 0
    return float((squares[positive] / weight[positive]).max(initial=0.0))


def effective_size(weight: FloatArray) -> float:
    """Effective number (Σw)²/Σw² of weights."""
    squares = float((weight**2).sum())
    return float(weight.sum()) ** 2 / squares if squares > 0 else 0.0


def select_sample(usable: npt.NDArray[np.bool_], weight: FloatArray | None, cluster: npt.NDArray[Any] | None) -> Sample:
    """Select the usable cases; the others are counted as dropped."""
    rows = np.flatnonzero(usable)
    weights = np.ones(rows.size) if weight is None else weight[rows]
    dropped = int(usable.size - rows.size)
    if cluster is None:
        return Sample(rows, weights, None, rows.size, dropped, dropped == 0)
    names, whole = cluster[rows], dropped == 0
    if (names[1:] < names[:-1]).any():
        whole = False
        order = np.argsort(names, kind="stable")
        rows, weights, names = rows[order], weights[order], names[order]
    numbers = _rising(names)
    return Sample(rows, weights, numbers, int(numbers[-1]) + 1 if rows.size else 0, dropped, whole)


def _rising(names: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    numbers = np.zeros(names.size, dtype=np.intp)
    np.cumsum(names[1:] != names[:-1], out=numbers[1:])
    return numbers


def numbers_of(names: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Numbers (n,) 0, 1, … of names in their order."""
    if (names[1:] < names[:-1]).any():
        return np.unique(names, return_inverse=True)[1]
    return _rising(names)


@dataclass(frozen=True)
class Inputs:
    """Checked label counts, probabilities, weights and clusters."""

    counts: IntArray
    probs: FloatArray
    weight: FloatArray | None
    cluster: npt.NDArray[np.generic] | None
    classes: list[str] | None = None

    @classmethod
    def of_scores(
        cls,
        label_counts: npt.ArrayLike,
        scores: npt.ArrayLike,
        name: str,
        sample_weight: npt.ArrayLike | None,
        cluster: npt.ArrayLike | None,
    ) -> "Inputs":
        """Check the inputs of estimators of one probability per case."""
        same_rows(**{"label_counts": label_counts, name: scores, "sample_weight": sample_weight, "cluster": cluster})
        counts = as_label_counts(label_counts)
        probs = as_vector(scores, len(counts), name, 0.0, 1.0)[:, None]
        return cls(counts, probs, check_weights(sample_weight, len(counts)), check_clusters(cluster, len(counts)))

    @classmethod
    def of_disagreement(
        cls,
        label_counts: npt.ArrayLike,
        disagreement_probs: npt.ArrayLike,
        sample_weight: npt.ArrayLike | None,
        cluster: npt.ArrayLike | None,
    ) -> "tuple[Inputs, FloatArray]":
        """Check the inputs of estimators of disagreement."""
        data = cls.of_scores(label_counts, disagreement_probs, "disagreement_probs", sample_weight, cluster)
        return replace(data, probs=class_frequencies(data.counts)), data.probs[:, 0]

    @cached_property
    def n_labels(self) -> IntArray:
        """Labels (N,) of each case."""
        return np.asarray(np.einsum("nk->n", self.counts))

    def frequencies(self, rows: slice | npt.NDArray[np.intp]) -> FloatArray:
        """Label frequencies μ̂ (n, K) of some cases."""
        return class_frequencies(self.counts[rows], self.n_labels[rows])

    def sample(self, min_labels: int) -> Sample:
        """Select the cases with that many labels."""
        return select_sample(self.n_labels >= min_labels, self.weight, self.cluster)


def check_inputs(
    label_counts: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    sample_weight: npt.ArrayLike | None,
    cluster: npt.ArrayLike | None,
    classes: list[str] | None = None,
) -> Inputs:
    """Check the inputs of an estimator; classes match by name."""
    same_rows(label_counts=label_counts, class_probs=class_probs, sample_weight=sample_weight, cluster=cluster)
    counted, predicted, names = by_class(label_counts, class_probs, classes)
    counts, probs = as_label_counts(counted), as_class_probs(predicted)
    if probs.shape != counts.shape:
        raise ValueError(f"class_probs {probs.shape} and label_counts {counts.shape} must have one shape")
    weights, clusters = check_weights(sample_weight, len(counts)), check_clusters(cluster, len(counts))
    return Inputs(counts, probs, weights, clusters, names)


def first_labels(
    data: Inputs, first_label_counts: npt.ArrayLike, class_probs: npt.ArrayLike, classes: list[str] | None
) -> Inputs:
    """Replace the labels of one-label estimators."""
    counted = as_label_counts(by_class(first_label_counts, class_probs, classes)[0])
    if counted.shape != data.counts.shape:
        raise ValueError(f"first_label_counts {counted.shape} and label_counts {data.counts.shape} must have one shape")
    more = counted > data.counts
    if more.any():
        strange = np.flatnonzero(more.any(axis=1))
        raise ValueError(
            f"first_label_counts must be some of label_counts, but row {strange[0]} has more labels of a class, "
            f"{strange.size} in all"
        )
    return replace(data, counts=counted)


def weights_by_order(sample_weight: SampleWeight) -> tuple[Any, Any]:
    """Weights of order 1, and of order 2 if given."""
    if isinstance(sample_weight, tuple) and not all(isinstance(part, int | float) for part in sample_weight):
        if len(sample_weight) != 2:
            raise ValueError(
                f"sample_weight must be (N,), or a pair for orders 1 and 2, got {len(sample_weight)} parts"
            )
        return sample_weight
    return sample_weight, None


def check_weights(sample_weight: npt.ArrayLike | None, length: int, name: str = "sample_weight") -> FloatArray | None:
    """Check instance weights (N,), not negative."""
    if sample_weight is None:
        return None
    return as_vector(sample_weight, length, name, 0.0, np.finfo(np.float64).max)


def check_both_orders(
    label_counts: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    sample_weight: SampleWeight,
    cluster: npt.ArrayLike | None,
    classes: list[str] | None = None,
    first_label_counts: npt.ArrayLike | None = None,
    **columns: npt.ArrayLike | None,
) -> tuple[Inputs, Inputs]:
    """Check the cases for estimators of one and of two labels."""
    weights, weights2 = weights_by_order(sample_weight)
    same_rows(
        **{"label_counts": label_counts, "class_probs": class_probs, "sample_weight": weights},
        **{"sample_weight[1]": weights2, "cluster": cluster, "first_label_counts": first_label_counts},
        **columns,
    )
    first = second = check_inputs(label_counts, class_probs, weights, cluster, classes)
    if weights2 is not None:
        second = replace(first, weight=check_weights(weights2, len(first.counts), "sample_weight[1]"))
    if first_label_counts is not None:
        first = first_labels(first, first_label_counts, class_probs, classes)
    return first, second


def check_clusters(cluster: npt.ArrayLike | None, length: int) -> npt.NDArray[np.generic] | None:
    """Check cluster names (N,)."""
    if cluster is None:
        return None
    names = np.asarray(cluster)
    if names.shape != (length,):
        raise ValueError(f"cluster must have shape ({length},), got {names.shape}")
    return names


def class_frequencies(label_counts: IntArray, n_labels: IntArray | None = None) -> FloatArray:
    """Class frequencies μ̂ = y / n (N, K); zero without labels."""
    totals = np.einsum("nk->n", label_counts) if n_labels is None else n_labels
    return np.asarray(label_counts / np.maximum(totals, 1)[:, None])


def squared_terms(label_counts: IntArray, class_probs: FloatArray) -> FloatArray:
    """Terms (N,) of L: Σ_k (μ̂ − z)² + μ̂(1 − μ̂)."""
    freqs = class_frequencies(label_counts)
    return np.asarray(((freqs - class_probs) ** 2 + freqs * (1 - freqs)).sum(axis=1))


def epistemic_terms(label_counts: IntArray, class_probs: FloatArray) -> FloatArray:
    """Terms (N, 2) of EL: plug-in, and corrected; n ≥ 2."""
    n_labels = np.einsum("nk->n", label_counts)
    freqs = class_frequencies(label_counts, n_labels)
    gap = freqs - class_probs
    plugin: FloatArray = np.einsum("nk,nk->n", gap, gap)
    correction = (1 - np.einsum("nk,nk->n", freqs, freqs)) / (n_labels - 1)
    return np.stack([plugin, plugin - correction], axis=1)


def observed_disagreement(label_counts: IntArray) -> FloatArray:
    """Share φ̂ (N,) of pairs of labels that differ; n ≥ 2."""
    totals = label_counts.sum(axis=1)
    same = (label_counts * (label_counts - 1)).sum(axis=1)
    return np.asarray((totals * (totals - 1) - same) / (totals * (totals - 1)))


@dataclass(frozen=True)
class Leaders:
    """Largest value, first and number of leaders of each row."""

    first: npt.NDArray[np.intp]
    largest: npt.NDArray[Any]
    equal: npt.NDArray[np.intp]

    @classmethod
    def of(cls, values: FloatArray | IntArray) -> "Leaders":
        """Leaders of the rows of values (N, K)."""
        # by columns: NumPy is slow on short rows
        columns = np.ascontiguousarray(values.T)
        n_classes, largest = len(columns), columns.max(axis=0)
        leading = columns == largest
        places = np.arange(n_classes, 0, -1, dtype=np.min_scalar_type(n_classes))
        first = n_classes - (leading * places[:, None]).max(axis=0).astype(np.intp)
        equal = np.add.reduce(leading, axis=0, dtype=places.dtype)
        return cls(first, largest, equal.astype(np.intp))

    def take(self, rows: slice | npt.NDArray[np.intp]) -> "Leaders":
        """Some of the rows."""
        return Leaders(self.first[rows], self.largest[rows], self.equal[rows])


def agreement_terms(freqs: FloatArray, class_probs: FloatArray, leaders: Leaders | None = None) -> FloatArray:
    """Share (N,) of labels that name the most probable class."""
    leaders = leaders or Leaders.of(class_probs)
    result = np.asarray(freqs[np.arange(len(freqs)), leaders.first], dtype=np.float64)
    tied = np.flatnonzero(leaders.equal > 1)
    leading = class_probs[tied] == leaders.largest[tied, None]
    result[tied] = np.where(leading, freqs[tied], 0.0).sum(axis=1) / leaders.equal[tied]
    return result


def accuracy_terms(
    label_counts: FloatArray | IntArray, class_probs: FloatArray, leaders: Leaders | None = None
) -> FloatArray:
    """Indicator (N,) that the leading classes agree."""
    leaders, most = leaders or Leaders.of(class_probs), Leaders.of(label_counts)
    named = label_counts[np.arange(len(label_counts)), leaders.first] == most.largest
    tied = np.flatnonzero(leaders.equal > 1)
    both = (class_probs[tied] == leaders.largest[tied, None]) & (label_counts[tied] == most.largest[tied, None])
    result = np.asarray(named / most.equal, dtype=np.float64)
    result[tied] = both.sum(axis=1) / (leaders.equal[tied] * most.equal[tied])
    return result


def statistic_terms(observed: FloatArray, predicted: FloatArray) -> FloatArray:
    """Squared-loss terms (û − p)² + û(1 − û) of an event."""
    return np.asarray((observed - predicted) ** 2 + observed * (1 - observed))


#: Means over cases, and the labels that a case needs for each.
MEANS = {
    "agreement": 1,
    "L": 1,
    "EL": 2,
    "EL_plugin": 2,
    "L_D": 2,
    "L_D_minus_max": 2,
    "L_D_minus_gini": 2,
    "accuracy": 3,
}


def case_terms(
    freqs: FloatArray, class_probs: FloatArray, gap: FloatArray, n_labels: IntArray | FloatArray, dpe: FloatArray
) -> dict[str, FloatArray]:
    """Terms (n,) of the ``MEANS``, and observed disagreement φ̂; of too few labels they mean nothing."""
    leaders, n = Leaders.of(class_probs), np.maximum(n_labels, 2)
    plugin, same, squares = (np.einsum("nk,nk->n", values, values) for values in (gap, freqs, class_probs))
    spread = 1 - same
    observed, hits = spread / (1 - 1 / n), np.zeros(len(freqs))
    loss, enough = statistic_terms(observed, dpe), n_labels >= 3
    many = slice(None) if enough.all() else np.flatnonzero(enough)
    hits[many] = accuracy_terms(freqs[many], class_probs[many], leaders.take(many))
    return {
        "agreement": agreement_terms(freqs, class_probs, leaders),
        "L": plugin + spread,
        "EL": plugin - spread / (n - 1),
        "EL_plugin": plugin,
        "L_D": loss,
        "L_D_minus_max": loss - statistic_terms(observed, 1 - leaders.largest),
        "L_D_minus_gini": loss - statistic_terms(observed, 1 - squares),
        "accuracy": hits,
        "disagreement": observed,
    }
