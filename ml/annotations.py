"""Labels of cases with their annotators."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from ml.util.arrays import EqualByValue, IntArray


@dataclass(frozen=True, eq=False)
class Annotations(EqualByValue):
    """M labels by A annotators of N cases in K classes, or histograms.

    Attributes:
        case: (M,) number of each label's case; of histograms (N,) that of each histogram.
        annotator: (M,) number of who gave it; empty with histograms.
        label: (M,) its class number; empty with histograms.
        n_cases: N, with those that have no label.
        n_annotators: A.
        n_classes: K.
        case_ids: (N,) identifiers of the cases; empty if they have numbers only.
        annotators: (A,) names of the annotators; empty if they have numbers only.
        classes: (K,) names of the classes; empty if they have numbers only.
        histograms: (N, K) counts of a table that names no annotators.
        columns: further columns of the table by name, with a value per number in ``case``.

    >>> labels = Annotations.of_matrix(np.array([[0, 1, -1], [1, 1, 0]]), 2)
    >>> labels.counts().tolist(), labels.per_case.tolist()
    ([[1, 1], [1, 2]], [2, 3])
    """

    case: IntArray
    annotator: IntArray
    label: IntArray
    n_cases: int
    n_annotators: int
    n_classes: int
    case_ids: tuple[str, ...] = ()
    annotators: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    histograms: IntArray | None = None
    columns: dict[str, list[Any]] = field(default_factory=dict)

    @classmethod
    def of_matrix(cls, matrix: IntArray, n_classes: int) -> "Annotations":
        """Take labels (N, A), −1 if there is none."""
        case, annotator = np.nonzero(matrix >= 0)
        n_cases, n_annotators = matrix.shape
        return cls(case, annotator, matrix[case, annotator], n_cases, n_annotators, n_classes)

    @classmethod
    def of_names(
        cls, case: IntArray, names: Sequence[str], label: IntArray, n_cases: int, n_classes: int
    ) -> "Annotations":
        """Number annotators of labels (M,) by name, and sort by case."""
        annotators, annotator = np.unique(np.array(names, dtype=object), return_inverse=True)
        numbers = (case, annotator.astype(np.int64), label)
        return cls(*numbers, n_cases, len(annotators), n_classes, annotators=tuple(annotators.tolist())).by_case()

    def by_case(self) -> "Annotations":
        """Labels in the order of their cases, without further columns."""
        order = np.argsort(self.case, kind="stable")
        annotator, label = self.annotator[order], self.label[order]
        return replace(self, case=self.case[order], annotator=annotator, label=label, columns={})

    def renumbered(self, place: IntArray, n_cases: int) -> "Annotations":
        """Labels under the case numbers ``place`` (N,), −1 to leave out."""
        case = place[self.case]
        kept = case >= 0
        annotator, label = self.annotator[kept], self.label[kept]
        return replace(self, case=case[kept], annotator=annotator, label=label, n_cases=n_cases, case_ids=())

    @cached_property
    def per_case(self) -> IntArray:
        """Number of labels (N,) of each case."""
        return np.bincount(self.case, minlength=self.n_cases)

    @cached_property
    def shares(self) -> csr_array:
        """(A, A) number of cases that two annotators both labelled."""
        ones = np.ones(self.case.size, dtype=np.int32)
        presence = csr_array((ones, (self.case, self.annotator)), shape=(self.n_cases, self.n_annotators))
        return csr_array(presence.T @ presence)

    @cached_property
    def one_hot(self) -> csr_array:
        """(N, A·K) ones where an annotator gave a case a class."""
        column = self.annotator * self.n_classes + self.label
        shape = (self.n_cases, self.n_annotators * self.n_classes)
        return csr_array((np.ones(self.case.size), (self.case, column)), shape=shape)

    def counts(self) -> IntArray:
        """Label histograms (N, K)."""
        if self.histograms is not None:
            return self.histograms
        flat = np.bincount(self.case * self.n_classes + self.label, minlength=self.n_cases * self.n_classes)
        return flat.reshape(self.n_cases, self.n_classes)

    def labelled_cases(self) -> list[str]:
        """Names of the cases with a label."""
        return list(compress(self.case_ids, self.counts().sum(axis=1) > 0))
