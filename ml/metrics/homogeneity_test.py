"""Tests of annotators' use of classes and of the class mix."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.special import fdtrc, stdtrit

from ml.dataframes import same_rows
from ml.documents import named
from ml.messages import Message
from ml.metrics.cases import check_clusters
from ml.metrics.sums import sums_by_slot
from ml.util.arrays import FloatArray, IntArray

# random sign vectors computed together
_BLOCK = 64
#: p value at or below which annotators are called different, wherever that is said. Reports are looked at every day and
#: of every site: at .05 one laboratory in twenty whose annotators are alike would read that they are not.
DIFFERENT = 0.01


@dataclass(frozen=True)
class DependenceTest:
    """A test of the assumption that labels are independent given the image.

    Attributes:
        statistic: larger is stranger.
        p_value: probability of one as large or larger if the assumption is true.
        n: cases used.
    """

    statistic: float = field(metadata=named("chi2"))
    p_value: float
    n: int


def marginal_homogeneity_test(
    case: npt.ArrayLike,
    annotator: npt.ArrayLike,
    label: npt.ArrayLike,
    cluster: npt.ArrayLike | None = None,
    *,
    permutations: int = 999,
    seed: int = 0,
    up_to: float = 1.0,
) -> DependenceTest:
    """Test H0: annotators use the classes alike on shared cases.

    The statistic is χ² of the annotator × class table, in which each
    annotator is expected to have the case's label frequencies. The null
    distribution flips the sign of the differences of whole patients at
    random, so that the level holds for readings correlated in patients.

    Args:
        case: (M,) case number of each label, from 0.
        annotator: (M,) annotator number of each label, from 0.
        label: (M,) class number of each label, from 0.
        cluster: (M,) patient of each label's case.
        permutations: number of random sign vectors.
        seed: of the signs.
        up_to: p value beyond which no more signs are drawn, and p is a
            lower bound (Besag and Clifford 1991).

    Returns:
        The test; p is 1 if no case has two labels.

    Raises:
        ValueError: arrays of different lengths, or bad numbers.

    Source: wild cluster bootstrap, Cameron, Gelbach and Miller 2008.

    >>> marginal_homogeneity_test([0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0]).statistic
    0.0
    """
    same_rows(case=case, annotator=annotator, label=label, cluster=cluster)
    numbers = {"case": case, "annotator": annotator, "label": label}
    cases, annotators, labels = (_whole_numbers(values, name) for name, values in numbers.items())
    if not cases.shape == annotators.shape == labels.shape:
        shapes = ", ".join(str(values.shape) for values in (cases, annotators, labels))
        raise ValueError(f"case, annotator and label must have one length, got shapes {shapes}")
    patients = check_clusters(cluster, len(cases))
    several = np.bincount(cases)[cases] >= 2
    cases, annotators, labels = cases[several], annotators[several], labels[several]
    n_cases = np.unique(cases).size
    if n_cases == 0:
        return DependenceTest(0.0, 1.0, 0)
    groups = cases if patients is None else patients[several]
    numbers_of_groups = np.unique(groups, return_inverse=True)[1]
    differences, expected = _differences(cases, annotators, labels, numbers_of_groups)
    observed = float((differences.sum(axis=0) ** 2 / expected).sum())
    rng, larger = np.random.default_rng(seed), 0
    # a sign belongs to what a group says, not to its place or name
    differences = differences[np.argsort(differences @ rng.random(expected.size))]
    for start in range(0, permutations, _BLOCK):
        signs = rng.choice((-1.0, 1.0), (min(_BLOCK, permutations - start), differences.shape[0]))
        sums = np.asarray(signs @ differences)
        larger += int((np.einsum("bc,bc,c->b", sums, sums, 1 / expected) >= observed * (1 - 1e-9)).sum())
        if 1 + larger > up_to * (1 + permutations):
            break
    return DependenceTest(observed, (1 + larger) / (1 + permutations), n_cases)


def _whole_numbers(values: npt.ArrayLike, name: str) -> IntArray:
    numbers = np.asarray(values)
    if numbers.ndim != 1 or (numbers.size and (numbers.dtype.kind not in "iu" or numbers.min() < 0)):
        raise ValueError(f"{name} must be (M,) whole numbers from 0, got {numbers.dtype} of shape {numbers.shape}")
    return numbers.astype(np.int64, copy=False)


def differ(p_value: float) -> bool:
    """Whether annotators are called different."""
    return p_value <= DIFFERENT


def reader_warnings(case: IntArray, annotator: IntArray, label: IntArray, cluster: IntArray | None) -> list[str]:
    """Warn if annotators use the classes differently."""
    test = marginal_homogeneity_test(case, annotator, label, cluster, up_to=DIFFERENT)
    if not differ(test.p_value):
        return []
    return [
        Message(
            "annotators use the classes differently (p = {p_value:.3f}): the intervals apply to these annotators only",
            p_value=test.p_value,
        )
    ]


def _differences(
    case: IntArray, annotator: IntArray, label: IntArray, group: npt.NDArray[np.intp]
) -> tuple[csr_array, FloatArray]:
    """Counts less expectation (G, C), and expectations (C,)."""
    shape = (int(case.max()) + 1, int(label.max()) + 1)
    # an annotator is expected to have the case's label frequencies
    shares = csr_array((1 / np.bincount(case)[case], (case, label)), shape=shape)[case].tocoo()
    row, class_number = shares.coords
    cell = np.concatenate([annotator * shape[1] + label, annotator[row] * shape[1] + class_number])
    cells, column = np.unique(cell, return_inverse=True)
    values = np.concatenate([np.ones(case.size), -shares.data])
    table = csr_array((values, (np.concatenate([group, group[row]]), column)), shape=(int(group.max()) + 1, cells.size))
    return table, sums_by_slot(column[case.size :], shares.data, cells.size)


@dataclass(frozen=True)
class ClassMixChange:
    """Shares of the classes compared with those of a reference."""

    distance: float  # total variation ½ Σ |p_k − r_k|, in [0, 1]
    p_value: float | None  # None with fewer than two clusters
    n_clusters: int  # patients
    design_effect: float | None  # variance over that of independent labels


def mix_change_of_patients(sums: FloatArray, reference_share: FloatArray, n_reference: float) -> ClassMixChange:
    """Compare class mixes by the Rao–Scott test (1984)."""
    n_clusters, n_cases = len(sums), sums @ np.ones(sums.shape[1])
    n = float(n_cases.sum())
    share = np.ones(n_clusters) @ sums / n
    distance = float(np.abs(share - reference_share).sum() / 2)
    occurs = share + reference_share > 0
    if n_clusters < 2 or occurs.sum() < 2:
        return ClassMixChange(distance, None, n_clusters, None)
    moved = sums[:, occurs] - n_cases[:, None] * share[occurs]
    clustered = n_clusters / (n_clusters - 1) * moved.T @ moved / n**2
    before = reference_share[occurs]
    pooled = (n * share[occurs] + n_reference * before) / (n + n_reference)
    # variances of independent labels
    independent = np.diag(pooled) - np.outer(pooled, pooled)
    design_effect = float(np.trace(clustered) / (np.trace(independent) / n))
    covariance = clustered + independent * max(design_effect, 1.0) / n_reference
    scaled = covariance / np.sqrt(np.outer(pooled, pooled))
    mean, square = float(np.trace(scaled)), float((scaled**2).sum())
    freedom = mean**2 / square
    statistic = float((np.square(share[occurs] - before) / pooled).sum()) / mean
    chance = float(fdtrc(freedom, freedom * (n_clusters - 1), statistic))
    return ClassMixChange(distance, chance, n_clusters, design_effect)


# of Dir(κ m): as many cells of the reference's mix, and the steps and cells that are enough
_KAPPA, _STEPS, _ENOUGH = 2.0, 200, 5_000


@dataclass(frozen=True)
class EstimatedMix:
    """Class mix of unlabelled cases less that of a reference; 95 % intervals that hold for all classes together."""

    change: FloatArray  # (K,) of the share
    low: FloatArray  # (K,)
    high: FloatArray  # (K,)


def estimate_mix_change(
    class_probs: FloatArray, cluster: IntArray, reference_share: FloatArray, n_reference: float
) -> EstimatedMix | None:
    """Estimate the change of the class mix from predictions (N, K); None with fewer than two patients.

    Expectation–maximisation under label shift (Saerens, Latinne and Decaestecker 2002) with a prior Dir(κ m), and a
    variance between patients around its maximum.
    """
    kept = slice(None, None, 1 + len(cluster) // _ENOUGH)
    m = (n_reference * reference_share + 1 / len(reference_share)) / (n_reference + 1)
    ratio, numbers = class_probs[kept] / m, np.unique(cluster[kept], return_inverse=True)[1]
    n, n_clusters = len(ratio), int(numbers.max(initial=-1)) + 1
    if n_clusters < 2:
        return None
    share = m
    for _ in range(_STEPS):
        share, before = (share * ((ratio / (ratio @ share)[:, None]).sum(axis=0)) + _KAPPA * m) / (n + _KAPPA), share
        if np.abs(share - before).max() < 1e-6:
            break
    score = ratio / (ratio @ share)[:, None]
    inverse = np.linalg.inv(score.T @ score + np.diag(_KAPPA * m / share**2))
    moved = inverse.sum(axis=1)
    inverse -= np.outer(moved, moved) / moved.sum()  # shares sum to one
    per_patient = np.zeros((n_clusters, len(m)))
    np.add.at(per_patient, numbers, score - 1)
    variance = n_clusters / (n_clusters - 1) * ((per_patient @ inverse) ** 2).sum(axis=0) + m * (1 - m) / n_reference
    half = float(stdtrit(n_clusters - 1, 1 - 0.025 / len(m))) * np.sqrt(variance)
    change = share - m
    return EstimatedMix(change, np.maximum(change - half, -m), np.minimum(change + half, 1 - m))
