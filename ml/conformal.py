"""Conformal sets of classes for the next annotator's answer.

A set has every class whose score is at most a threshold, which the
answers of new patients exceed with at most a stated probability.
Patients are exchangeable units of mean mass one, shared by their
cells; a cell that was asked about with probability π stands for 1/π.

Sources: Vovk, Gammerman and Shafer 2005; Tibshirani et al. 2019; Lee,
Barber and Willett 2023.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ml.dataframes import refuse_names, same_rows
from ml.metrics.cases import select_sample
from ml.metrics.jackknife import SHARE, Bounds, Estimate, mean_replicates, to_estimate
from ml.util.arrays import FloatArray, IntArray, as_class_probs, first_offender

__all__ = [
    "MISSES",
    "SetQuality",
    "Thresholds",
    "answer_scores",
    "answer_sets",
    "calibrate",
    "fewest_patients",
    "judge_sets",
    "patient_masses",
    "scores",
]

#: α: share of new patients' answers that may lie outside of their sets.
MISSES = 0.10
# masses are sums of fractions
_ROUNDING = 1e-9


def fewest_patients(misses: float = MISSES) -> int:
    """Patients without whom there is no threshold: the smallest n ≥ 1/α − 1.

    Raises:
        ValueError: α outside (0, 1).

    >>> fewest_patients(0.1), fewest_patients(0.05)
    (9, 19)
    """
    if not 0 < misses < 1:
        raise ValueError(f"misses must lie between 0 and 1, got {misses}")
    return math.ceil((1 - misses) / misses - _ROUNDING)


def patient_masses(
    patients: npt.ArrayLike,
    asked: npt.ArrayLike | None = None,
    probabilities: npt.ArrayLike | None = None,
) -> FloatArray:
    """Mass (N,) of each cell: R_i / (π_i n_g), n_g the cells of its patient.

    Args:
        patients: (N,) to whom each cell belongs.
        asked: (N,) R, whether its answer is known; None: of all.
        probabilities: (N,) π, with which it was asked for; None: certainly.

    Raises:
        ValueError: a probability outside (0, 1], or shapes or names of rows that differ.

    >>> patient_masses(["p", "p", "q"]).tolist()
    [0.5, 0.5, 1.0]
    """
    same_rows(patients=patients, asked=asked, probabilities=probabilities)
    names = np.unique(np.asarray(patients), return_inverse=True)[1].ravel()
    masses = 1.0 / np.bincount(names)[names] if names.size else np.zeros(0)
    chosen = np.ones(names.size, dtype=bool) if asked is None else np.asarray(asked, dtype=bool)
    chance = np.ones(names.size) if probabilities is None else np.asarray(probabilities, dtype=np.float64)
    if not names.shape == chosen.shape == chance.shape:
        raise ValueError(
            f"asked {chosen.shape} and probabilities {chance.shape} must be as long as patients {names.shape}"
        )
    bad = ~((chance > 0) & (chance <= 1))
    if bad.any():
        raise ValueError(f"probabilities must lie in (0, 1]: {first_offender(bad)}")
    return np.where(chosen, masses / chance, 0.0)


@dataclass(frozen=True)
class Thresholds:
    """The threshold as a function of a new patient's own mass.

    Attributes:
        n_patients: whose answers it rests on.
        n_cells: of theirs.
        steps: the largest own mass that each threshold allows, and the threshold, both rising.
    """

    n_patients: int
    n_cells: int
    steps: tuple[tuple[float, float], ...]

    def at(self, own_mass: float = 1.0) -> float | None:
        """Threshold for a patient of this mass; None if there are too few others.

        For the next answer about a cell J of n, π as ``patient_masses`` has them, and R of the others, the mass is
        (1/π_J + Σ_{i ≠ J} R_i/π_i)/n; 1 where everybody is asked about every cell.
        """
        for largest, threshold in self.steps:
            if own_mass <= largest + _ROUNDING:
                return threshold
        return None


def calibrate(
    answered: npt.ArrayLike,
    masses: npt.ArrayLike,
    patients: npt.ArrayLike,
    *,
    misses: float = MISSES,
    least_mass: float = 0.0,
) -> Thresholds:
    """Thresholds that scores of new answers exceed with probability α at most.

    t(m) = min{s : Σ_{s_i ≤ s} w_i ≥ (1 − α)(Σ w_i + m)}.

    Args:
        answered: (N,) scores of the answers.
        masses: (N,) w of their cells (``patient_masses``).
        patients: (N,) to whom the cells belong.
        misses: α.
        least_mass: the smallest own mass m that will be asked for.

    Raises:
        ValueError: α outside (0, 1), shapes or rows that differ, a
            negative mass, or a score that is no number.

    >>> scores = [0.0, 0.2, 0.1, 0.3, 0.5, 0.4, 0.7, 0.6, 0.8]
    >>> calibrate(scores, patient_masses(range(9)), range(9)).at()
    0.8
    """
    same_rows(answered=answered, masses=masses, patients=patients)
    score, mass, names = (
        np.asarray(answered, dtype=np.float64),
        np.asarray(masses, dtype=np.float64),
        np.asarray(patients),
    )
    if not 0 < misses < 1:
        raise ValueError(f"misses must lie between 0 and 1, got {misses}")
    if not score.shape == mass.shape == names.shape == (score.size,):
        raise ValueError(f"scores {score.shape}, masses {mass.shape} and patients {names.shape} differ in shape")
    bad = ~((mass >= 0) & np.isfinite(mass) & ~np.isnan(score))
    if bad.any():
        raise ValueError(f"masses must not be negative, and scores be numbers: {first_offender(bad)}")
    used = np.flatnonzero(mass > 0)
    values, place = np.unique(score[used], return_inverse=True)
    reached = np.cumsum(np.bincount(place.ravel(), weights=mass[used], minlength=values.size))
    total = float(reached[-1]) if reached.size else 0.0
    largest = reached / (1 - misses) - total
    allowed = largest + _ROUNDING >= least_mass
    steps = tuple(zip(largest[allowed].tolist(), values[allowed].tolist(), strict=True))
    return Thresholds(np.unique(names[used]).size, used.size, steps)


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
    """Coverage, mean size and share of single classes by patient.

    Args:
        sets: (N, K) classes of each set.
        answers: (N,) class that was answered, −1 if none is known.
        masses: (N,) weights (``patient_masses``).
        patients: (N,) to whom the cells belong.

    Raises:
        ValueError: shapes or rows that differ, or an unknown class.

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
        return to_estimate(mean_replicates(values.astype(np.float64), sample), sample, term=bounds)

    return SetQuality(
        coverage=estimate(inside, SHARE),
        mean_size=estimate(size, Bounds(1.0, float(max(chosen.shape[1], 2)))),
        single=estimate(size == 1, SHARE),
    )


def _class_numbers(answers: npt.ArrayLike, n_rows: int, n_classes: int, *, lowest: int = 0) -> IntArray:
    numbers = np.asarray(answers)
    if numbers.dtype.kind not in "iu" and numbers.size:
        raise ValueError(f"answers must be numbers of classes, got {numbers.dtype}")
    if numbers.shape != (n_rows,) or (numbers.size and not lowest <= numbers.min() <= numbers.max() < n_classes):
        raise ValueError(f"answers must be {n_rows} classes from {lowest} to {n_classes - 1}, got {numbers.shape}")
    return numbers.astype(np.int64)


# sums of the same probabilities in another order differ by less
_DIGITS = 12


def scores(class_probs: npt.ArrayLike) -> FloatArray:
    """Mass of more probable classes: s_ik = Σ_j f_ij 1[f_ij > f_ik].

    The score (N, K) of adaptive prediction sets (Romano, Sesia and Candès
    2020, eq. 5) without its random part, rounded to 12 digits.

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
    """Scores (N,) of the answered classes (N,).

    Raises:
        ValueError: not probabilities, no such class, or rows that differ.

    >>> answer_scores([[0.5, 0.2, 0.3]], [2]).tolist()
    [0.5]
    """
    same_rows(class_probs=class_probs, answers=answers)
    every = scores(class_probs)
    return np.asarray(every[np.arange(len(every)), _class_numbers(answers, *every.shape)])


def answer_sets(class_probs: npt.ArrayLike, thresholds: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Classes (N, K) whose score is at most a threshold, and the leading class.

    Thresholds are one number, one per case (N,), or per class (1, K).

    Raises:
        ValueError: not probabilities, thresholds of another shape or NaN, or rows that differ.

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
