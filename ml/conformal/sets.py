"""Prediction sets and their coverage."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ml.dataframes import refuse_names, same_rows
from ml.metrics.cases import select_sample
from ml.metrics.jackknife import SHARE, Bounds, Estimate, mean_replicates, to_estimate
from ml.util.arrays import FloatArray, IntArray, as_class_probs


@dataclass(frozen=True)
class SetQuality:
    """Coverage and size of sets by patient, each of whom counts once.

    Attributes:
        coverage: share of the answers that lie in their set.
        mean_size: classes per set.
        single: share of the sets that name one class.
    """

    coverage: Estimate
    mean_size: Estimate
    single: Estimate


def judge_sets(
    sets: npt.ArrayLike, answers: npt.ArrayLike, masses: npt.ArrayLike, patients: npt.ArrayLike
) -> SetQuality:
    """Coverage, mean size and share of single classes, with 95 % intervals by patient.

    Args:
        sets: (N, K) classes of each set.
        answers: (N,) class that was answered, −1 where none is known.
        masses: (N,) as ``ml.conformal.thresholds.patient_masses`` has them; those without mass are left out.
        patients: (N,) to whom the cells belong.

    Returns:
        Means weighted by the masses.

    Raises:
        ValueError: shapes or names of rows that do not fit each other, or an answer that is none of the classes.

    >>> quality = judge_sets([[True, False], [True, True]], [0, 1], [1.0, 1.0], ["p", "q"])
    >>> quality.coverage.value, quality.mean_size.value
    (1.0, 1.5)
    """
    same_rows(sets=sets, answers=answers, masses=masses, patients=patients)
    refuse_names(sets, "sets")
    chosen, names = np.asarray(sets, dtype=bool), np.asarray(patients)
    if chosen.ndim != 2:
        raise ValueError(f"sets must have shape (N, K), got {chosen.shape}")
    answer, mass = _class_numbers(answers, *chosen.shape, lowest=-1), np.asarray(masses, dtype=np.float64)
    if not mass.shape == names.shape == answer.shape:
        raise ValueError(f"masses {mass.shape} and patients {names.shape} must have a row per set, {answer.shape}")
    sample = select_sample((answer >= 0) & (mass > 0), mass, names)
    inside = np.take_along_axis(chosen[sample.rows], answer[sample.rows, None], axis=1)[:, 0]
    size = chosen[sample.rows].sum(axis=1)

    def estimate(values: npt.NDArray[np.generic], bounds: Bounds) -> Estimate:
        return to_estimate(mean_replicates(values.astype(np.float64), sample), sample, bounds=bounds)

    return SetQuality(
        coverage=estimate(inside, SHARE),
        mean_size=estimate(size, Bounds(1.0, float(max(chosen.shape[1], 2)))),
        single=estimate(size == 1, SHARE),
    )


def _class_numbers(answers: npt.ArrayLike, n_rows: int, n_classes: int, *, lowest: int = 0) -> IntArray:
    """Answers (N,) as numbers of classes."""
    numbers = np.asarray(answers)
    if numbers.dtype.kind not in "iu" and numbers.size:
        raise ValueError(f"answers must be numbers of classes, got {numbers.dtype}")
    if numbers.shape != (n_rows,) or (numbers.size and not lowest <= numbers.min() <= numbers.max() < n_classes):
        raise ValueError(f"answers must be {n_rows} classes from {lowest} to {n_classes - 1}, got {numbers.shape}")
    return numbers.astype(np.int64)


# sums of the same probabilities in another order differ by less
_DIGITS = 12


def scores(class_probs: npt.ArrayLike) -> FloatArray:
    """Mass of the classes that are more probable than each class: s_ik = Σ_j f_ij 1[f_ij > f_ik].

    The score of adaptive prediction sets (Romano, Sesia and Candès 2020, eq. 5) without its random part: 0 for the
    leading class, the same for equal probabilities, and nothing is drawn, so that one case has one set.

    Args:
        class_probs: (N, K).

    Returns:
        (N, K), in [0, 1), rounded to 12 digits so that the order of the classes does not matter.

    Raises:
        ValueError: not probabilities.

    >>> scores([[0.5, 0.2, 0.3]]).tolist()
    [[0.0, 0.8, 0.5]]
    """
    probs = as_class_probs(class_probs)
    order = np.argsort(-probs, axis=-1, kind="stable")
    falling = np.take_along_axis(probs, order, axis=-1)
    before = np.cumsum(falling, axis=-1) - falling
    # of equal probabilities the first one's mass counts for all
    begins = np.ones(falling.shape, dtype=bool)
    begins[..., 1:] = falling[..., 1:] < falling[..., :-1]
    before = np.maximum.accumulate(np.where(begins, before, 0.0), axis=-1)
    result = np.empty_like(probs)
    np.put_along_axis(result, order, before, axis=-1)
    return np.round(result, _DIGITS)


def answer_scores(class_probs: npt.ArrayLike, answers: npt.ArrayLike) -> FloatArray:
    """Score of the class that somebody answered.

    Args:
        class_probs: (N, K).
        answers: (N,) numbers of the classes.

    Returns:
        (N,).

    Raises:
        ValueError: not probabilities, no such class, or rows that are named differently.

    >>> answer_scores([[0.5, 0.2, 0.3]], [2]).tolist()
    [0.5]
    """
    same_rows(class_probs=class_probs, answers=answers)
    every = scores(class_probs)
    return np.asarray(every[np.arange(len(every)), _class_numbers(answers, *every.shape)])


def answer_sets(class_probs: npt.ArrayLike, thresholds: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Classes whose score is at most a threshold; the leading class is always among them.

    Args:
        class_probs: (N, K).
        thresholds: one, or one per case (N,), or per class (K,) as a row (1, K).

    Returns:
        (N, K), whether the class belongs to the set.

    Raises:
        ValueError: not probabilities, thresholds of another shape or NaN, or rows that are named differently.

    >>> answer_sets([[0.5, 0.2, 0.3]], 0.6).tolist()
    [[True, False, True]]
    """
    same_rows(class_probs=class_probs, thresholds=thresholds)
    every = scores(class_probs)
    limits = np.asarray(thresholds, dtype=np.float64)
    if limits.shape not in {(), every.shape[:1], (1, every.shape[1])} or np.isnan(limits).any():
        raise ValueError(
            f"thresholds must be one number, one per case ({len(every)},) or a row (1, {every.shape[1]}), without NaN, "
            f"got shape {limits.shape}"
        )
    return np.asarray((every <= (limits[:, None] if limits.ndim == 1 else limits)) | (every == 0))
