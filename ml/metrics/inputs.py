"""Validation of estimator arguments, once, in the public function."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ml.dataframes import by_class, same_rows
from ml.metrics.jackknife import Sample, select_sample
from ml.util.arrays import FloatArray, IntArray, as_class_probs, as_label_counts, as_vector


@dataclass(frozen=True)
class Inputs:
    """Checked label counts (N, K), probabilities (N, K), weights (N,), clusters (N,) and, if known, class names."""

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
        """Check what estimators of one probability per case take; it is the only column of ``probs``.

        Raises:
            ValueError: shapes that do not match, or values out of range.
        """
        same_rows(**{"label_counts": label_counts, name: scores, "sample_weight": sample_weight, "cluster": cluster})
        counts = as_label_counts(label_counts)
        probs = as_vector(scores, len(counts), name, 0.0, 1.0)[:, None]
        return cls(counts, probs, check_weights(sample_weight, len(counts)), check_clusters(cluster, len(counts)))

    @cached_property
    def n_labels(self) -> IntArray:
        """Labels (N,) of each case."""
        return np.asarray(np.einsum("nk->n", self.counts))

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
    """Check what every estimator takes; columns of tables are matched by class name.

    Raises:
        ValueError: shapes or names that do not match, or values out of range.
    """
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
    """Inputs of one-label estimators, where these are not all labels.

    Args:
        data: of all labels.
        first_label_counts: (N, K) those of the labels that are used.
        class_probs: (N, K) as they were given, to match columns by name.
        classes: K names.

    Raises:
        ValueError: another shape or other names, or a label that is not among all.
    """
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


def check_weights(sample_weight: npt.ArrayLike | None, length: int) -> FloatArray | None:
    """Check instance weights (N,), not negative."""
    if sample_weight is None:
        return None
    return as_vector(sample_weight, length, "sample_weight", 0.0, np.finfo(np.float64).max)


def check_clusters(cluster: npt.ArrayLike | None, length: int) -> npt.NDArray[np.generic] | None:
    """Check cluster names (N,).

    Raises:
        ValueError: another shape.
    """
    if cluster is None:
        return None
    names = np.asarray(cluster)
    if names.shape != (length,):
        raise ValueError(f"cluster must have shape ({length},), got {names.shape}")
    return names
