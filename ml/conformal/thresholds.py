"""Score thresholds that new patients' answers exceed with at most a stated probability.

Patients are the units: all that is known of one is exchangeable with all that is known of another, and nothing is
assumed about cells of the same patient. Each patient has a mass of one on average, shared between their cells; a cell
that was asked about with a probability π stands for 1/π cells. The threshold is the quantile of these masses and of the
new patient's own, which is put beyond all scores. With one cell per patient that was always asked about it is the
⌈(n + 1)(1 − α)⌉-th smallest of n scores (Vovk, Gammerman and Shafer 2005; Papadopoulos et al. 2002); with several cells
per patient it is that of Lee, Barber and Willett 2023 ("Distribution-free inference with hierarchical data"); with one
cell asked about with a known probability that of Tibshirani et al. 2019 ("Conformal prediction under covariate shift").
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ml.dataframes import same_rows
from ml.util.arrays import FloatArray, first_offender

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
    """Mass of each cell: R_i / (π_i n_g), n_g the cells of its patient.

    Args:
        patients: (N,) to whom each cell belongs.
        asked: (N,) R, whether its answer is known; None: of all.
        probabilities: (N,) π, with which it was asked for; None: certainly.

    Returns:
        (N,). Their sum over a patient is 1 on average, and exactly where all were asked for certain.

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
        """Threshold for a patient of this mass; None where there are too few others.

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
    """Thresholds that the scores of new patients' answers exceed with probability α at most.

    t(m) = min{s : Σ_{s_i ≤ s} w_i ≥ (1 − α)(Σ w_i + m)}.

    Args:
        answered: (N,) scores of the answers.
        masses: (N,) w of their cells; those without mass are left out.
        patients: (N,) to whom the cells belong.
        misses: α.
        least_mass: the smallest own mass m that will be asked for.

    Raises:
        ValueError: α outside (0, 1), arrays of different lengths or names of rows, a negative mass, or a score that is
            no number.

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
