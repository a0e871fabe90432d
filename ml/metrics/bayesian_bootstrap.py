"""95 % intervals of means from few cases, by the Bayesian bootstrap.

A mean Σ T_g / Σ W_g over clusters has the quantiles of

    R = (Σ E_g T_g + w (A a + B b)) / (Σ E_g W_g + w (A + B)),

E_g exponential, A and B gamma with shape ½: half a case of the largest weight w at each end of the range [a, b] of a
term, if no other half cases are given. Terms of 0 and 1 of weight one give Jeffreys' interval. R ≤ t if and only if a
sum of gamma variables is at most 0, whose probability follows from the saddlepoint of its cumulant generating function.

Sources: Rubin 1981; Lugannani and Rice 1980; Barndorff-Nielsen 1986 (r*).
"""

from typing import NamedTuple

import numpy as np
from scipy.special import betaincinv, expit, logit, ndtri, stdtrit

from ml.util.arrays import FloatArray

#: Totals and weights of half cases at the ends of ranges.
HalfCases = tuple[FloatArray, FloatArray]
#: Clusters from which Student's t interval is as good.
MANY = 2_000
_QUANTILES = ndtri(np.array([0.025, 0.975]))
_LEAST_SHAPE = 0.1
_MOST_STEPS, _TOLERANCE = 100, 1e-9


def _shape(count: int, case_share: float) -> float:
    """Shape of E: 1 for single cases; for clusters of many, that with which variance and Student's t agree."""
    squared = float(_QUANTILES[1] / stdtrit(count - 1, 0.975)) ** 2
    return max(_LEAST_SHAPE, 1 - (1 - case_share) * (count + 1 - (count - 1) * squared) / count)


class _Saddle(NamedTuple):
    root: FloatArray  # r*, of which Φ is the probability that R ≤ t
    slope: FloatArray  # dr/dt
    at: FloatArray  # the saddlepoints


def mean_interval(
    totals: FloatArray, weights: FloatArray, largest: float, low: float, high: float, halves: HalfCases | None = None
) -> tuple[float, float]:
    """95 % interval of Σ totals / Σ weights (G,), with terms in [low, high]."""
    totals, weights, numbers = _pool(totals, weights)
    scale, width, count = largest, high - low, int(numbers.sum())
    at_ends, of_ends = halves or (scale * np.array([low, high]), np.full(2, scale))
    weight = np.append(weights, of_ends)
    # range 0 to 1, largest weight 1; a term at the lower end is exactly 0, or else no root is below it
    terms, weight = (np.append(totals, at_ends) - low * weight) / (scale * width), weight / scale
    case_share = min(1.0, largest * count / float(numbers @ weights))
    shape = np.append(_shape(count, case_share) * numbers, np.full(at_ends.size, 0.5))
    start = float(np.clip((shape @ terms) / (shape @ weight), 1e-9, 1 - 1e-9))
    place, at, before, root = np.full(2, logit(start)), np.zeros(2), np.full(2, np.nan), np.full(2, np.nan)
    below, above = np.full(2, logit(1e-300)), np.full(2, -logit(1e-16))
    for _ in range(_MOST_STEPS):
        t = expit(place)
        saddle = _saddle(terms - t[:, None] * weight, weight, shape, at)
        miss = _QUANTILES - saddle.root
        below, above = np.where(miss > 0, place, below), np.where(miss < 0, place, above)
        with np.errstate(invalid="ignore", divide="ignore"):
            slope = (saddle.root - root) / (place - before)
            # with a few cases a quantile may be outside of the range, whose end has no slope
            step = miss / np.where(slope > 0, slope, saddle.slope * t * (1 - t))
        going = np.abs(step) > _TOLERANCE
        if not going.any():
            break
        moved = place + np.clip(step, -3.0, 3.0)
        moved = np.where((moved > below) & (moved < above), moved, (below + above) / 2)
        before, root, place = (
            np.where(going, place, before),
            np.where(going, saddle.root, root),
            np.where(going, moved, place),
        )
        # a start within the new domain
        room = np.maximum((saddle.at[:, None] * (terms - expit(place)[:, None] * weight)).max(axis=1), 0.9)
        at = saddle.at * 0.9 / room
    ends = low + width * expit(place)
    return float(ends[0]), float(ends[1])


def _pool(totals: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Clusters, and how many each stands for: of many only the heaviest and most influential stand for themselves."""
    if totals.size <= MANY:
        return totals, weights, np.ones(totals.size)
    influence = totals - totals.sum() / weights.sum() * weights
    spread = float(np.sqrt((influence**2).mean())) or 1.0
    order = np.argsort(np.maximum(np.abs(influence) / spread, weights / weights.mean()), kind="stable")
    alone, others = order[-MANY // 2 :], order[: -MANY // 2]
    others = others[np.argsort(influence[others], kind="stable")]
    starts = np.linspace(0, others.size, MANY // 2, endpoint=False).astype(np.intp)
    numbers = np.diff(starts, append=others.size)
    totals, weights = (
        np.append(each[alone], np.add.reduceat(each[others], starts) / numbers) for each in (totals, weights)
    )
    return totals, weights, np.append(np.ones(alone.size), numbers)


def _saddle(c: FloatArray, weight: FloatArray, shape: FloatArray, s: FloatArray) -> _Saddle:
    """Solve K'(s) = 0, K(s) = −Σ shape log(1 − s c), by damped Newton steps, which never leave the domain."""
    damping = 1 / np.sqrt(shape.min())  # K times its square is self-concordant
    for _ in range(_MOST_STEPS):
        tilted = c / (1 - s[:, None] * c)
        first, second = tilted @ shape, tilted**2 @ shape
        decrement = np.abs(first) / np.sqrt(second)
        s = s - first / second / np.where(decrement < 0.25, 1.0, 1 + damping * decrement)
        if (decrement < _TOLERANCE).all():
            break
    left = 1 - s[:, None] * c
    tilted = c / left
    second = tilted**2 @ shape
    r = np.sign(s) * np.sqrt(np.maximum(2 * (np.log(left) @ shape), 0.0))
    u = s * np.sqrt(second)
    near = np.abs(r) < 1e-3
    safe = np.where(near, 1.0, r)
    root = np.where(near, r, safe + np.log(np.where(near, 1.0, u / safe)) / safe)
    slope = np.where(near, 1 / np.sqrt(second), s / safe) * ((weight / left) @ shape)
    return _Saddle(root, slope, s)


def moment_intervals(
    totals: FloatArray, weights: FloatArray, largest: float, low: FloatArray, high: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The same for columns (G, C) of totals and ranges (C,), from two moments: beta intervals, quick for many."""
    weight = float(weights.sum()) + largest
    mean = (totals.sum(axis=0) + largest * (low + high) / 2) / weight
    edges = largest**2 * ((low - mean) ** 2 + (high - mean) ** 2) / 2
    variance = (((totals - weights[:, None] * mean) ** 2).sum(axis=0) + edges) / (weight * (weight + largest))
    share = (mean - low) / (high - low)
    size = share * (1 - share) * (high - low) ** 2 / variance - 1
    below, above = (betaincinv(share * size, (1 - share) * size, quantile) for quantile in (0.025, 0.975))
    return low + (high - low) * below, low + (high - low) * above
