"""Anytime-valid alarms for a deterioration of predictions.

The alarm on a champion bets on ranks. A label's place in its own
predictive distribution is ranked among all places so far; without a
change the ranks are independent and uniform, however miscalibrated
the champion is. Each day 1/365 is staked on "high ranks are more
frequent". The capital reaches 1 / level in at most that share of the
years, and otherwise after 365 / level days on average or later.

The alarm on an annotator bets on the loss. A gambler bets on "worse"
with the same stakes. At each unit a share of it is multiplied by
loss / (μ + τ), with μ the mean loss of the reference period and τ the
tolerance. While the expected loss is at most μ + τ, the capital
reaches 1 / level in at most that share of the years. The capital is
the least over all μ, each times that of bets of the reference period
on "μ is smaller".

Sources: Vovk, Stat. Sci. 36 (2021), for bets on conformal ranks;
Waudby-Smith and Ramdas, JRSS B 86 (2024), for those on a mean; Shin,
Ramdas and Rinaldo, NEJSDS 2 (2024), for the daily stakes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ml.util.arrays import FloatArray, IntArray, as_vector

#: Probabilities below this count as this, so that no single label can raise an alarm.
FLOOR = 0.01
#: Largest loss of a label, nats.
LARGEST = float(-np.log(FLOOR))
#: By how much the mean loss may rise without being worth an alarm, nats per label: what it costs when one label in
#: sixty goes from a class that had .9 to one that had .05.
TOLERANCE = 0.05
#: Share of the years in which a champion that has not changed alarms, all series together.
LEVEL = 0.05
#: Units of the reference period; the first of them before anything is at stake.
N_REFERENCE, N_FIRST = 2000, 50
DAYS_OF_A_YEAR = 365
#: Largest surprise of a label, where all but a millionth of the predicted mass is on more probable classes.
LARGEST_SURPRISE = float(-np.log(1e-6))
# surprises are rounded to this; ties are ranked by lot, each unit with the lot of its number
_SURPRISE_STEP, _LOTS, _BLOCK = 0.02, 28, 128
# cells of the ranks, and bets: a share of the labels has ranks of density power · (1 − rank)^(power − 1)
_RANK_CELLS, _MIXED, _POWERS = 100, np.array([0.1, 0.2, 0.4]), np.array([0.25, 0.5])
# losses are rounded to this, nats: what a day's units do to the capital then depends on how many of each there were
_STEP = 0.01
# shares of the capital at risk, after a presumed change and, on the mean of the reference period, before it
_RISING = np.array([0.0, 0.03, 0.06, 0.12, 0.25, 0.5])
_FALLING = np.array([0.05, 0.1, 0.2, 0.4, 0.8])
# ends of cells of the unknown mean, shares of the mean of the first units: 2 % wide around that, wider far above
_CELLS = np.concatenate([1.02 ** np.arange(-40, 51), 1.02**50 * 1.1 ** np.arange(1, 80)])


@dataclass(frozen=True)
class CapitalPath:
    """Capital of one series at the end of each day."""

    day: IntArray  # (D,) days
    n_units: IntArray  # (D,) units so far
    log_capital: FloatArray  # (D,) −∞ while nothing was at stake

    def alarm_day(self, level: float = LEVEL) -> int | None:
        """The first day on which the capital was 1 / level or more; None so far."""
        rung = np.flatnonzero(self.log_capital >= -np.log(level))
        return int(self.day[rung[0]]) if rung.size else None


def clipped_log_loss(class_probs: FloatArray, label: IntArray) -> FloatArray:
    """−log of the probability of each label, nats, in [0, LARGEST]."""
    return np.asarray(-np.log(np.clip(class_probs[np.arange(len(label)), label], FLOOR, 1.0)))


def label_surprise(class_probs: FloatArray, label: IntArray, lot: FloatArray) -> FloatArray:
    """Surprise (N,) −log(1 − s): s is the mass of the more probable classes and a lot's share of the label's."""
    own = class_probs[np.arange(len(label)), label]
    place = np.where(class_probs > own[:, None], class_probs, 0.0).sum(axis=1) + lot * own
    return np.asarray(-np.log(np.clip(1 - place, np.exp(-LARGEST_SURPRISE), 1.0)))


def conformal_ranks(surprise: FloatArray, kind: IntArray | None = None) -> FloatArray:
    """Rank (N,) of each surprise among those of its kind up to it, as a share in [0, 1)."""
    level = np.rint(as_vector(surprise, len(surprise), "surprise", 0.0, LARGEST_SURPRISE) / _SURPRISE_STEP)
    level = level.astype(np.int64)
    # a generator's first numbers do not depend on how many are drawn: what comes later changes no rank
    lots, ranks = np.random.default_rng(_LOTS).random(len(level)), np.empty(len(level))
    for own in [slice(None)] if kind is None else [kind == one for one in np.unique(kind)]:
        ranks[own] = _ranks(level[own], lots[own])
    return ranks


def _ranks(level: IntArray, lots: FloatArray) -> FloatArray:
    ranks = np.empty(len(level))
    seen = np.zeros(int(LARGEST_SURPRISE / _SURPRISE_STEP) + 2)
    for start in range(0, len(level), _BLOCK):
        block = level[start : start + _BLOCK]
        earlier = np.tri(len(block), k=-1, dtype=bool)
        below = (np.cumsum(seen) - seen)[block] + (earlier & (block < block[:, None])).sum(axis=1)
        tied = seen[block] + (earlier & (block == block[:, None])).sum(axis=1)
        n = start + 1 + np.arange(len(block))
        ranks[start : start + _BLOCK] = (below + lots[start : start + _BLOCK] * (tied + 1)) / n
        seen += np.bincount(block, minlength=len(seen))
    return ranks


def compute_rank_path(
    surprise: FloatArray, day: IntArray, stake: FloatArray, kind: IntArray | None = None
) -> CapitalPath:
    """Capital of the bets on the ranks of one series, within each kind of unit, day by day."""
    days, starts = _days(day, stake)
    if not len(days):
        return CapitalPath(days, starts, np.zeros(0))
    above = 1 - np.arange(_RANK_CELLS + 1) / _RANK_CELLS
    density = -np.diff(above[:, None] ** _POWERS, axis=0) * _RANK_CELLS
    returns = np.log(1 - _MIXED + _MIXED * density[:, :, None]).reshape(_RANK_CELLS, -1)
    numbers = np.repeat(np.arange(len(days)), np.diff(np.append(starts, len(day))))
    cell = (conformal_ranks(surprise, kind) * _RANK_CELLS).astype(np.int64)
    growth = _counts(numbers, cell, len(days), _RANK_CELLS) @ returns
    with np.errstate(divide="ignore"):  # nothing is at stake on the first days
        put_in = np.log(np.asarray(stake))[:, None]
    capital = _mean_of(_log_worth(put_in, growth), axis=1)
    return CapitalPath(days, np.append(starts[1:], len(day)), capital)


def daily_stakes(series: Sequence[IntArray]) -> list[FloatArray]:
    """Stakes of several series, at most 1 in a year."""
    known_from = [int(days[N_FIRST - 1]) + 1 if len(days) >= N_FIRST else None for days in series]
    begun = [first for first in known_from if first is not None]
    if not begun:
        return [np.zeros(np.unique(days).size) for days in series]
    begin, end = min(begun), max(int(days[-1]) for days in series if len(days))
    calendar = np.arange(begin, end + 1)
    n_known = (np.sort(begun)[:, None] <= calendar).sum(axis=0)
    # total[i] is what a series that is always there has got on the first i days
    total = np.concatenate([[0.0], np.cumsum(1 / n_known)]) / DAYS_OF_A_YEAR
    stakes = []
    for days, first in zip(series, known_from, strict=True):
        own = np.unique(days)
        if first is None:
            stakes.append(np.zeros(own.size))
            continue
        got = total[np.clip(own + 1, first, None) - begin]
        stakes.append(np.diff(got, prepend=total[first - begin]))
    return stakes


def compute_capital_path(
    loss: FloatArray,
    day: IntArray,
    stake: FloatArray,
    *,
    tolerance: float = TOLERANCE,
    n_reference: int = N_REFERENCE,
    mean: float | None = None,
) -> CapitalPath:
    """Capital of the bets on one series, day by day."""
    loss = as_vector(loss, len(loss), "loss", 0.0, LARGEST)
    days, starts = _days(day, stake)
    if not len(days):
        return CapitalPath(days, starts, np.zeros(0))
    low, high = _cells(loss) if mean is None else (np.array([mean]), np.array([mean]))
    level = np.rint(loss / _STEP).astype(np.int64)
    values = _STEP * np.arange(int(np.rint(LARGEST / _STEP)) + 1)
    numbers = np.repeat(np.arange(len(days)), np.diff(np.append(starts, len(loss))))
    in_reference = np.arange(len(loss)) < n_reference
    counts, counts_told = (
        _counts(numbers[rows], level[rows], len(days), len(values)) for rows in (slice(None), in_reference)
    )
    rising = _growth(counts, _RISING, values / (high + tolerance)[:, None])
    falling = _growth(counts_told, _FALLING, (values[-1] - values) / (values[-1] - low)[:, None])
    with np.errstate(divide="ignore"):  # nothing is at stake on the first days
        put_in = np.log(np.asarray(stake))[:, None] + _mean_of(_log_growth_before(falling), axis=1)
        capital = _mean_of(_log_worth(put_in[:, None, :], rising), axis=1)
    return CapitalPath(days, np.append(starts[1:], len(loss)), capital.min(axis=1))


def _days(day: IntArray, stake: FloatArray) -> tuple[IntArray, IntArray]:
    """Days of a series, and the number of the first unit of each."""
    days, starts = np.unique(day, return_index=True)
    if (np.diff(day) < 0).any():
        raise ValueError("units must be in the order of their days")
    if len(stake) != len(days):
        raise ValueError(f"there are {len(days)} days, and {len(stake)} stakes")
    return days, starts


def _log_worth(put_in: FloatArray, growth: FloatArray) -> FloatArray:
    """Log Σ_{days s ≤ t} stake_s · (growth from s to t) of each day t."""
    return np.asarray(np.cumsum(growth, axis=0) + np.logaddexp.accumulate(put_in - _log_growth_before(growth), axis=0))


def _cells(loss: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Ends of cells that contain every mean of the reference."""
    # capital on "worse" falls with the mean of the reference, that on "smaller" rises:
    # upper ends of one and lower ends of the other bound every mean in the cell
    around = max(float(loss[:N_FIRST].mean()), _STEP) * _CELLS
    inside = around[around < LARGEST - _STEP]
    return np.concatenate([[0.0], inside]), np.concatenate([inside, [LARGEST]])


def _counts(number: IntArray, level: IntArray, n_days: int, n_levels: int) -> FloatArray:
    counts = np.bincount(number * n_levels + level, minlength=n_days * n_levels)
    return counts.reshape(n_days, n_levels).astype(np.float64)


def _growth(counts: FloatArray, shares: FloatArray, returns: FloatArray) -> FloatArray:
    """Log growth of the capital by each day (D, S, J)."""
    by_unit = np.log1p(shares[:, None, None] * (returns - 1))
    return np.asarray(np.tensordot(counts, by_unit, axes=(1, 2)))


def _log_growth_before(growth: FloatArray) -> FloatArray:
    return np.asarray(np.cumsum(growth, axis=0) - growth)


def _mean_of(log_values: FloatArray, axis: int) -> FloatArray:
    return np.asarray(np.logaddexp.reduce(log_values, axis=axis) - np.log(log_values.shape[axis]))
