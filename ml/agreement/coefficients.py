"""How well annotators agree: Cohen, Fleiss and Krippendorff coefficients with jackknife intervals.

Labels come as a matrix (N, A): the class number that each of A annotators gave each case, −1 where there is
none. Coefficients are ratios of sums over cases, so leaving a case (or a patient) out is a subtraction.

Sources: Cohen 1960; Fleiss 1971; Krippendorff, "Computing Krippendorff's Alpha-Reliability", 2011.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr

from ml.arrays import FloatArray, IntArray, as_label_counts
from ml.distributions.families import gini
from ml.metrics.histograms import observed_disagreement
from ml.metrics.inputs import check_clusters, check_inputs
from ml.metrics.jackknife import Estimate, Replicates, Sample, mean_replicates, select, to_estimate
from ml.named_columns import same_rows, values_of

Level = Literal["nominal", "ordinal"]


def as_label_matrix(labels: npt.ArrayLike, n_classes: int) -> IntArray:
    """Check labels (N, A) with values −1 to K − 1 and return them as int64.

    Raises:
        ValueError: another shape, or a value out of range.
    """
    matrix = np.asarray(labels)
    if matrix.ndim != 2 or matrix.dtype.kind not in "iu":
        raise ValueError(f"labels must be whole numbers of shape (N, A), got {matrix.dtype} {matrix.shape}")
    if ((matrix < -1) | (matrix >= n_classes)).any():
        raise ValueError(f"labels must lie in -1 to {n_classes - 1}, got {matrix.min()} to {matrix.max()}")
    return matrix.astype(np.int64, copy=False)


def count_matrix(labels: IntArray, n_classes: int) -> IntArray:
    """Label histograms (N, K) of a label matrix."""
    return np.asarray((labels[..., None] == np.arange(n_classes)).sum(axis=1), dtype=np.int64)


def _coefficient(observed: FloatArray, expected: FloatArray) -> FloatArray:
    """1 − D_o / D_e; NaN where no disagreement could be expected, because one class only occurs."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(expected > 0, 1 - observed / expected, np.nan))


def _ordinal_distances(totals: FloatArray) -> FloatArray:
    """Squared ordinal distances (..., K, K) between classes for their numbers of labels (..., K)."""
    before = totals.cumsum(axis=-1) - totals / 2
    return np.asarray((before[..., :, None] - before[..., None, :]) ** 2)


def _alpha(coincidences: FloatArray, level: Level) -> FloatArray:
    """Krippendorff's alpha of coincidence matrices (..., K, K)."""
    totals = coincidences.sum(axis=-1)
    n = totals.sum(axis=-1)
    nominal = 1.0 - np.eye(coincidences.shape[-1])
    distances = _ordinal_distances(totals) if level == "ordinal" else nominal
    observed = (coincidences * distances).sum(axis=(-2, -1))
    expected = (totals[..., :, None] * totals[..., None, :] * distances).sum(axis=(-2, -1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return _coefficient(observed, expected / (n - 1))


def krippendorff_alpha(
    label_counts: npt.ArrayLike, *, level: Level = "nominal", cluster: npt.ArrayLike | None = None
) -> Estimate:
    """Krippendorff's alpha for any number of annotators, with absent labels.

    Args:
        label_counts: (N, K) label histograms; for ``ordinal`` the classes are in order.
        level: ``nominal`` or ``ordinal``.
        cluster: (N,) patient of each case.

    Returns:
        1 for perfect agreement, 0 for what chance would give; NaN where one class only occurs.

    Raises:
        ValueError: an unknown level, or bad counts.

    >>> round(krippendorff_alpha([[3, 0], [1, 2], [0, 3], [2, 0]]).value, 3)
    0.667
    """
    if level not in {"nominal", "ordinal"}:
        raise ValueError(f"level must be 'nominal' or 'ordinal', got {level!r}")
    same_rows(label_counts=label_counts, cluster=cluster)
    # an ordinal scale is the order of the columns, so only an array can say it
    counts = as_label_counts(label_counts if level == "ordinal" else values_of(label_counts, "label_counts"))
    sample = select(counts.sum(axis=1) >= 2, None, check_clusters(cluster, len(counts)))
    y = counts[sample.rows].astype(np.float64)
    spare = (y.sum(axis=1) - 1)[:, None, None]
    pairs = (y[:, :, None] * y[:, None, :] - y[:, :, None] * np.eye(y.shape[1])) / spare
    parts = _per_cluster(pairs, sample)
    total = parts.sum(axis=0)
    return _estimate(float(_alpha(total, level)), _alpha(total - parts, level), sample)


def _per_cluster(parts: FloatArray, sample: Sample) -> FloatArray:
    """Add up the parts (n, …) of each cluster."""
    if sample.cluster is None:
        return parts
    summed = np.zeros((sample.n_clusters, *parts.shape[1:]))
    np.add.at(summed, sample.cluster, parts)
    return summed


def _estimate(value: float, without: FloatArray, sample: Sample) -> Estimate:
    return to_estimate(Replicates(value, without), sample)


def fleiss_kappa(label_counts: npt.ArrayLike, *, cluster: npt.ArrayLike | None = None) -> Estimate:
    """Fleiss' kappa for a fixed number of annotators per case.

    Args:
        label_counts: (N, K) label histograms, each with the same number n ≥ 2 of labels.
        cluster: (N,) patient of each case.

    Returns:
        The coefficient.

    Raises:
        ValueError: cases with different numbers of labels (use Krippendorff's alpha), or fewer than two.

    >>> round(fleiss_kappa([[3, 0], [1, 2], [0, 3]]).value, 2)
    0.55
    """
    same_rows(label_counts=label_counts, cluster=cluster)
    counts = as_label_counts(values_of(label_counts, "label_counts"))
    sizes = np.unique(counts.sum(axis=1))
    if sizes.size != 1 or sizes[0] < 2:
        raise ValueError(
            f"Fleiss' kappa needs the same number of labels per case, at least two, got {sizes[:5].tolist()}; "
            "Krippendorff's alpha takes any numbers"
        )
    sample = select(np.ones(len(counts), dtype=bool), None, check_clusters(cluster, len(counts)))
    n = float(sizes[0])
    agree = ((counts * (counts - 1)).sum(axis=1) / (n * (n - 1)))[:, None]
    parts = _per_cluster(np.concatenate([agree, counts, np.ones_like(agree)], axis=1)[sample.rows], sample)

    def kappa(sums: FloatArray) -> FloatArray:
        cases = sums[..., -1]
        shares = sums[..., 1:-1] / (n * cases)[..., None]
        return _coefficient(1 - sums[..., 0] / cases, 1 - (shares**2).sum(axis=-1))

    total = parts.sum(axis=0)
    return _estimate(float(kappa(total)), kappa(total - parts), sample)


def cohen_kappa(
    first: npt.ArrayLike, second: npt.ArrayLike, n_classes: int, *, cluster: npt.ArrayLike | None = None
) -> Estimate:
    """Cohen's kappa of two annotators, over the cases that both labelled.

    Args:
        first: (N,) class numbers, −1 where there is none.
        second: (N,) the same of the other annotator.
        n_classes: K.
        cluster: (N,) patient of each case.

    Returns:
        The coefficient; NaN where both use one and the same class only, or share no case.

    Raises:
        ValueError: shapes that differ, or values out of range.

    >>> cohen_kappa([0, 1, 1, 0], [0, 1, 0, 0], n_classes=2).value
    0.5
    """
    same_rows(first=first, second=second, cluster=cluster)
    a, b = np.asarray(first), np.asarray(second)
    if a.shape != b.shape:
        raise ValueError(f"both annotators' labels must have one shape, got {a.shape} and {b.shape}")
    matrix = as_label_matrix(np.stack([a, b], axis=-1), n_classes)
    sample = select(np.asarray((matrix >= 0).all(axis=1)), None, check_clusters(cluster, len(matrix)))
    one_hot = np.eye(n_classes)[matrix[sample.rows]]
    tables = _per_cluster(one_hot[:, 0, :, None] * one_hot[:, 1, None, :], sample)

    def kappa(table: FloatArray) -> FloatArray:
        n = np.maximum(table.sum(axis=(-2, -1)), 1.0)
        rows, columns = table.sum(axis=-1), table.sum(axis=-2)
        agreement = np.trace(table, axis1=-2, axis2=-1)
        return _coefficient(1 - agreement / n, 1 - (rows * columns).sum(axis=-1) / n**2)

    total = tables.sum(axis=0)
    return _estimate(float(kappa(total)), kappa(total - tables), sample)


@dataclass(frozen=True)
class DependenceTest:
    """A test of the assumption that labels are independent given the image.

    Attributes:
        statistic: larger is stranger.
        p_value: probability of one as large or larger if the assumption is true.
        n: cases used.
    """

    statistic: float
    p_value: float
    n: int


def rater_marginal_test(
    labels: npt.ArrayLike, n_classes: int, *, permutations: int = 999, seed: int = 0
) -> DependenceTest:
    """Test whether annotators use the classes alike, by permuting their identities within cases.

    Args:
        labels: (N, A) label matrix.
        n_classes: K.
        permutations: number of random permutations.
        seed: of the permutations.

    Returns:
        χ² of the annotator × class table against what the cases' histograms lead to expect.
    """
    matrix = as_label_matrix(labels, n_classes)
    matrix = matrix[(matrix >= 0).sum(axis=1) >= 2]
    present = matrix >= 0
    counts = count_matrix(matrix, n_classes)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    expected = present.T.astype(np.float64) @ shares
    rng = np.random.default_rng(seed)
    observed = _marginal_chi2(matrix, expected, n_classes)
    shuffled = [_marginal_chi2(permute_within_cases(matrix, rng), expected, n_classes) for _ in range(permutations)]
    larger = int((np.array(shuffled) >= observed - 1e-9).sum())
    return DependenceTest(observed, (1 + larger) / (1 + permutations), len(matrix))


def _marginal_chi2(matrix: IntArray, expected: FloatArray, n_classes: int) -> float:
    table = np.stack([np.bincount(column[column >= 0], minlength=n_classes) for column in matrix.T])
    usable = expected > 0
    return float((((table - expected) ** 2)[usable] / expected[usable]).sum())


def permute_within_cases(matrix: IntArray, rng: np.random.Generator) -> IntArray:
    """Shuffle each case's labels among the annotators who labelled it."""
    absent = matrix < 0
    # absent labels sort last, so that a row's labels meet its annotators in random order
    order = np.argsort(np.where(absent, 2.0, rng.random(matrix.shape)), axis=1)
    places = np.argsort(absent, axis=1, kind="stable")
    result = np.empty_like(matrix)
    np.put_along_axis(result, places, np.take_along_axis(matrix, order, axis=1), axis=1)
    return result


def excess_disagreement_test(
    label_counts: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    *,
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> DependenceTest:
    """Test one-sidedly whether annotators disagree more than 1 − Σf², which no concentration can represent.

    Args:
        label_counts: (N, K) label histograms, n ≥ 2 used.
        class_probs: (N, K) class probability estimates.
        sample_weight: (N,) instance weights of order 2.
        cluster: (N,) patient of each case.

    Returns:
        The weighted mean difference in standard errors (jackknife, over clusters where there are any), with its upper
        tail of Student's t.

    Raises:
        ValueError: fewer than two cases or clusters with two labels, or arrays that do not match.
    """
    data = check_inputs(label_counts, class_probs, sample_weight, cluster)
    sample = data.sample(2)
    excess = observed_disagreement(data.counts[sample.rows]) - gini(data.probs[sample.rows])
    difference = mean_replicates(excess, sample)
    error = difference.standard_error()
    if error is None:
        raise ValueError("at least two cases with two labels are needed, of two patients where patients are named")
    z = difference.value / error if error > 0 else float(np.sign(difference.value) * np.inf)
    return DependenceTest(z, float(stdtr(sample.n_clusters - 1, -z)), sample.rows.size)
