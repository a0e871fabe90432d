"""Whether annotators use the classes alike, by what they said of the same cases; clustered by patient."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from ml.arrays import FloatArray, IntArray
from ml.messages import Message
from ml.metrics.binning import sums_by_slot

# flips that are worked on at once
_BLOCK = 64
#: p value at or below which annotators are called different, wherever that is said. Reports are looked at every day and
#: of every site: at .05 one laboratory in twenty whose annotators are alike would read that they are not.
DIFFERENT = 0.01


class ReaderTest(NamedTuple):
    """χ² of the annotator × class table, its p value, and the number of cases that two annotators labelled."""

    statistic: float
    p_value: float
    n: int


def reader_test(
    case: IntArray,
    annotator: IntArray,
    label: IntArray,
    cluster: IntArray | None = None,
    *,
    permutations: int = 999,
    seed: int = 0,
    up_to: float = 1.0,
) -> ReaderTest:
    """Test whether annotators use the classes alike, where readings of one patient's cases may hang together.

    Each label is compared with what all labels of its case say: annotator × class counts less their expectation, which
    is zero on average where annotators are alike. How far the sums are from zero by chance is told by turning the
    signs of whole patients at random (of cases, where there are none): of two annotators that is who is who, in all
    cases of the patient at once. Permuting case by case instead takes readings of one patient for independent, and
    calls annotators different who are not: one who sees one class more in one patient and less in another.

    Args:
        case: (M,) number of each label's case.
        annotator: (M,) number of who gave it.
        label: (M,) its class number.
        cluster: (M,) number of its patient.
        permutations: random signs that the sums are compared with.
        seed: of the signs.
        up_to: p values that are told apart; once p is surely larger, nothing more is drawn.

    Returns:
        The test; p is 1 where no two annotators share a case, and a lower bound of itself beyond ``up_to``.

    Source: wild cluster bootstrap with Rademacher weights, Cameron, Gelbach and Miller 2008; stopping, Besag and
    Clifford 1991.
    """
    several = np.bincount(case)[case] >= 2
    case, annotator, label = case[several], annotator[several], label[several]
    n_cases = np.unique(case).size
    if n_cases == 0:
        return ReaderTest(0.0, 1.0, 0)
    groups = case if cluster is None else cluster[several]
    differences, expected = _differences(case, annotator, label, _as_they_come(groups))
    observed = float((differences.sum(axis=0) ** 2 / expected).sum())
    rng, larger = np.random.default_rng(seed), 0
    for start in range(0, permutations, _BLOCK):
        signs = rng.choice((-1.0, 1.0), (min(_BLOCK, permutations - start), differences.shape[0]))
        sums = np.asarray(signs @ differences)
        larger += int((np.einsum("bc,bc,c->b", sums, sums, 1 / expected) >= observed * (1 - 1e-9)).sum())
        if 1 + larger > up_to * (1 + permutations):
            break
    return ReaderTest(observed, (1 + larger) / (1 + permutations), n_cases)


def differ(p_value: float) -> bool:
    """Whether annotators are called different.

    >>> differ(0.01), differ(0.011)
    (True, False)
    """
    return p_value <= DIFFERENT


def reader_warnings(case: IntArray, annotator: IntArray, label: IntArray, cluster: IntArray | None) -> list[str]:
    """A warning where annotators use the classes differently; arguments as in ``reader_test``."""
    test = reader_test(case, annotator, label, cluster, up_to=DIFFERENT)
    if not differ(test.p_value):
        return []
    return [
        Message(
            "annotators use the classes differently (p = {p_value:.3f}): the intervals, which leave "
            "out cases, speak for these annotators, not for others",
            p_value=test.p_value,
        )
    ]


def _as_they_come(groups: IntArray) -> npt.NDArray[np.intp]:
    """Number groups (M,) by their first rows, so that the signs do not depend on what patients are called."""
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[inverse])


def _differences(
    case: IntArray, annotator: IntArray, label: IntArray, group: npt.NDArray[np.intp]
) -> tuple[csr_array, FloatArray]:
    """Counts less expectation (G, C) of each group, and expectations (C,), for each annotator and class that occur."""
    shape = (int(case.max()) + 1, int(label.max()) + 1)
    # each annotator of a case is expected to say what all labels of the case say on average
    shares = csr_array((1 / np.bincount(case)[case], (case, label)), shape=shape)[case].tocoo()
    row, class_number = shares.coords
    cell = np.concatenate([annotator * shape[1] + label, annotator[row] * shape[1] + class_number])
    cells, column = np.unique(cell, return_inverse=True)
    values = np.concatenate([np.ones(case.size), -shares.data])
    table = csr_array((values, (np.concatenate([group, group[row]]), column)), shape=(int(group.max()) + 1, cells.size))
    return table, sums_by_slot(column[case.size :], shares.data, cells.size)
