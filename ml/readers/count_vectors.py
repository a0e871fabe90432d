"""Vectors of counts: in how many ways n opinions can fall into K classes, order aside."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement
from math import comb

import numpy as np
import numpy.typing as npt

from ml.arrays import IntArray


def n_count_vectors(n_opinions: int, n_classes: int) -> int:
    """Number C(n + K − 1, n) of count vectors.

    >>> n_count_vectors(3, 8)
    120
    """
    return comb(n_opinions + n_classes - 1, n_opinions)


@dataclass(frozen=True)
class CountVectors:
    """All count vectors of n opinions.

    Attributes:
        counts: (S, K) the vectors.
        following: (S, K) number, among the vectors of n + 1 opinions, of each with one more of a class.
    """

    counts: IntArray
    following: npt.NDArray[np.intp]


@lru_cache(maxsize=64)
def count_vectors(n_opinions: int, n_classes: int) -> CountVectors:
    """All count vectors of n opinions in K classes.

    >>> count_vectors(1, 2).counts
    array([[1, 0],
           [0, 1]])
    """
    chosen = list(combinations_with_replacement(range(n_classes), n_opinions))
    number = {
        classes: row for row, classes in enumerate(combinations_with_replacement(range(n_classes), n_opinions + 1))
    }
    counts = np.zeros((len(chosen), n_classes), dtype=np.int64)
    following = np.zeros((len(chosen), n_classes), dtype=np.intp)
    for row, classes in enumerate(chosen):
        for k in classes:
            counts[row, k] += 1
        following[row] = [number[tuple(sorted((*classes, k)))] for k in range(n_classes)]
    return CountVectors(counts, following)
