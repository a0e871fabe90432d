"""Shares of reporting groups in a specimen and in its patient, with intervals, components of variance and decisions.

Slide: S = Σ q_i / n, the panel's share on these cells. Patient: θ = W_0 q_0 + Σ W_i q_i, W ~ Dir(κ, 1, …, 1),
q_0 ~ Dir(κ m), which for certain cells is Beta(κ m_g + x, κ (1 − m_g) + n − x). Limits do not lean on the prior: the
upper one is that of Beta(max(κ m_g, ¾) + x, min(κ (1 − m_g), ¼) + n − x), the lower one is its mirror image. For
certain cells they cover any share with at least .93, between Jeffreys' limits (.90) and Clopper and Pearson's (.95).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, expit, logit, ndtri

from ml.distributions.families import moment_matched
from ml.specimens.cells import Group, Specimen, Threshold, seeded
from ml.specimens.laboratory import FEWEST_SPECIMENS, GroupKnowledge, Laboratory, LogitShare, half_cell_logit
from ml.specimens.own_mix import (
    FEWEST_FOR_OWN_MIX,
    MOST_SWEEPS,
    SWEEPS,
    MixDraws,
    QSums,
    effective_number,
    sample_own_mix,
    split_r_hat,
    sum_expert_shares,
)
from ml.specimens.reads import expected_loss, reads_are_settled, value_per_read, value_reads
from ml.util.arrays import EqualByValue, FloatArray, IntArray

#: R̂ above which the sweeps are doubled, and the answer then is not resolved.
LARGEST_R_HAT = 1.05
#: Cells below which a share is never decided to be below a threshold.
FEWEST_FOR_BELOW = 50
_TAILS = (0.025, 0.975)
#: Cells that the prior counts for the nearer side of a patient's limit at most, and for the further side at least.
LIMIT_CELLS = (0.25, 0.75)
# equally likely values of the annotators' tilt, over which variances are averaged
_TILTS = 25

Assumption = Literal[
    "annotator variance unknown", "cells independent within the specimen", "label is the truth of a cell"
]


@dataclass(frozen=True)
class Share:
    """A share with its equal-tailed 95 % interval."""

    share: float
    low: float
    high: float

    @classmethod
    def of(cls, draws: FloatArray) -> "Share":
        """Mean and quantiles of draws."""
        low, high = np.quantile(draws, _TAILS)
        return cls(float(draws.mean()), float(low), float(high))


@dataclass(frozen=True)
class Components:
    """Variance of the patient's share by source, conditioned in this order: its sum is the variance."""

    sampling: float
    cells: float
    annotators: float

    @property
    def total(self) -> float:
        """Sum of the three."""
        return self.sampling + self.cells + self.annotators


@dataclass(frozen=True)
class ThresholdDecision:
    """Whether the patient's share reaches a threshold.

    It is open while P(wrong) is δ or more, the draws are not resolved, or it would be below with fewer than 50 cells.
    """

    threshold: Threshold
    probability_above: float  # P(θ ≥ t)
    decision: Literal["above", "below", "open"]
    expected_loss: float  # of the better decision, in costs of a false alarm
    settled: bool  # all further reads change the side with less than δ: an open decision then needs more cells


@dataclass(frozen=True, eq=False)
class GroupShare(EqualByValue):
    """Share of one group, its decisions and the worth of reads."""

    group: str
    count: int  # cells whose leading class in the specimen belongs to it
    slide: Share  # S, on these cells
    patient: Share  # θ
    components: Components  # of the variance of θ
    thresholds: tuple[ThresholdDecision, ...]  # in the group's order
    counted: tuple[float, float] | None  # Clopper and Pearson's limits of the labels' count, if every cell has a label
    r_hat: float  # split R̂ of S
    n_effective: float  # independent draws of S
    raw: LogitShare  # S before shift and tilt, for ``fit_shift``
    read_values: FloatArray  # (n,) v, expected fall of the squared error of S by one more read of each cell
    decision_values: FloatArray  # (n,) expected fall of the loss at the thresholds per read, in costs of a false alarm


@dataclass(frozen=True, eq=False)
class SpecimenShares(EqualByValue):
    """Shares of a specimen by group."""

    n_cells: int
    mix: Literal["own", "training"]  # of the training cells with fewer than 20 cells
    resolved: bool  # whether the sampler's chains agree; if not, everything is open
    sweeps: int  # of each chain
    groups: tuple[GroupShare, ...]  # in the order of the call
    class_probs: FloatArray  # (n, K) of each cell in the specimen
    assumes: tuple[Assumption, ...]  # what the intervals leave out


def measure_specimen(
    specimen: Specimen, groups: Sequence[Group], laboratory: Laboratory | None = None, *, delta: float = 0.02
) -> SpecimenShares:
    """Measure shares of groups under the specimen's own mix.

    The numbers depend on the specimen's key, cells, labels and ``laboratory`` alone; the order of cells or classes
    changes none.

    Args:
        specimen: cells with predictions and blinded labels.
        groups: disjoint sums of classes, with thresholds.
        laboratory: what its other specimens taught, by group.
        delta: largest probability of a wrong decision.

    Raises:
        ValueError: groups that overlap, have no class or one that the release lacks; δ outside (0, ½).

    >>> from ml.distributions import DirichletCpe
    >>> prior = DirichletCpe(np.tile([0.98, 0.02], (60, 1)), np.zeros(60))
    >>> cells = tuple(f"cell {i}" for i in range(60))
    >>> specimen = Specimen("S-1042", cells, ("mature", "blast"), prior, np.array([0.5, 0.5]))
    >>> blasts = measure_specimen(specimen, [Group("blasts", ("blast",), (Threshold(0.2),))]).groups[0]
    >>> blasts.thresholds[0].decision
    'below'
    """
    if not 0 < delta < 0.5:
        raise ValueError(f"delta must lie in (0, 1/2), got {delta}")
    (rows, columns), members, learned = specimen.order, specimen.members(), laboratory or Laboratory()
    membership, mix, own = specimen.memberships(groups)[columns], specimen.mix[columns], len(rows) >= FEWEST_FOR_OWN_MIX
    rng, sweeps, begin = seeded(specimen.key), SWEEPS, None
    while True:
        more, every = sweeps if begin is None else sweeps // 2, sweeps // SWEEPS
        draws = sample_own_mix(members.mean, mix, learned.kappa, rng, own=own, sweeps=more, every=every, begin=begin)
        sums = sum_expert_shares(members, draws, membership, mix, learned.kappa, rng)
        r_hats = [split_r_hat(sums.total[g]) for g in range(len(groups))]
        resolved = max(r_hats, default=1.0) <= LARGEST_R_HAT
        if resolved or sweeps == MOST_SWEEPS:
            break
        sweeps, begin = 2 * sweeps, draws.ratios[-1]
    values, class_probs = value_reads(members, draws, membership, len(groups))
    back = np.argsort(rows), np.argsort(columns)
    counts = np.bincount(membership[class_probs.argmax(axis=1)], minlength=len(groups))
    noise = rng.permutation(_normal_scores(sums.outside[0].size)).reshape(sums.outside[0].shape)
    label_part = _label_part(specimen, draws, membership, len(groups))
    shares = []
    for g, group in enumerate(groups):
        taught, inside = learned.of(group.name), class_probs[:, membership == g].sum(axis=1)
        raw = _logit_share(sums.of_group(g), inside)
        shift = taught.shift * raw.sensitivity * rng.permutation(noise.ravel()).reshape(noise.shape)
        moves = shift, label_part[g] * _tilt(specimen, taught), draws.draw_of_chain
        of_group = _GroupDraws(sums.of_group(g), len(rows), learned.kappa, float(mix[membership == g].sum()), *moves)
        numbers = raw, int(counts[g]), values[back[0], g], delta * resolved
        shares.append(_group_share(specimen, group, of_group, noise, rng, *numbers))
    in_order = class_probs[back[0]][:, back[1]], _assumptions(specimen, [learned.of(group.name) for group in groups])
    return SpecimenShares(len(rows), "own" if own else "training", resolved, sweeps, tuple(shares), *in_order)


def _normal_scores(count: int) -> FloatArray:
    """Evenly spread normal quantiles with variance one."""
    scores = ndtri((np.arange(count) + 0.5) / count)
    return np.asarray(scores / scores.std())


def _tilt(specimen: Specimen, known: GroupKnowledge) -> float:
    """σ_b of the mean of the annotators; names have their matrices instead, and a specimen without labels none."""
    tilted = specimen.named is None and specimen.counts.any()
    return (known.tilt or 0.0) / float(np.sqrt(max(1, specimen.n_annotators))) if tilted else 0.0


def _label_part(specimen: Specimen, draws: MixDraws, membership: IntArray, n_groups: int) -> FloatArray:
    """Share (G,) of a group's doubt before any label that labels resolve: annotators tilt these answers alone.

    A label moves the mean of a cell by n / (α + n) of what it differs by; no label moves a cell that is certain.
    """
    (rows, columns), counts = specimen.order, specimen.counts.sum(axis=1)
    before = moment_matched(specimen.prior)
    alpha = np.exp(before.log_concentration[rows]) if specimen.target == "panel" else np.zeros(len(rows))
    weights = before.class_probs[rows][:, columns] * draws.ratios.mean(axis=(0, 1))
    inside = weights / weights.sum(axis=1, keepdims=True) @ (membership[:, None] == np.arange(n_groups))
    doubt = inside * (1 - inside) + 1e-12
    return np.asarray((counts[rows] / np.maximum(alpha + counts[rows], 1e-12)) @ doubt / doubt.sum(axis=0))


def _logit_share(sums: QSums, inside: FloatArray) -> LogitShare:
    """Describe S, with the sensitivity and the noise of labels by their derivatives."""
    n, middle = len(inside), (sums.total.mean() + 0.5) / (len(inside) + 1)
    logits, scale = half_cell_logit(sums.total / n, n), (n + 1) * middle * (1 - middle)
    noise = (sums.total - sums.squares).mean() / scale**2
    sensitivity = (inside * (1 - inside)).sum() / scale
    return LogitShare(n, float(logits.mean()), float(logits.var()), float(sensitivity), float(noise))


def _assumptions(specimen: Specimen, known: Sequence[GroupKnowledge]) -> tuple[Assumption, ...]:
    """What the interval of any group leaves out."""
    unlearned = any(group.tilt is None for group in known)
    unknown = specimen.named is None and unlearned and bool(specimen.counts.any())
    independent = any(group.n_specimens < FEWEST_SPECIMENS for group in known)
    holds = (unknown, independent, specimen.target == "label")
    return tuple(name for name, flag in zip(get_args(Assumption), holds, strict=True) if flag)


@dataclass(frozen=True)
class _GroupDraws:
    """Draws of one group, and what moves them."""

    sums: QSums
    n_cells: int
    kappa: float
    mix: float  # m_g
    shift: FloatArray  # of each draw of S on its log-odds
    tilt: float  # σ_b of the mean of the annotators
    draw_of_chain: npt.NDArray[np.intp]

    def moved(self, tilt: FloatArray | float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """S, Σq² and the weighted mean of q after shift and tilt b: each q moves towards 0 or 1 in proportion."""
        n, total, squares, weighted = self.n_cells, self.sums.total, self.sums.squares, self.sums.weighted
        share = target = total / n
        if self.shift.any():
            shifted = expit(half_cell_logit(share, n) + self.shift)
            target = np.clip(((n + 1) * shifted - 0.5) / n, 0.0, 1.0)
        if self.tilt > 0:
            target = expit(logit(target) + tilt)
        down, room = target <= share, np.where(target <= share, share, 1 - share)
        scale = np.where(room > 0, np.where(down, target, 1 - target) / np.where(room > 0, room, 1.0), 1.0)
        up = n - 2 * scale * (n - total) + scale**2 * (n - 2 * total + squares)  # Σ(1 − scale (1 − q))²
        moved = np.where(down, scale * weighted, 1 - scale * (1 - weighted))
        return target, np.where(down, scale**2 * squares, up), moved

    def components(self) -> Components:
        """Variance of θ, nested: sampling given cells, cells given annotators, annotators."""
        prior, size = self.kappa * self.mix, self.n_cells + self.kappa
        nodes = _normal_scores(_TILTS) if self.tilt > 0 else np.zeros(1)
        by_node = np.empty((len(nodes), 3))
        for row, node in enumerate(nodes):
            share, squares, _ = self.moved(node * self.tilt)
            c = (self.n_cells * share + prior) / size
            inside = squares + prior - size * c**2
            by_node[row] = inside.mean() / (size * (size + 1)), c.var(), c.mean()
        (sampling, cells, _), annotators = by_node.mean(axis=0), by_node[:, 2].var()
        if self.draw_of_chain.any():
            annotators = min(cells, _between_draws(c.mean(axis=0), self.draw_of_chain))
            cells -= annotators
        return Components(float(sampling), float(cells), float(annotators))


def _between_draws(chain_means: FloatArray, draw_of_chain: npt.NDArray[np.intp]) -> float:
    """Variance between draws of the matrices of the mean, less what the chains of one draw differ by."""
    by_draw = [chain_means[draw_of_chain == b] for b in range(int(draw_of_chain.max()) + 1)]
    noise = np.mean([means.var(ddof=1) / means.size for means in by_draw])
    return max(0.0, float(np.var([means.mean() for means in by_draw], ddof=1) - noise))


def _group_share(
    specimen: Specimen,
    group: Group,
    draws: _GroupDraws,
    noise: FloatArray,
    rng: np.random.Generator,
    raw: LogitShare,
    count: int,
    values: FloatArray,
    delta: float,
) -> GroupShare:
    n, sums = draws.n_cells, draws.sums
    slide, _, weighted = draws.moved(draws.tilt * noise)
    theta = sums.outside * sums.elsewhere + (1 - sums.outside) * weighted
    components = draws.components()
    readable, moved = components.cells + components.annotators, values * (n / (n + draws.kappa)) ** 2
    return GroupShare(
        group=group.name,
        count=count,
        slide=Share.of(slide),
        patient=_patient_share(theta, weighted, draws, rng),
        components=components,
        thresholds=tuple(_decide(theta, readable, t, n, delta) for t in group.thresholds),
        counted=_counted(specimen, group),
        r_hat=split_r_hat(sums.total),
        n_effective=effective_number(sums.total),
        raw=raw,
        read_values=values,
        decision_values=sum((value_per_read(theta, moved, readable, t) for t in group.thresholds), np.zeros(n)),
    )


def _patient_share(theta: FloatArray, weighted: FloatArray, draws: _GroupDraws, rng: np.random.Generator) -> Share:
    """Mean of θ, with limits of other prior counts: the cells that were sampled have the weight Gamma(n) together."""
    prior, (least, most) = draws.kappa * np.array([draws.mix, 1 - draws.mix]), LIMIT_CELLS
    cells = rng.standard_gamma(draws.n_cells, weighted.shape)
    limits = []
    for side, (inside, others) in ((weighted, prior), (1 - weighted, prior[::-1])):
        more, rest = (rng.standard_gamma(count, cells.shape) for count in (max(inside, most), min(others, least)))
        limits.append(float(np.quantile((cells * side + more) / (cells + more + rest), _TAILS[1])))
    return Share(float(theta.mean()), 1 - limits[1], limits[0])


def _decide(theta: FloatArray, readable: float, threshold: Threshold, n_cells: int, delta: float) -> ThresholdDecision:
    above = float((theta >= threshold.at).mean())
    reach = threshold.miss_cost * above >= 1 - above
    wrong = 1 - above if reach else above
    decided = wrong < delta and (reach or n_cells >= FEWEST_FOR_BELOW)
    decision: Literal["above", "below", "open"] = ("above" if reach else "below") if decided else "open"
    settled = reads_are_settled(theta, readable, threshold, delta)
    return ThresholdDecision(threshold, above, decision, float(expected_loss(above, threshold)), settled)


def _counted(specimen: Specimen, group: Group) -> tuple[float, float] | None:
    """Clopper and Pearson's limits of the count of the group by labels, each cell once; None if any has no label."""
    counts = specimen.counts
    totals = counts.sum(axis=1)
    if not (totals > 0).all():
        return None
    inside = counts[:, [specimen.classes.index(code) for code in group.classes]].sum(axis=1) / totals
    x, n = float(inside.sum()), len(totals)
    low = float(betaincinv(x, n - x + 1, _TAILS[0])) if x > 0 else 0.0
    return low, float(betaincinv(x + 1, n - x, _TAILS[1])) if x < n else 1.0
