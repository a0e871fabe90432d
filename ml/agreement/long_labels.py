"""Labels in long form: memory grows with their number, not with cases × annotators."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array

from ml.util.arrays import IntArray


@dataclass(frozen=True)
class LongLabels:
    """Labels in the order of their cases.

    Attributes:
        case: (M,) number of each label's case, rising.
        annotator: (M,) number of who gave it.
        label: (M,) its class number.
        n_cases: N, with those that have no label.
        n_annotators: A.
        n_classes: K.
    """

    case: IntArray
    annotator: IntArray
    label: IntArray
    n_cases: int
    n_annotators: int
    n_classes: int

    @classmethod
    def of_matrix(cls, matrix: IntArray, n_classes: int) -> "LongLabels":
        """Take labels (N, A), −1 where there is none."""
        case, annotator = np.nonzero(matrix >= 0)
        n_cases, n_annotators = matrix.shape
        return cls(case, annotator, matrix[case, annotator], n_cases, n_annotators, n_classes)

    @classmethod
    def of_names(
        cls, case: IntArray, names: Sequence[str], label: IntArray, n_cases: int, n_classes: int
    ) -> tuple["LongLabels", list[str]]:
        """Take labels (M,) in any order, and name the annotators, sorted."""
        annotator_names, annotator = np.unique(np.array(names, dtype=object), return_inverse=True)
        order = np.argsort(case, kind="stable")
        long = cls(
            case[order], annotator[order].astype(np.int64), label[order], n_cases, len(annotator_names), n_classes
        )
        return long, [str(name) for name in annotator_names]

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
        flat = np.bincount(self.case * self.n_classes + self.label, minlength=self.n_cases * self.n_classes)
        return flat.reshape(self.n_cases, self.n_classes)
