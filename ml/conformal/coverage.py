"""How often sets contain the answer, and how large they are: a set of all classes is no success."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ml.arrays import FloatArray, IntArray
from ml.metrics.intervals import SHARE, Bounds
from ml.metrics.jackknife import Estimate, mean_replicates, select_sample, to_estimate


@dataclass(frozen=True)
class SetQuality:
    """What sets were worth to patients, each of whom counts once.

    Attributes:
        coverage: share of the answers that lie in their set.
        mean_size: classes per set.
        single: share of the sets that name one class.
    """

    coverage: Estimate
    mean_size: Estimate
    single: Estimate


def judge_sets(
    sets: npt.NDArray[np.bool_], answers: IntArray, masses: FloatArray, patients: npt.NDArray[np.generic]
) -> SetQuality:
    """Coverage, mean size and share of single classes, with 95 % intervals by patient.

    Args:
        sets: (N, K) classes of each set.
        answers: (N,) class that was answered, −1 where none is known.
        masses: (N,) as ``ml.conformal.thresholds.patient_masses`` has them; those without mass are left out.
        patients: (N,) to whom the cells belong.

    Returns:
        Means weighted by the masses.
    """
    sample = select_sample((answers >= 0) & (masses > 0), masses, patients)
    inside = np.take_along_axis(sets[sample.rows], answers[sample.rows, None], axis=1)[:, 0]
    size = sets[sample.rows].sum(axis=1)

    def estimate(values: npt.NDArray[np.generic], bounds: Bounds) -> Estimate:
        return to_estimate(mean_replicates(values.astype(np.float64), sample), sample, bounds=bounds)

    return SetQuality(
        coverage=estimate(inside, SHARE),
        mean_size=estimate(size, Bounds(1.0, float(max(sets.shape[1], 2)))),
        single=estimate(size == 1, SHARE),
    )
