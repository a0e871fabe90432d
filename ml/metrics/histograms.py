"""Per-case statistics of label histograms: U-statistics whose means are the label-histogram metrics."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ml.util.arrays import FloatArray, IntArray


def class_frequencies(label_counts: IntArray, n_labels: IntArray | None = None) -> FloatArray:
    """Empirical class frequencies μ̂ = y / n (N, K), n (N,) counted where it is not known; zero rows without a label."""
    totals = np.einsum("nk->n", label_counts) if n_labels is None else n_labels
    return np.asarray(label_counts / np.maximum(totals, 1)[:, None])


def squared_terms(label_counts: IntArray, class_probs: FloatArray) -> FloatArray:
    """Terms (N, K) of L: (μ̂ − z)² + μ̂(1 − μ̂), the mean squared loss over the case's own labels."""
    freqs = class_frequencies(label_counts)
    return np.asarray((freqs - class_probs) ** 2 + freqs * (1 - freqs))


def epistemic_terms(label_counts: IntArray, class_probs: FloatArray, debias: bool) -> FloatArray:
    """Terms (N, K) of EL: (μ̂ − z)² − μ̂(1 − μ̂)/(n − 1), or without the correction; n ≥ 2."""
    freqs = class_frequencies(label_counts)
    plugin: FloatArray = (freqs - class_probs) ** 2
    if not debias:
        return plugin
    return np.asarray(plugin - freqs * (1 - freqs) / (label_counts.sum(axis=1, keepdims=True) - 1))


def epistemic_sums(label_counts: IntArray, class_probs: FloatArray) -> FloatArray:
    """The same summed over the classes (N, 2): without the correction and with it."""
    n_labels = np.einsum("nk->n", label_counts)
    freqs = class_frequencies(label_counts, n_labels)
    gap = freqs - class_probs
    plugin: FloatArray = np.einsum("nk,nk->n", gap, gap)
    correction = (1 - np.einsum("nk,nk->n", freqs, freqs)) / (n_labels - 1)
    return np.stack([plugin, plugin - correction], axis=1)


def observed_disagreement(label_counts: IntArray) -> FloatArray:
    """Share φ̂ (N,) of pairs of a case's labels that differ, 1 − Σ y(y − 1)/(n(n − 1)); n ≥ 2.

    >>> observed_disagreement(np.array([[2, 1], [2, 0]])).round(3)
    array([0.667, 0.   ])
    """
    totals = label_counts.sum(axis=1)
    same = (label_counts * (label_counts - 1)).sum(axis=1)
    return np.asarray((totals * (totals - 1) - same) / (totals * (totals - 1)))


@dataclass(frozen=True)
class Leaders:
    """Largest value of each row (N,), the first class that has it (N,), and how many classes have it (N,)."""

    first: npt.NDArray[np.intp]
    largest: npt.NDArray[Any]
    equal: npt.NDArray[np.intp]

    @classmethod
    def of(cls, values: FloatArray | IntArray) -> "Leaders":
        """Leaders of the rows of values (N, K).

        >>> Leaders.of(np.array([[0.5, 0.5, 0.0], [0.2, 0.1, 0.7]])).equal
        array([2, 1])
        """
        # by columns: along rows as short as these are, NumPy takes longer to begin than to compare
        columns = np.ascontiguousarray(values.T)
        n_classes, largest = len(columns), columns.max(axis=0)
        leading = columns == largest
        places = np.arange(n_classes, 0, -1, dtype=np.min_scalar_type(n_classes))  # one byte, as a rule
        first = n_classes - (leading * places[:, None]).max(axis=0).astype(np.intp)
        equal = np.add.reduce(leading, axis=0, dtype=places.dtype)
        return cls(first, largest, equal.astype(np.intp))

    def take(self, rows: slice | npt.NDArray[np.intp]) -> "Leaders":
        """Some of the rows."""
        return Leaders(self.first[rows], self.largest[rows], self.equal[rows])


def agreement_terms(freqs: FloatArray, class_probs: FloatArray, leaders: Leaders | None = None) -> FloatArray:
    """Share (N,) of a case's labels, by their frequencies (N, K), that name the most probable class; leaders share."""
    leaders = leaders or Leaders.of(class_probs)
    result = np.asarray(freqs[np.arange(len(freqs)), leaders.first], dtype=np.float64)
    tied = np.flatnonzero(leaders.equal > 1)
    leading = class_probs[tied] == leaders.largest[tied, None]
    result[tied] = np.where(leading, freqs[tied], 0.0).sum(axis=1) / leaders.equal[tied]
    return result


def accuracy_terms(
    label_counts: FloatArray | IntArray, class_probs: FloatArray, leaders: Leaders | None = None
) -> FloatArray:
    """Indicator (N,) that the most probable class is the most frequent label; ties share."""
    leaders, most = leaders or Leaders.of(class_probs), Leaders.of(label_counts)
    named = label_counts[np.arange(len(label_counts)), leaders.first] == most.largest
    tied = np.flatnonzero(leaders.equal > 1)
    both = (class_probs[tied] == leaders.largest[tied, None]) & (label_counts[tied] == most.largest[tied, None])
    result = np.asarray(named / most.equal, dtype=np.float64)
    result[tied] = both.sum(axis=1) / (leaders.equal[tied] * most.equal[tied])
    return result


def statistic_terms(observed: FloatArray, predicted: FloatArray) -> FloatArray:
    """Terms (N,) of the squared loss for a binary event: (û − p)² + û(1 − û), û its U-statistic."""
    return np.asarray((observed - predicted) ** 2 + observed * (1 - observed))


@dataclass(frozen=True)
class CaseTerms:
    """Per-case terms (n,) of the means, for cases with at least one label.

    Attributes:
        n_labels: labels of a case.
        plugin: plug-in terms of EL, Σ_k (μ̂ − z)².
        spread: Σ_k μ̂(1 − μ̂).
        agreement: share of the case's labels that name the most probable class; equal leaders share.
        hits: whether the most probable class is the most frequent label, equal leaders sharing on both sides; 0 below
            three labels.
        max_rule: 1 − max f, the chance that a label is not the most probable class.
        gini_rule: 1 − Σf², the quadratic entropy, the chance that two labels differ if f were the truth.
    """

    n_labels: FloatArray
    plugin: FloatArray
    spread: FloatArray
    agreement: FloatArray
    hits: FloatArray
    max_rule: FloatArray
    gini_rule: FloatArray

    @classmethod
    def of(
        cls,
        label_counts: IntArray,
        class_probs: FloatArray,
        freqs: FloatArray,
        gap: FloatArray,
        totals: IntArray | None = None,
    ) -> "CaseTerms":
        """Terms of cases.

        Args:
            label_counts: (n, K).
            class_probs: z (n, K).
            freqs: μ̂ (n, K).
            gap: μ̂ − z (n, K).
            totals: labels (n,) of each case; counted where they are not known.
        """
        n_labels = (np.einsum("nk->n", label_counts) if totals is None else totals).astype(np.float64)
        hits, enough = np.zeros(len(label_counts)), n_labels >= 3
        many = slice(None) if enough.all() else np.flatnonzero(enough)  # a slice copies nothing
        leaders = Leaders.of(class_probs)
        hits[many] = accuracy_terms(label_counts[many], class_probs[many], leaders.take(many))
        return cls(
            n_labels=n_labels,
            plugin=np.einsum("nk,nk->n", gap, gap),
            spread=1 - np.einsum("nk,nk->n", freqs, freqs),
            agreement=agreement_terms(freqs, class_probs, leaders),
            hits=hits,
            max_rule=1 - leaders.largest,
            gini_rule=1 - np.einsum("nk,nk->n", class_probs, class_probs),
        )

    @classmethod
    def joined(cls, parts: Sequence["CaseTerms"]) -> "CaseTerms":
        """Terms of consecutive cases as one."""
        return cls(*(np.concatenate([np.empty(0), *(getattr(p, f.name) for p in parts)]) for f in fields(cls)))

    def simple_rules(self) -> dict[str, FloatArray]:
        """Disagreement probabilities that class probabilities alone suggest, by name: what a head must beat."""
        return {"max": self.max_rule, "gini": self.gini_rule}

    @cached_property
    def loss(self) -> FloatArray:
        """Terms of L."""
        return self.plugin + self.spread

    @cached_property
    def epistemic(self) -> FloatArray:
        """Terms of EL, unbiased; n ≥ 2 labels."""
        return self.plugin - self.spread / (self.n_labels - 1)

    @cached_property
    def observed_disagreement(self) -> FloatArray:
        """Share φ̂ of pairs of a case's labels that differ; n ≥ 2 labels."""
        return self.spread * self.n_labels / (self.n_labels - 1)
