"""Logit summaries: four numbers per case beyond its leading class, as inputs of calibrators.

They are functions of the logits, so nothing new is stored, and a release, its fused graph and a service that has stored
logits compute the same ones.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ml.dataframes import refuse_names
from ml.util.arrays import EqualByValue, FloatArray

N_SUMMARIES = 4


def logit_summaries(logits: npt.ArrayLike) -> FloatArray:
    """Logit of the largest probability, its square, entropy, log ratio of the two largest: (..., 4).

    >>> logit_summaries([[np.log(3.0), 0.0]]).round(3)
    array([[1.099, 1.207, 0.562, 1.099]])
    """
    refuse_names(logits, "logits")
    # not SciPy's functions, whose bookkeeping takes a prediction of one case longer than the four numbers do
    scores = np.sort(np.asarray(logits, dtype=np.float64), axis=-1)
    logs = scores - _log_sum_exp(scores)[..., None]
    largest = logs[..., -1] - _log_sum_exp(logs[..., :-1])
    entropy = -(np.exp(logs) * logs).sum(axis=-1)
    return np.stack([largest, largest**2, entropy, logs[..., -1] - logs[..., -2]], axis=-1)


def _log_sum_exp(rising: FloatArray) -> FloatArray:
    """Logarithm of the sum of exponentials (...) of numbers in rising order (..., K)."""
    largest = rising[..., -1:]
    return np.asarray(largest[..., 0] + np.log(np.exp(rising - largest).sum(axis=-1)))


@dataclass(frozen=True, eq=False)
class Summaries(EqualByValue):
    """Standardised summaries, kept within the range of the cases that they were standardised by.

    Attributes:
        centre: (4,) means.
        spread: (4,) standard deviations, 1 where nothing varies.
        low: (4,) smallest standardised values.
        high: (4,) largest.
    """

    centre: FloatArray
    spread: FloatArray
    low: FloatArray
    high: FloatArray

    def __call__(self, logits: npt.ArrayLike) -> FloatArray:
        """Summaries (..., 4) of logits (..., K); beyond the range seen a fit is a guess, so they stop there."""
        return np.asarray(np.clip((logit_summaries(logits) - self.centre) / self.spread, self.low, self.high))

    @classmethod
    def of(cls, logits: npt.ArrayLike) -> "Summaries":
        """Standardise by logits (..., K)."""
        raw = logit_summaries(logits).reshape(-1, N_SUMMARIES)
        centre, spread = raw.mean(axis=0), raw.std(axis=0)
        spread = np.where(spread > 1e-12 * np.maximum(1.0, np.abs(centre)), spread, 1.0)
        standardised = (raw - centre) / spread
        return cls(centre, spread, standardised.min(axis=0), standardised.max(axis=0))

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {name: getattr(self, name).tolist() for name in _FIELDS}

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> "Summaries":
        """Read back what ``to_dict`` wrote.

        Raises:
            ValueError: numbers are missing or not finite.
        """
        arrays = [np.array(document[name], dtype=np.float64) for name in _FIELDS]
        if any(array.shape != (N_SUMMARIES,) or not np.isfinite(array).all() for array in arrays):
            raise ValueError("not a calibration document: the summaries are misshapen or not finite")
        if not (arrays[1] > 0).all() or not (arrays[2] <= arrays[3]).all():
            raise ValueError("not a calibration document: the summaries' spread or range is empty")
        return cls(*arrays)


_FIELDS = ("centre", "spread", "low", "high")
