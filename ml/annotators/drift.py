"""Drift of an annotator: weekly excess loss with a band, and an alarm.

The excess of an answer is −log p(y) − Σ_l p_l (−log p_l), so that hard
cells raise both. An annotator is compared with their own past. Band
and alarm may be looked at every week.

Sources: Waudby-Smith and Ramdas, JRSS B 86 (2024); the alarm is that
of ``ml.metrics.betting_monitor``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ml.dataframes import same_rows
from ml.metrics.betting_monitor import FLOOR, LARGEST, LEVEL, TOLERANCE, CapitalPath, compute_capital_path, daily_stakes
from ml.util.arrays import FloatArray, IntArray, as_class_probs, as_vector

# shares of the capital at risk in a week's bets
_SHARES = np.array([0.1, 0.3, 0.6, 0.95])
_GRID = 400


@dataclass(frozen=True)
class WeekBand:
    """The mean excess loss of a week, nats per label, and its band.

    Attributes:
        week: of the unit's days, as given.
        n: units.
        mean: of their excess losses.
        low: lower end of the band.
        high: upper end.
    """

    week: int
    n: int
    mean: float
    low: float
    high: float


def excess_log_loss(class_probs: npt.ArrayLike, label: npt.ArrayLike) -> FloatArray:
    """Log loss (N,) of each label less its expectation, in nats.

    Probabilities (N, K) are clipped, so that it lies in [−log K, −log .01].

    Raises:
        ValueError: not probabilities, no such class, or rows that differ.

    >>> excess_log_loss([[0.5, 0.5]], [1]).tolist()
    [0.0]
    """
    same_rows(class_probs=class_probs, label=label)
    probs, labels = as_class_probs(class_probs), np.asarray(label)
    if labels.shape != (len(probs),) or (labels.size and not 0 <= labels.min() <= labels.max() < probs.shape[1]):
        raise ValueError(f"label must be {len(probs)} classes from 0 to {probs.shape[1] - 1}, got {labels.shape}")
    loss = -np.log(np.clip(probs, FLOOR, 1.0))
    return np.asarray(loss[np.arange(len(labels)), labels] - (probs * loss).sum(axis=1))


def weekly_bands(excess: npt.ArrayLike, week: npt.ArrayLike, n_classes: int, *, level: float = LEVEL) -> list[WeekBand]:
    """Weekly means with bands that hold together with probability 1 − level.

    The band of the w-th week is at level / (w (w + 1)).

    Args:
        excess: (N,) of each unit, nats, in order of completion.
        week: (N,) of that, ascending.
        n_classes: K, which bounds the excess from below.
        level: probability with which any band misses.

    Raises:
        ValueError: an excess out of range, weeks that go back, or rows that differ.
    """
    low = -float(np.log(n_classes))
    values, of_unit = _series(excess, week, "week")
    values = as_vector(values, len(values), "excess", low, LARGEST)
    if (np.diff(of_unit) < 0).any():
        raise ValueError("units must be in the order of their weeks")
    weeks, starts = np.unique(of_unit, return_index=True)
    bands = []
    for number, (name, of_week) in enumerate(zip(weeks.tolist(), np.split(values, starts[1:]), strict=True), start=1):
        inside = _mean_by_betting((of_week - low) / (LARGEST - low), level / (number * (number + 1)))
        ends = [low + (LARGEST - low) * end for end in inside]
        bands.append(WeekBand(name, len(of_week), float(of_week.mean()), ends[0], ends[1]))
    return bands


def _series(excess: npt.ArrayLike, when: npt.ArrayLike, name: str) -> tuple[FloatArray, IntArray]:
    same_rows(**{"excess": excess, name: when})
    values, times = np.asarray(excess, dtype=np.float64), np.asarray(when)
    if values.ndim != 1 or times.shape != values.shape:
        raise ValueError(f"excess and {name} must have one shape (N,), got {values.shape} and {times.shape}")
    return values, times


def _mean_by_betting(share: FloatArray, level: float) -> tuple[float, float]:
    """Confidence limits of the mean of values in [0, 1]."""
    # bets on "more than m" fall with m: a grid, rounded outwards
    m = (np.arange(_GRID) + 0.5) / _GRID
    threshold = np.log(2 / level)

    def worth(values: FloatArray, mean: FloatArray) -> FloatArray:
        gains = values[None, None, :] / mean[None, :, None] - 1
        logs = np.log1p(_SHARES[:, None, None] * gains).sum(axis=2)
        return np.asarray(np.logaddexp.reduce(logs, axis=0) - np.log(len(_SHARES)))

    too_small = worth(share, m) >= threshold
    too_large = worth(1 - share, 1 - m) >= threshold
    low = float(m[too_small].max()) if too_small.any() else 0.0
    high = float(m[too_large].min()) if too_large.any() else 1.0
    return low, high


def drift_paths(
    excess: Sequence[npt.ArrayLike], day: Sequence[npt.ArrayLike], n_classes: int, *, tolerance: float = TOLERANCE
) -> list[CapitalPath]:
    """Alarm paths of annotators: bets on a rise of the excess loss.

    All annotators share the level: without a change at most that share of
    the years has an alarm. ``excess`` and ``day`` are as in ``weekly_bands``,
    for each annotator.

    Raises:
        ValueError: an excess out of range, days that go back, or rows that differ.
    """
    low = -float(np.log(n_classes))
    scale = LARGEST / (LARGEST - low)
    series = [_series(own, days, "day") for own, days in zip(excess, day, strict=True)]
    return [
        compute_capital_path((own - low) * scale, days, stake, tolerance=tolerance * scale)
        for (own, days), stake in zip(series, daily_stakes([days for _, days in series]), strict=True)
    ]
