"""Metrics for ordinal classes, in the order of the columns.

F is the cumulative prediction, Ĝ the cumulative label frequency, both
at K − 1 cuts between neighbouring classes. Arguments are those of
``ml.metrics.losses``.

Sources: Epstein 1969; Murphy 1971; Cohen 1968 (weighted kappa).
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ml.dataframes import refuse_names
from ml.metrics.binned import is_debiased
from ml.metrics.cases import (
    Inputs,
    Sample,
    SampleWeight,
    check_both_orders,
    check_inputs,
    class_frequencies,
)
from ml.metrics.jackknife import (
    Bounds,
    Estimate,
    ReaderPart,
    Replicates,
    mean_replicates,
    skill_replicates,
    to_estimate,
    to_skill,
)
from ml.metrics.reader_variance import CrossedEffects, LeftOut, Readings
from ml.metrics.sums import Debias
from ml.util.arrays import FloatArray, IntArray


def ranked_probability_score(
    label_counts: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    *,
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Ranked probability score of one future label, n ≥ 1, in [0, K − 1].

    Mean of Σ_k [(F − Ĝ)² + Ĝ(1 − Ĝ)] over the cuts; half of L for two classes.

    >>> round(ranked_probability_score([[1, 1, 0]], [[0.5, 0.25, 0.25]]).value, 4)
    0.3125
    """
    return _score(_checked(label_counts, class_probs, sample_weight, cluster), None)


def _score(data: Inputs, readings: Readings | None) -> Estimate:
    sample = data.sample(1)
    gap, freqs = _cuts(data, sample)
    terms = (gap**2 + freqs * (1 - freqs)).sum(axis=1)
    readers = None if readings is None else _new_readers(data, sample, readings, 1)
    return to_estimate(mean_replicates(terms, sample), sample, term=Bounds(0.0, float(gap.shape[1])), readers=readers)


def _new_readers(data: Inputs, sample: Sample, readings: Readings, order: int) -> ReaderPart | None:
    crossed = CrossedEffects.of(readings, sample, len(data.counts), first=order == 1)
    if crossed is None:
        return None
    case, counts = crossed.case, sample.take(data.counts)
    forecast = sample.take(data.probs).cumsum(axis=1)[:, :-1]
    gap = forecast[case] - (crossed.label[:, None] <= np.arange(forecast.shape[1]))
    own = (gap**2).sum(axis=1)
    if order == 1:
        return crossed.part(own)
    n_labels = counts.sum(axis=1, keepdims=True)
    together = n_labels * forecast - counts.cumsum(axis=1)[:, :-1]
    others = (gap * together[case]).sum(axis=1) - own
    return crossed.part(others / np.maximum(n_labels[case, 0] - 1, 1), 2)


def epistemic_ranked_probability_score(
    label_counts: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    *,
    debias: Debias = "pair",
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Ranked probability score against the true histogram, n ≥ 2.

    Unbiased mean of Σ_k [(F − Ĝ)² − Ĝ(1 − Ĝ)/(n − 1)]; may be negative.

    >>> round(epistemic_ranked_probability_score([[1, 1, 0]], [[0.5, 0.25, 0.25]]).value, 4)
    -0.1875
    """
    return _epistemic_score(_checked(label_counts, class_probs, sample_weight, cluster), is_debiased(debias), None)


def _epistemic_score(data: Inputs, debias: bool, readings: Readings | None) -> Estimate:
    sample = data.sample(2)
    gap, freqs = _cuts(data, sample)
    terms = gap**2
    if debias:
        terms = terms - freqs * (1 - freqs) / (data.counts[sample.rows].sum(axis=1, keepdims=True) - 1)
    readers = None if readings is None else _new_readers(data, sample, readings, 2)
    term = Bounds(-gap.shape[1] / 4, float(gap.shape[1]))
    return to_estimate(mean_replicates(terms.sum(axis=1), sample), sample, term=term, readers=readers)


def ranked_probability_skill(
    label_counts: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    *,
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Ranked probability skill 1 − RPS / RPS of the frequencies, n ≥ 1.

    1 is perfect, 0 no better than the frequencies; NaN if one class only occurs.

    >>> round(ranked_probability_skill([[2, 0, 0], [0, 0, 2]], [[0.5, 0.25, 0.25], [0, 0, 1]]).value, 4)
    0.6875
    """
    return _ranked_skill(_checked(label_counts, class_probs, sample_weight, cluster), None)


def _ranked_skill(data: Inputs, readings: Readings | None) -> Estimate:
    return _of_sums(_skill_columns, ranked_scores, data, Bounds(0.0, data.probs.shape[1] - 1.0), readings)


def _skill_columns(label_counts: IntArray, class_probs: FloatArray) -> FloatArray:
    """1, the score and cumulative frequencies (n, K + 1)."""
    gap, freqs = _gap_and_frequencies(label_counts, class_probs)
    return np.column_stack([np.ones(len(gap)), (gap**2 + freqs * (1 - freqs)).sum(axis=1), freqs])


def ranked_scores(sums: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Ranked probability scores of the predictions and of the frequencies."""
    means = sums[..., 1:] / sums[..., :1]
    return means[..., 0], (means[..., 1:] * (1 - means[..., 1:])).sum(axis=-1)


def weighted_kappa(
    label_counts: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    *,
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Quadratic kappa of the most probable class and one label, n ≥ 1.

    Each of a case's labels counts 1/n, and equal leaders share; NaN if one
    and the same class only occurs.

    >>> weighted_kappa([[1, 0, 0], [0, 0, 1], [0, 1, 0]], [[0.9, 0.1, 0], [0, 0.1, 0.9], [0, 0.8, 0.2]]).value
    1.0
    """
    return _kappa(_checked(label_counts, class_probs, sample_weight, cluster), None)


def _kappa(data: Inputs, readings: Readings | None) -> Estimate:
    leads = data.probs == data.probs.max(axis=1, keepdims=True)
    distance = Bounds(0.0, largest_squared_distance(data.counts.any(axis=0) | leads.any(axis=0)))
    return _of_sums(_kappa_columns, squared_distances, data, distance, readings, lowest=-1.0)


def largest_squared_distance(used: npt.NDArray[np.bool_]) -> float:
    """Of two of the grades that are used (K,)."""
    grades = np.flatnonzero(used)
    return float(grades[-1] - grades[0]) ** 2 if grades.size else 0.0


def _kappa_columns(label_counts: IntArray, class_probs: FloatArray) -> FloatArray:
    """1, x, y, x² + y² and xy (n, 5) of classes x and labels y."""
    freqs, leads = class_frequencies(label_counts), class_probs == class_probs.max(axis=1, keepdims=True)
    places = np.arange(class_probs.shape[1], dtype=np.float64)
    predicted = leads / leads.sum(axis=1, keepdims=True)
    first, second = predicted @ places, freqs @ places
    squares = predicted @ places**2 + freqs @ places**2
    return np.column_stack([np.ones(len(first)), first, second, squares, first * second])


def squared_distances(sums: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean squared distances, observed and by chance, of sums (..., 5) of w, wx, wy, w(x² + y²) and wxy."""
    weight, x, y, squares, product = np.moveaxis(sums, -1, 0)
    return (squares - 2 * product) / weight, (squares - 2 * x * y / weight) / weight


def ranked_probability_change(
    label_counts: npt.ArrayLike,
    before: npt.ArrayLike,
    after: npt.ArrayLike,
    *,
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Paired change of the ranked probability score."""
    both = [_checked(label_counts, probs, sample_weight, cluster) for probs in (before, after)]
    sample = both[0].sample(1)
    first, second = ((_cuts(data, sample)[0] ** 2).sum(axis=1) for data in both)
    return to_estimate(mean_replicates(second - first, sample), sample)


def ordinal_metrics(
    label_counts: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    *,
    first_label_counts: npt.ArrayLike | None = None,
    readings: Readings | None = None,
    sample_weight: SampleWeight = None,
    cluster: npt.ArrayLike | None = None,
) -> dict[str, Estimate]:
    """Metrics that ``evaluate --level ordinal`` adds, by name."""
    _refuse_names(label_counts, class_probs)
    first, second = check_both_orders(label_counts, class_probs, sample_weight, cluster, None, first_label_counts)
    return {
        "RPS": _score(first, readings),
        "skill_RPS": _ranked_skill(first, readings),
        "RPS_epistemic": _epistemic_score(second, True, readings),
        "weighted_kappa": _kappa(first, readings),
    }


def _checked(
    label_counts: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    sample_weight: npt.ArrayLike | None,
    cluster: npt.ArrayLike | None,
) -> Inputs:
    _refuse_names(label_counts, class_probs)
    return check_inputs(label_counts, class_probs, sample_weight, cluster)


def _refuse_names(label_counts: npt.ArrayLike, class_probs: npt.ArrayLike) -> None:
    # a table with names promises no order of its columns
    refuse_names(label_counts, "label_counts")
    refuse_names(class_probs, "class_probs")


def _cuts(data: Inputs, sample: Sample) -> tuple[FloatArray, FloatArray]:
    """F − Ĝ and Ĝ (n, K − 1) at the cuts between classes."""
    return _gap_and_frequencies(data.counts[sample.rows], data.probs[sample.rows])


def _gap_and_frequencies(label_counts: IntArray, class_probs: FloatArray) -> tuple[FloatArray, FloatArray]:
    freqs = class_frequencies(label_counts)
    gap = (class_probs - freqs).cumsum(axis=1)[:, :-1]
    return gap, np.clip(freqs.cumsum(axis=1)[:, :-1], 0.0, 1.0)


def _of_sums(
    columns: Callable[[IntArray, FloatArray], FloatArray],
    losses: Callable[[FloatArray], tuple[FloatArray, FloatArray]],
    data: Inputs,
    term: Bounds,
    readings: Readings | None,
    *,
    lowest: float = -np.inf,
) -> Estimate:
    """Skill of ``losses``, of predictions and of a constant, by sums over cases of ``columns``."""
    sample = data.sample(1)
    counts, probs = data.counts[sample.rows], data.probs[sample.rows]
    parts = np.stack([sample.per_cluster(sample.weight * column) for column in columns(counts, probs).T], axis=-1)
    own, constant = replicates_of_sums(losses, parts)
    replicates = skill_replicates(own, constant)
    crossed = None if readings is None else CrossedEffects.of(readings, sample, len(data.counts), first=True)
    error, readers = replicates.standard_error(), None
    if crossed is not None and error is not None:
        left = LeftOut.of(crossed, counts, probs)
        with np.errstate(invalid="ignore", divide="ignore"):
            pair = losses(left.sums(lambda some, case: columns(some, probs[case]), 1))
        without = skill_replicates(*(Replicates(np.nan, each) for each in pair)).without
        readers = left.part(without, error**2)
    return to_skill(own, constant, sample, term, lowest=lowest, readers=readers)


def replicates_of_sums(
    losses: Callable[[FloatArray], tuple[FloatArray, FloatArray]], parts: FloatArray
) -> tuple[Replicates, Replicates]:
    """Both losses of sums (..., P), from the parts (G, P) of clusters."""
    total = parts.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        whole, without = losses(total), losses(total - parts)
    own, constant = (Replicates(float(value), each) for value, each in zip(whole, without, strict=True))
    return own, constant
