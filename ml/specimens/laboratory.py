"""Strength of the shift, annotators' tilt and dependence of cells, as a laboratory's specimens teach them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import chdtri, gammaln, logit, stdtrit

from ml.annotations import Annotations
from ml.dataframes import refuse_row_names
from ml.specimens.cells import Specimen, seeded
from ml.specimens.own_mix import FEWEST_FOR_OWN_MIX, sample_own_mix
from ml.util.arrays import FloatArray

#: κ without specimens, and the range of a fitted one; the spread of ln κ in laboratories is a weak prior.
DEFAULT_KAPPA, KAPPA_RANGE, LOG_KAPPA_SD = 2.0, (0.5, 5.0), 0.5
#: Completely read specimens below which cells count as independent.
FEWEST_SPECIMENS = 20
#: Annotators below which their tilt has no interval.
FEWEST_ANNOTATORS = 3
#: Largest shift that is fitted.
MOST_SHIFT = 20.0
# rounds of expectation–maximisation, with chains and sweeps of each; a round moves ln κ by less and less
_ROUNDS, _FIT_CHAINS, _FIT_SWEEPS = 12, 10, 30
_GRID = np.geomspace(*KAPPA_RANGE, 61)


@dataclass(frozen=True)
class GroupKnowledge:
    """What a laboratory taught about one reporting group; the defaults are those of a new one."""

    tilt: float | None = None  # σ_b of an annotator's tilt on a share's log-odds (``annotator_tilt``); None if unknown
    shift: float = 0.0  # σ of the shift that the logits of all cells of a patient share (``fit_shift``)
    n_specimens: int = 0  # completely read specimens that the shift was fitted from

    def __post_init__(self) -> None:
        if not 0 <= self.shift < np.inf or not 0 <= (self.tilt or 0.0) < np.inf:
            raise ValueError(f"tilt and shift must not be negative: {self}")


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
    """A slide's share on the log-odds with half a cell added, before shift and tilt."""

    n_cells: int
    mean: float
    variance: float
    sensitivity: float  # a, how far a shift of the logits of all cells moves it: Σ E q (1 − E q) / (n S (1 − S))
    label_noise: float  # variance that the share by one label of each cell adds, at least


def half_cell_logit(share: npt.ArrayLike, n_cells: int) -> FloatArray:
    """Log-odds (n S + ½) / (n + 1)."""
    return np.asarray(logit((n_cells * np.asarray(share, dtype=np.float64) + 0.5) / (n_cells + 1)))


class PatientShift(NamedTuple):
    """Shift of the logits that all cells of a patient share."""

    sd: float  # σ⁺, its upper limit at 75 %; 0 below 20 specimens
    rho: float  # squared errors over what they would be if cells were independent, at least 1
    n_specimens: int


def fit_shift(predicted: Sequence[LogitShare], truth: Sequence[float], noise: npt.ArrayLike = 0.0) -> PatientShift:
    """Learn how far errors of cells of one patient hang together.

    A shift with standard deviation σ adds σ² a² to the variance of a share's log-odds. σ⁺ solves
    Σ(ℓ(S) − ℓ(truth))² / (Var ℓ(S) + noise + σ² a²) = χ²_{.25, R}. Shares of one group in R completely read specimens
    of held-out patients are predicted without their labels, and true by all of them. The truth has ``noise`` on the
    log-odds: ``label_noise`` over the labels of a cell, unless a label is a cell's truth.

    Sources: Paule and Mandel 1982; Viechtbauer 2007 (limits of a variance between studies).

    Raises:
        ValueError: not as many of one as of the other.
    """
    refuse_row_names(noise=noise)
    if len(predicted) != len(truth):
        raise ValueError(f"{len(predicted)} predicted shares and {len(truth)} true ones")
    count = len(truth)
    if count < FEWEST_SPECIMENS:
        return PatientShift(0.0, 1.0, count)
    target = np.array([half_cell_logit(t, p.n_cells) for t, p in zip(truth, predicted, strict=True)])
    mean, variance, a = np.array([(p.mean, p.variance, p.sensitivity) for p in predicted]).T
    squares, expected = (mean - target) ** 2, np.maximum(variance + noise, 1e-12)

    def surplus(shift: float) -> float:
        return float((squares / (expected + shift**2 * a**2)).sum() - chdtri(count, 0.75))

    shift = 0.0 if surplus(0.0) <= 0 else MOST_SHIFT
    if surplus(0.0) > 0 > surplus(MOST_SHIFT):
        shift = brentq(surplus, 0.0, MOST_SHIFT)
    return PatientShift(float(shift), max(1.0, float((squares / expected).mean())), count)


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
    weight, squares, noise = _compare_pairs(labels, group).sum(axis=(1, 2))
    return float(np.sqrt(max(0.0, squares - noise) / weight)) if weight else None


def annotator_tilt_interval(labels: Annotations, group: Sequence[int]) -> tuple[float, float] | None:
    """95 % limits of σ_b for annotators like these; None below three of them, or if all pairs share one annotator.

    The jackknife leaves out one annotator at a time, with Student's t, on the fourth root of the mean squared
    difference: it is nearly normal, and its sampling variance is taken off the limits. Of 5 or 12 annotators with σ_b =
    .3 the limits hold it in .93 of simulations.

    Sources: Arvesen 1969 (jackknife of U-statistics); Hawkins and Wixley 1986 (fourth root).
    """
    sums = _compare_pairs(labels, group)
    of_each, whole = sums.sum(axis=2), sums.sum(axis=(1, 2))
    others = whole[:, None] - 2 * of_each[:, of_each[0] > 0]
    count = others.shape[1]
    if count < FEWEST_ANNOTATORS or not others[0].all():
        return None
    pseudo = count * (whole[1] / whole[0]) ** 0.25 - (count - 1) * (np.maximum(others[1], 0) / others[0]) ** 0.25
    half = stdtrit(count - 1, 0.975) * pseudo.std(ddof=1) / np.sqrt(count)
    ends = np.maximum(pseudo.mean() + np.array([-half, half]), 0) ** 4 - whole[2] / whole[0]
    low, high = np.sqrt(np.maximum(ends, 0))
    return float(low), float(high)


def _compare_pairs(labels: Annotations, group: Sequence[int]) -> FloatArray:
    """Of each two annotators (3, A, A): 2 n, n times the squared difference, and n times its sampling variance."""
    inside = np.full((labels.n_annotators, labels.n_cases), np.nan)
    inside[labels.annotator, labels.case] = np.isin(labels.label, np.asarray(group))
    sums = np.zeros((3, len(inside), len(inside)))
    for first, second in combinations(range(len(inside)), 2):
        both = ~np.isnan(inside[first] + inside[second])
        if (n := int(both.sum())) > 1:
            one, other = inside[first, both], inside[second, both]
            pooled = (one.sum() + other.sum() + 1) / (2 * n + 2)
            noise = (one - other).var(ddof=1) / n / (pooled * (1 - pooled)) ** 2
            difference = float(half_cell_logit(one.mean(), n) - half_cell_logit(other.mean(), n))
            sums[:, first, second] = sums[:, second, first] = 2 * n, n * difference**2, n * noise
    return sums


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
