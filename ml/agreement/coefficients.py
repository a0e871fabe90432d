"""Agreement coefficients with jackknife intervals.

Labels come as a matrix (N, A): the class number that each of A annotators gave each case, −1 if there is
none. Coefficients are ratios of sums over cases, so leaving a case (or a patient) out is a subtraction.

Sources: Cohen 1960; Fleiss 1971; Krippendorff, "Computing Krippendorff's Alpha-Reliability", 2011.
"""

from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr

from ml.dataframes import same_rows, values_of
from ml.metrics.cases import Sample, check_clusters, check_inputs, observed_disagreement, select_sample
from ml.metrics.homogeneity_test import DependenceTest
from ml.metrics.jackknife import SHARE, Bounds, Estimate, Replicates, mean_replicates, to_skill
from ml.metrics.ordinal import largest_squared_distance, replicates_of_sums, squared_distances
from ml.util.arrays import FloatArray, IntArray, as_label_counts, gini

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


def krippendorff_alpha(
    label_counts: npt.ArrayLike, *, level: Level = "nominal", cluster: npt.ArrayLike | None = None
) -> Estimate:
    """Krippendorff's alpha for any number of annotators, with absent labels.

    Args:
        label_counts: (N, K) label histograms; for ``ordinal`` the classes are in order.
        level: ``nominal`` or ``ordinal``.
        cluster: (N,) patient of each case.

    Returns:
        1 for perfect agreement, 0 for what chance would give; NaN if one class only occurs.

    Raises:
        ValueError: an unknown level, or bad counts.

    Examples:
        >>> from secondread import krippendorff_alpha
        >>> round(krippendorff_alpha([[3, 0], [1, 2], [0, 3], [2, 0]]).value, 3)
        0.667
    """
    if level not in {"nominal", "ordinal"}:
        raise ValueError(f"level must be 'nominal' or 'ordinal', got {level!r}")
    same_rows(label_counts=label_counts, cluster=cluster)
    # an ordinal scale is the order of the columns, so only an array can say it
    counts = as_label_counts(label_counts if level == "ordinal" else values_of(label_counts, "label_counts"))
    sample = select_sample(counts.sum(axis=1) >= 2, None, check_clusters(cluster, len(counts)))
    y = counts[sample.rows].astype(np.float64)
    by_label = replace(sample, weight=y.sum(axis=1))
    alpha = (_ordinal_alpha if level == "ordinal" else _nominal_alpha)(y, by_label)
    return replace(to_skill(*alpha, by_label, SHARE, lowest=-1.0), ess=sample.ess)


def _nominal_alpha(y: FloatArray, sample: Sample) -> tuple[Replicates, Replicates]:
    """Disagreement of label counts (n, K), and by chance."""
    n = y.sum(axis=1)
    size, parts = sample.cluster_weight, _per_cluster(y, sample)
    total = parts.sum(axis=0)
    squares = total @ total
    without = squares - 2 * parts @ total + np.einsum("gk,gk->g", parts, parts)

    def by_chance(labels: FloatArray, together: FloatArray) -> FloatArray:
        with np.errstate(invalid="ignore", divide="ignore"):
            return (labels**2 - together) / (labels - 1) / labels

    whole = by_chance(np.array(sample.total_weight), squares)
    expected = Replicates(float(whole), by_chance(sample.total_weight - size, without))
    return mean_replicates((n - np.einsum("nk,nk->n", y, y) / n) / (n - 1), sample), expected


def _ordinal_alpha(y: FloatArray, sample: Sample) -> tuple[Replicates, Replicates]:
    """The same with squared distances between mid-ranks, as shares of the largest."""
    # Σ C_kl (b_k − b_l)² = 2(Σ T_k b_k² − bᵀCb), C coincidences and T totals
    spare = (y.sum(axis=1) - 1)[:, None]
    coincidences = (y / spare).T @ y - np.diag((y / spare).sum(axis=0))
    parts = _per_cluster(y, sample)
    total = parts.sum(axis=0)
    left = np.concatenate([total[None], total - parts])
    n = left.sum(axis=1)
    # mean rank of each class, counted from the middle, as a share of all
    with np.errstate(invalid="ignore", divide="ignore"):
        ranks = (left.cumsum(axis=-1) - left / 2) / n[:, None] - 0.5
    own = ranks[1:] if sample.cluster is None else ranks[1:][sample.cluster]
    gone = ((y * own).sum(axis=1) ** 2 - (y * own**2).sum(axis=1)) / spare[:, 0]
    crossed = np.einsum("gk,gk->g", ranks @ coincidences, ranks)
    crossed[1:] -= _per_cluster(gone, sample)
    squared = np.einsum("gk,gk->g", left, ranks**2)
    used = np.flatnonzero(total)
    widest = np.ptp(ranks[0, used[[0, -1]]]) ** 2 if used.size > 1 else 1.0
    with np.errstate(invalid="ignore", divide="ignore"):
        observed = 2 * (squared - crossed) / n / widest
        expected = 2 * (squared - np.einsum("gk,gk->g", left, ranks) ** 2 / n) / (n - 1) / widest
    return Replicates(float(observed[0]), observed[1:]), Replicates(float(expected[0]), expected[1:])


def _per_cluster(parts: FloatArray, sample: Sample) -> FloatArray:
    if sample.cluster is None:
        return parts
    if sample.n_clusters == 0:
        return np.zeros((0, *parts.shape[1:]))
    # the cases of a cluster stand together
    return np.asarray(np.add.reduceat(parts, np.searchsorted(sample.cluster, np.arange(sample.n_clusters)), axis=0))


def fleiss_kappa(label_counts: npt.ArrayLike, *, cluster: npt.ArrayLike | None = None) -> Estimate:
    """Fleiss' kappa for a fixed number of annotators per case.

    Args:
        label_counts: (N, K) label histograms, each with the same number n ≥ 2 of labels.
        cluster: (N,) patient of each case.

    Returns:
        The coefficient.

    Raises:
        ValueError: cases with different numbers of labels (use Krippendorff's alpha), or fewer than two.

    Examples:
        >>> from secondread import fleiss_kappa
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
    sample = select_sample(np.ones(len(counts), dtype=bool), None, check_clusters(cluster, len(counts)))
    n = float(sizes[0])
    agree = ((counts * (counts - 1)).sum(axis=1) / (n * (n - 1)))[:, None]
    parts = _per_cluster(np.concatenate([agree, counts, np.ones_like(agree)], axis=1)[sample.rows], sample)

    def disagreements(sums: FloatArray) -> tuple[FloatArray, FloatArray]:
        cases = sums[..., -1]
        shares = sums[..., 1:-1] / (n * cases)[..., None]
        return 1 - sums[..., 0] / cases, 1 - (shares**2).sum(axis=-1)

    return to_skill(*replicates_of_sums(disagreements, parts), sample, SHARE, lowest=-1.0)


def cohen_kappa(
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    n_classes: int | None = None,
    *,
    level: Level = "nominal",
    classes: Sequence[str] | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Cohen's kappa of two annotators, over the cases that both labelled.

    Args:
        first: (N,) class numbers or names of classes; −1, None, NaN or an empty text if there is none.
        second: (N,) the same of the other annotator.
        n_classes: K of class numbers; one more than the largest number if omitted.
        level: ``ordinal`` weighs a difference by its square, with the classes in order (weighted kappa, Cohen 1968).
        classes: names of the classes in their order; required for names if ``level`` is ``ordinal``.
        cluster: (N,) patient of each case.

    Returns:
        The coefficient; NaN where both use one and the same class only, or share no case.

    Raises:
        ValueError: shapes that differ, values out of range, unknown names, or ordinal names without their order.

    Examples:
        >>> from secondread import cohen_kappa
        >>> cohen_kappa([0, 1, 1, 0], [0, 1, 0, 0]).value
        0.5
        >>> cohen_kappa(["blast", "mono", "mono", None], ["blast", "mono", "blast", "mono"]).n
        3
    """
    same_rows(first=first, second=second, cluster=cluster)
    a, b = np.asarray(first), np.asarray(second)
    if a.shape != b.shape:
        raise ValueError(f"both annotators' labels must have one shape, got {a.shape} and {b.shape}")
    if a.dtype.kind not in "iu" or b.dtype.kind not in "iu":
        a, b = (np.asarray(labels, dtype=object) for labels in (first, second))  # NaN stays NaN
    matrix, n_classes, _ = number_labels(np.stack([a, b], axis=-1), n_classes, classes, level)
    sample = select_sample(np.asarray((matrix >= 0).all(axis=1)), None, check_clusters(cluster, len(matrix)))
    a, b = matrix[sample.rows].T
    return kappa_of(a, b, n_classes, sample, level)


def number_labels(
    labels: npt.NDArray[Any], n_classes: int | None, classes: Sequence[str] | None, level: Level = "nominal"
) -> tuple[IntArray, int, list[str] | None]:
    """Number labels (N, A), −1 for none; also K, and the names."""
    if labels.dtype.kind in "iu" and classes is None:
        n_classes = int(labels.max(initial=0)) + 1 if n_classes is None else n_classes
        return as_label_matrix(labels, n_classes), n_classes, None
    names: list[str] | None = None
    values = [None if _is_missing(value) else value for value in labels.ravel().tolist()]
    present = [value for value in values if value is not None]
    if present and all(isinstance(value, str) for value in present):
        if n_classes is not None:
            raise ValueError("n_classes belongs to class numbers, and these labels are names: leave it out")
        names = _check_names(sorted({*present}), classes, level)
        number = {name: position for position, name in enumerate(names)}
        numbers, n_classes = [-1 if value is None else number[value] for value in values], len(names)
    else:
        if classes is not None:
            raise ValueError("classes belongs to names of classes, and these labels are numbers: give n_classes")
        wrong = next((v for v in present if not isinstance(v, Real) or not float(v).is_integer()), None)
        if wrong is not None:
            raise ValueError(f"labels must be whole numbers or names of classes, got {wrong!r}")
        numbers = [-1 if value is None else int(value) for value in values]
        n_classes = max(numbers, default=0) + 1 if n_classes is None else n_classes
    return as_label_matrix(np.array(numbers, dtype=np.int64).reshape(labels.shape), n_classes), n_classes, names


def _is_missing(value: object) -> bool:
    if value is None or isinstance(value, str):
        return not value
    return type(value).__name__ == "NAType" or (isinstance(value, float) and np.isnan(value))


def _check_names(used: list[str], classes: Sequence[str] | None, level: Level) -> list[str]:
    if classes is None:
        if level == "ordinal":
            raise ValueError(f"classes is required for ordinal names: list {', '.join(used)}, lowest first")
        return used
    names = list(classes)
    if isinstance(classes, str) or not all(isinstance(name, str) for name in names) or len({*names}) < len(names):
        raise ValueError(f"classes must be different names, got {classes!r}")
    unknown = [name for name in used if name not in names]
    if unknown:
        raise ValueError(f"unknown class {unknown[0]!r}; the classes are {', '.join(names)}")
    return names


def kappa_of(first: IntArray, second: IntArray, n_classes: int, sample: Sample, level: Level = "nominal") -> Estimate:
    """Kappa of two annotators' classes (n,) of a sample."""
    if level == "ordinal":
        x, y = first.astype(np.float64), second.astype(np.float64)
        sums = _per_cluster(np.stack([np.ones(len(x)), x, y, x**2 + y**2, x * y], axis=-1), sample)
        used = np.bincount(np.concatenate([first, second]), minlength=n_classes) > 0
        distance = Bounds(0.0, largest_squared_distance(used))
        return to_skill(*replicates_of_sums(squared_distances, sums), sample, distance, lowest=-1.0)
    rows, columns = (np.bincount(classes, minlength=n_classes).astype(np.float64) for classes in (first, second))
    agree = (first == second).astype(np.float64)
    # by cluster: cases, agreements, change of Σ rows · columns
    crossed = columns[first] + rows[second]
    sums = _per_cluster(np.stack([np.ones(len(agree)), agree, crossed], axis=-1), sample)
    sums[:, 2] -= agree if sample.cluster is None else _own_products(first, second, n_classes, sample)

    def disagreements(sums: FloatArray) -> tuple[FloatArray, FloatArray]:
        n, agreeing, product = np.moveaxis(sums, -1, 0)
        return 1 - agreeing / n, 1 - product / n**2

    total = np.array([len(agree), agree.sum(), rows @ columns])
    with np.errstate(invalid="ignore", divide="ignore"):
        whole, without = disagreements(total), disagreements(total - sums)
    observed, expected = (Replicates(float(value), each) for value, each in zip(whole, without, strict=True))
    return to_skill(observed, expected, sample, SHARE, lowest=-1.0)


def _own_products(first: IntArray, second: IntArray, n_classes: int, sample: Sample) -> FloatArray:
    """Rows times columns (G,) of each cluster's own table."""
    cluster = np.zeros(len(first), dtype=np.intp) if sample.cluster is None else sample.cluster
    keys = [np.unique(cluster * n_classes + classes, return_counts=True) for classes in (first, second)]
    shared, a, b = np.intersect1d(keys[0][0], keys[1][0], assume_unique=True, return_indices=True)
    products = (keys[0][1][a] * keys[1][1][b]).astype(np.float64)
    return np.asarray(np.bincount(shared // n_classes, products, sample.n_clusters), dtype=np.float64)


def excess_disagreement_test(
    label_counts: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    *,
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> DependenceTest:
    """Test one-sidedly whether annotators disagree more than 1 − Σf².

    The statistic is the mean difference of cases with n ≥ 2 in standard
    errors. Arguments are those of ``ml.metrics.losses``.

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
