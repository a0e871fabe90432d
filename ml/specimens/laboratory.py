"""Strength of the shift, annotators' tilt and dependence of cells, as a laboratory's specimens teach them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import chdtri, expit, gammaln, logit

from ml.annotations import Annotations
from ml.dataframes import refuse_row_names
from ml.specimens.cells import Specimen, seeded
from ml.specimens.own_mix import FEWEST_FOR_OWN_MIX, sample_own_mix
from ml.util.arrays import FloatArray

#: κ without specimens, and the range of a fitted one; the spread of ln κ in laboratories is a weak prior.
DEFAULT_KAPPA, KAPPA_RANGE, LOG_KAPPA_SD = 2.0, (0.5, 5.0), 0.5
#: Completely read specimens below which cells count as independent, and from which the quantile is conformal.
FEWEST_SPECIMENS, FEWEST_FOR_CONFORMAL = 20, 50
_LEVEL = 0.95
# rounds of expectation–maximisation, with chains and sweeps of each; a round moves ln κ by less and less
_ROUNDS, _FIT_CHAINS, _FIT_SWEEPS = 12, 10, 30
_GRID = np.geomspace(*KAPPA_RANGE, 61)


@dataclass(frozen=True)
class GroupKnowledge:
    """What a laboratory taught about one reporting group; the defaults are those of a new one."""

    tilt: float | None = None  # σ_b of an annotator's tilt on a share's log-odds (``annotator_tilt``); None if unknown
    stretch: float = 1.0  # factor of the spread of a share on the log-odds (``fit_stretch``)
    n_specimens: int = 0  # completely read specimens that the factor was fitted from

    def __post_init__(self) -> None:
        if not 0 < self.stretch < np.inf or not 0 <= (self.tilt or 0.0) < np.inf:
            raise ValueError(f"stretch must be positive, tilt not negative: {self}")


@dataclass(frozen=True)
class Laboratory:
    """What is known of a laboratory; the defaults are those of a new one."""

    kappa: float = DEFAULT_KAPPA  # κ, how strongly specimens resemble the calibration mix, in cells (``fit_kappa``)
    groups: Mapping[str, GroupKnowledge] = field(default_factory=dict)  # by name; of the others nothing is known

    def __post_init__(self) -> None:
        if not 0 < self.kappa < np.inf:
            raise ValueError(f"kappa must be positive, got {self.kappa}")

    def of(self, group: str) -> GroupKnowledge:
        """What is known of a group."""
        return self.groups.get(group, GroupKnowledge())


@dataclass(frozen=True)
class LogitShare:
    """Draws of a slide's share on the log-odds with half a cell added, before stretch and tilt; limits of 95 %."""

    n_cells: int
    mean: float
    variance: float
    low: float
    median: float
    high: float

    @classmethod
    def of(cls, shares: FloatArray, n_cells: int) -> "LogitShare":
        """Describe draws of a share."""
        logits = half_cell_logit(shares, n_cells)
        low, median, high = np.quantile(logits, [(1 - _LEVEL) / 2, 0.5, (1 + _LEVEL) / 2])
        return cls(n_cells, float(logits.mean()), float(logits.var()), float(low), float(median), float(high))


def half_cell_logit(share: npt.ArrayLike, n_cells: int) -> FloatArray:
    """Log-odds (n S + ½) / (n + 1)."""
    return np.asarray(logit((n_cells * np.asarray(share, dtype=np.float64) + 0.5) / (n_cells + 1)))


def stretched(shares: FloatArray, n_cells: int, factor: float) -> FloatArray:
    """Draws of a share with their distance from the median multiplied on the log-odds."""
    if factor == 1.0:
        return shares
    logits = half_cell_logit(shares, n_cells)
    median = np.median(logits)
    return np.asarray(np.clip((expit(median + factor * (logits - median)) * (n_cells + 1) - 0.5) / n_cells, 0.0, 1.0))


class Stretch(NamedTuple):
    """Factor of the spread."""

    factor: float  # 1 below 20 specimens; √ρ⁺; from 50 on the conformal quantile in half widths of the raw interval
    rho: float  # squared errors over what they would be if cells were independent, at least 1
    n_specimens: int
    kind: Literal["independent", "overdispersion", "conformal"]


def fit_stretch(predicted: Sequence[LogitShare], truth: Sequence[float]) -> Stretch:
    """Learn how far errors of cells of one patient hang together.

    ρ = max(1, Σ(ℓ(S) − ℓ(truth))² / Σ Var ℓ(S)), ρ⁺ = ρ R / χ²_{.25, R}. From 50 specimens on the conformal quantile of
    the errors in half widths of the raw interval, each on its side of the median. Shares of one group in R completely
    read specimens of held-out patients are predicted without their labels, and true by all of them.

    Raises:
        ValueError: not as many of one as of the other.
    """
    if len(predicted) != len(truth):
        raise ValueError(f"{len(predicted)} predicted shares and {len(truth)} true ones")
    count = len(truth)
    if count < FEWEST_SPECIMENS:
        return Stretch(1.0, 1.0, count, "independent")
    target = np.array([half_cell_logit(t, p.n_cells) for t, p in zip(truth, predicted, strict=True)])
    means, variances = np.array([p.mean for p in predicted]), np.array([p.variance for p in predicted])
    rho = max(1.0, float(((means - target) ** 2).sum() / max(variances.sum(), 1e-12)))
    if count < FEWEST_FOR_CONFORMAL:
        upper = rho * count / float(chdtri(count, 0.75))
        return Stretch(float(np.sqrt(upper)), rho, count, "overdispersion")
    low, median, high = (np.array([getattr(p, name) for p in predicted]) for name in ("low", "median", "high"))
    error = target - median
    width = np.where(error > 0, high - median, median - low)
    scores = np.sort(np.abs(error) / np.maximum(width, 1e-6))
    rank = min(count, int(np.ceil(_LEVEL * (count + 1))))
    return Stretch(max(float(scores[rank - 1]), 1e-3), rho, count, "conformal")


class CoverageBand(NamedTuple):
    """How many intervals of a band of true shares cover the truth."""

    low: float
    high: float
    n_specimens: int
    n_covered: int


def coverage_by_band(
    intervals: npt.ArrayLike, truth: npt.ArrayLike, bounds: Sequence[float] = (0.0, 0.05, 0.2, 0.5, 1.0)
) -> list[CoverageBand]:
    """Count true shares (R,) that intervals (R, 2) cover, by band [a, b) of the truth; the last is closed."""
    refuse_row_names(intervals=intervals, truth=truth)
    limits, target = np.asarray(intervals, dtype=np.float64).reshape(-1, 2), np.asarray(truth, dtype=np.float64)
    covered = (limits[:, 0] <= target + 1e-12) & (target <= limits[:, 1] + 1e-12)
    band = np.clip(np.searchsorted(bounds, target, side="right") - 1, 0, len(bounds) - 2)
    return [
        CoverageBand(*pair, int((band == row).sum()), int(covered[band == row].sum()))
        for row, pair in enumerate(pairwise(bounds))
    ]


def annotator_tilt(labels: Annotations, group: Sequence[int]) -> float | None:
    """Estimate σ_b of one annotator's tilt from cells that several annotators read; None without any such pair.

    For annotators r and s with n shared cells, the squared difference of their log-odds of the group's share less its
    sampling variance has the mean 2 σ_b²; pairs are weighted by n. The group is given by its class numbers.
    """
    inside = np.full((labels.n_annotators, labels.n_cases), np.nan)
    inside[labels.annotator, labels.case] = np.isin(labels.label, np.asarray(group))
    total = weight = 0.0
    for first, second in combinations(inside, 2):
        both = ~np.isnan(first + second)
        if (n := int(both.sum())) > 1:
            one, other = first[both], second[both]
            pooled = (one.sum() + other.sum() + 1) / (2 * n + 2)
            noise = (one - other).var(ddof=1) / n / (pooled * (1 - pooled)) ** 2
            difference = float(half_cell_logit(one.mean(), n) - half_cell_logit(other.mean(), n))
            total, weight = total + n * (difference**2 - noise), weight + 2 * n
    return float(np.sqrt(max(0.0, total / weight))) if weight else None


def fit_kappa(specimens: Sequence[Specimen], default: float = DEFAULT_KAPPA) -> float:
    """Fit κ with the mean m fixed, by expectation–maximisation over kinds of cells.

    The likelihood of a specimen's kinds is the Dirichlet-multinomial of their counts; ln κ has a normal prior around
    the default with standard deviation ½, and κ stays within .5 and 5. Specimens of one release are used, from 20 cells
    on; without any the default is returned.
    """
    used = [(s.key, s.members().mean, s.mix[s.order[1]]) for s in specimens if len(s.cells) >= FEWEST_FOR_OWN_MIX]
    kappa = default
    penalty = (np.log(_GRID / default) / LOG_KAPPA_SD) ** 2 / 2
    for _ in range(_ROUNDS if used else 0):
        objective = -penalty
        for key, mean, mix in used:
            rng = seeded(f"{key}|kappa")
            drawn = sample_own_mix(mean, mix, kappa, rng, chains=_FIT_CHAINS, sweeps=_FIT_SWEEPS)
            counts = (drawn.kinds[..., None] == np.arange(mix.size)).sum(axis=2).reshape(-1, 1, mix.size)
            shapes = _GRID[:, None] * mix
            of_classes = (gammaln(counts + shapes) - gammaln(shapes)).sum(axis=2).mean(axis=0)
            objective = objective + of_classes + gammaln(_GRID) - gammaln(_GRID + mean.shape[1])
        before, kappa = kappa, float(_GRID[int(np.argmax(objective))])
        if kappa == before:
            break
    return kappa
