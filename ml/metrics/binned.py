"""Binned frequencies and probabilities: calibration losses and reliability diagrams.

Cases run through in chunks whose cells stay in the processor's cache; the cases of a cluster stand together in a
``Sample``, so that no cell is ever split between chunks.
"""

from collections.abc import Callable, Collection, Iterator, Set
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import pairwise
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from ml.documents import AsDocument
from ml.metrics.bayesian_bootstrap import MANY, moment_intervals
from ml.metrics.cases import Sample
from ml.metrics.jackknife import (
    FEW_EVENTS,
    LINEAR,
    Bounds,
    Estimate,
    QuadraticPart,
    Replicates,
    binomial_interval,
    ratio_replicates,
    to_estimate,
)
from ml.metrics.sums import Batch, BinIndex, BinSums, ClusterBinSums, Debias, Strategy, sums_by_slot
from ml.util.arrays import FloatArray, IntArray


class BinDocument(TypedDict):
    """A ``ReliabilityBin`` as JSON values."""

    low: float
    high: float
    n: int
    mean_prob: float | None
    mean_freq: float | None
    freq_low: float | None
    freq_high: float | None


@dataclass(frozen=True)
class ReliabilityBin(AsDocument[BinDocument]):
    """One row of a reliability diagram.

    Attributes:
        low: lower edge of the bin.
        high: upper edge.
        n: cases in it.
        mean_prob: mean probability; None in an empty bin.
        mean_freq: mean label frequency; None in an empty bin.
        freq_low: lower end of the 95 % interval of the mean frequency; None in bins with one member.
        freq_high: upper end.
    """

    low: float
    high: float
    n: int
    mean_prob: float | None
    mean_freq: float | None
    freq_low: float | None
    freq_high: float | None


# Beyond one, the effective number of members at or below which a bin has no pairs: where all but one member weigh
# nothing, rounding leaves a little more than none.
_NO_PAIRS = 1e-9


def _plugin(weight: FloatArray, cases: IntArray, diff: FloatArray) -> FloatArray:
    return np.where(cases > 0, diff**2 / np.where(weight > 0, weight, 1.0), 0.0)


def _has_two(weight: FloatArray, members: IntArray, weight_sq: FloatArray) -> npt.NDArray[np.bool_]:
    return np.asarray((members >= 2) & (weight**2 - weight_sq > _NO_PAIRS * weight_sq))


def _pair(
    weight: FloatArray, cells: IntArray, diff: FloatArray, cell_weight_sq: FloatArray, cell_diff_sq: FloatArray
) -> FloatArray:
    usable = _has_two(weight, cells, cell_weight_sq)
    ratio = (diff**2 - cell_diff_sq) / np.where(usable, weight**2 - cell_weight_sq, 1.0)
    return np.where(usable, weight * ratio, 0.0)


def _paper(
    weight: FloatArray, cases: IntArray, diff: FloatArray, weight_sq: FloatArray, freq: FloatArray, freq_sq: FloatArray
) -> FloatArray:
    usable = _has_two(weight, cases, weight_sq)
    weight = np.where(weight > 0, weight, 1.0)
    spare = weight**2 / np.where(weight_sq > 0, weight_sq, 1.0) - 1
    variance = freq_sq / weight - (freq / weight) ** 2
    return np.where(usable, diff**2 / weight - weight * variance / np.where(usable, spare, 1.0), 0.0)


#: By which sums a debiased form can use a bin: two cells, or cases, of positive weights.
_MEMBERS: dict[Debias, tuple[str, str, str]] = {
    "pair": ("weight", "cells", "cell_weight_sq"),
    "paper": ("weight", "cases", "weight_sq"),
}
#: How each form of CL follows from which sums.
_FORMS: dict[Debias, tuple[Callable[..., FloatArray], tuple[str, ...]]] = {
    "none": (_plugin, ("weight", "cases", "diff")),
    "pair": (_pair, ("weight", "cells", "diff", "cell_weight_sq", "cell_diff_sq")),
    "paper": (_paper, ("weight", "cases", "diff", "weight_sq", "freq", "freq_sq")),
}


def contributions(sums: BinSums, debias: Debias) -> FloatArray:
    """Contribution of each bin to W·CL, W the total weight."""
    form, names = _form(debias)
    return form(*(getattr(sums, name) for name in names))


def calibration_sum(sums: BinSums, debias: Debias) -> float:
    """W·CL over bins; NaN if there are cases but no bin that the form can use."""
    if (sums.weight > 0).any() and not usable_bins(sums, debias).any():
        return float("nan")
    return float(contributions(sums, debias).sum())


def bins_lost(sums: BinSums, cells: Any, slot: npt.NDArray[np.intp], debias: Debias) -> npt.NDArray[np.bool_] | None:
    """Mask (M,) of the cells that a bin needs; None if none."""
    usable = usable_bins(sums, debias)
    # a bin of three clusters stays usable without any one of them
    if debias == "none" or (sums.weight[usable] ** 2 > 2.01 * sums.cell_weight_sq[usable]).any():
        return None
    left = [getattr(sums, name).take(slot) - getattr(cells, name) for name in _MEMBERS[debias]]
    return usable.take(slot) & ~_has_two(*left)


def contributions_without(
    sums: BinSums, cells: Any, slot: npt.NDArray[np.intp], forms: Collection[Debias]
) -> dict[Debias, FloatArray]:
    """Contribution (M,) of each cell's bin without the cell."""
    needed = {name for debias in forms for name in _form(debias)[1]}
    # these cells may weigh as much as they have cases where others do not
    even = cells.cases is cells.weight and np.array_equal(sums.cases, sums.weight)
    twice = {"cases"} & needed if even else set()
    left = {name: getattr(sums, name).take(slot) - getattr(cells, name) for name in needed - twice}
    left |= {name: left["weight"] for name in twice}
    return {debias: _FORMS[debias][0](*(left[name] for name in _FORMS[debias][1])) for debias in forms}


def _form(debias: Debias) -> tuple[Callable[..., FloatArray], tuple[str, ...]]:
    if debias not in _FORMS:
        raise ValueError(f"debias must be 'pair', 'paper' or 'none', got {debias!r}")
    return _FORMS[debias]


def is_debiased(debias: Debias) -> bool:
    """Whether a form corrects the plug-in."""
    _form(debias)
    return debias != "none"


def usable_bins(sums: BinSums, debias: Debias = "pair") -> npt.NDArray[np.bool_]:
    """Mask of the bins that a form can use."""
    if debias == "none":
        return np.asarray(sums.weight > 0)
    return _has_two(*(getattr(sums, name) for name in _MEMBERS[debias]))


def merge_map(
    usable: npt.NDArray[np.bool_], owner: npt.NDArray[np.intp], first: npt.NDArray[np.intp]
) -> npt.NDArray[np.intp]:
    """Slot (S,) that each slot joins so that bins have pairs."""
    # a slot without a pair has its only cluster for owner, an empty one −1
    target = np.arange(usable.size)
    for start, stop in pairwise(first.tolist()):
        group: list[int] = []
        last = None
        for slot in range(stop - 1, start - 1, -1):
            if owner[slot] < 0:
                continue
            group.append(slot)
            if usable[slot] or len({int(owner[member]) for member in group}) > 1:
                target[group], last, group = slot, slot, []
        if group and last is not None:
            target[group] = last
    return target


# half an interval below which differences are rounding
_NO_SPREAD = 1e-9


@dataclass
class Binned:
    """Frequencies and probabilities (n, C) in bins."""

    sample: Sample  # the cases
    slots: BinIndex  # bins of all columns
    forms: Set[Debias]  # of CL that are asked for
    bins: BinSums  # sums over all cells
    cells: list[ClusterBinSums] = field(default_factory=list)  # those of each batch
    joins: bool = False  # whether bins without a pair join others

    @classmethod
    def empty(cls, sample: Sample, slots: BinIndex, forms: Set[Debias], *, joining: bool = False) -> "Binned":
        """An empty table; ``add`` takes the cases chunk by chunk."""
        weight = sample.weight
        joins = joining and bool(weight.size) and bool((weight != weight[0]).any())
        return cls(sample, slots, forms, BinSums.zeros(len(slots)), joins=joins)

    @classmethod
    def of(
        cls,
        freqs: FloatArray,
        probs: FloatArray,
        sample: Sample,
        n_bins: int,
        strategy: Strategy | FloatArray,
        debias: Debias | Set[Debias],
        *,
        joining: bool = False,
    ) -> "Binned":
        """Bin frequencies and probabilities (n, C) of a sample."""
        forms = {debias} if isinstance(debias, str) else debias
        binned = cls.empty(sample, BinIndex.of(probs, n_bins, strategy), forms, joining=joining)
        for part in binned.chunks():
            binned.add(part, freqs[part], probs[part])
        return binned

    def chunks(self) -> Iterator[slice]:
        """Consecutive cases of the sample, never parting those of a cluster."""
        return self.slots.chunks(self.sample.rows.size, self.sample.cluster)

    def add(self, part: slice, freqs: FloatArray, probs: FloatArray) -> Batch:
        """Add a chunk of the sample's cases, and return the batch."""
        alone = self.sample.cluster is None
        cluster = np.arange(part.start, part.stop) if self.sample.cluster is None else self.sample.cluster[part]
        batch = Batch(freqs, probs, self.sample.weight[part], self.slots, cluster, alone)
        cells = batch.cells(squares="paper" in self.forms)
        self.bins = self.bins + (batch.sums() if alone else cells.sums(len(self.slots)))
        self.cells.append(cells)
        return batch

    def _chosen(self, column: int | None) -> slice:
        return (
            slice(None) if column is None else slice(int(self.slots.first[column]), int(self.slots.first[column + 1]))
        )

    def value(self, debias: Debias, column: int | None = None) -> float:
        """CL over all columns or of one; NaN without pairs."""
        weight = float(self.sample.weight.sum())
        bins = self._paired.bins if debias == "pair" else self.bins
        total = calibration_sum(bins.take(self._chosen(column)), debias)
        return total / weight if weight > 0 else float("nan")

    def replicates(self, debias: Debias) -> Replicates:
        """CL with its leave-one-cluster-out values."""
        return self._replicates_by_form[debias]

    @cached_property
    def _replicates_by_form(self) -> dict[Debias, Replicates]:
        joined: Set[Debias] = self.forms & {"pair"} if self.joins else set()
        return self._paired._replicates(joined) | self._replicates(self.forms - joined)

    def _replicates(self, forms: Set[Debias]) -> dict[Debias, Replicates]:
        full = {debias: contributions(self.bins, debias) for debias in forms}
        taken = {debias: np.zeros(self.sample.n_clusters) for debias in forms}
        n_usable = {debias: int(usable_bins(self.bins, debias).sum()) for debias in forms}
        n_lost = {debias: np.zeros(self.sample.n_clusters) for debias in forms}
        for cells in self.cells if forms else []:
            slot = cells.slot.astype(np.intp)
            low, high = int(cells.cluster.min()), int(cells.cluster.max()) + 1
            place = (cells.cluster - low).astype(np.intp)
            for debias, without in contributions_without(self.bins, cells, slot, forms).items():
                taken[debias][low:high] = np.bincount(place, full[debias].take(slot) - without, high - low)
                if (lost := bins_lost(self.bins, cells, slot, debias)) is not None:
                    n_lost[debias][low:high] = np.bincount(place, lost, high - low)
        for debias in forms - {"none"}:
            taken[debias][n_lost[debias] == n_usable[debias]] = np.nan
        totals = {debias: calibration_sum(self.bins, debias) for debias in forms}
        return {debias: ratio_replicates(totals[debias], taken[debias], self.sample) for debias in forms}

    @property
    def _paired(self) -> "Binned":
        """The table with bins joined until each has a pair."""
        return self._joined or self  # a cycle would keep the cells

    @cached_property
    def _joined(self) -> "Binned | None":
        if not self.joins:
            return None
        usable = usable_bins(self.bins)
        owner = np.where(self.bins.weight > 0, np.arange(len(self.slots)), -1)
        if self.sample.cluster is not None:
            for cells in self.cells:
                lonely = np.flatnonzero(~usable[cells.slot] & (cells.weight > 0))
                owner[cells.slot[lonely]] = cells.cluster[lonely]
        return self._merged(merge_map(usable, owner, self.slots.first))

    def _merged(self, target: npt.NDArray[np.intp]) -> "Binned | None":
        if (target == np.arange(target.size)).all():
            return None
        alone = self.sample.cluster is None
        cells = [part.merged(target, alone=alone) for part in self.cells]
        bins = self.bins.merged(target) if alone else BinSums.zeros(target.size)
        for part in [] if alone else cells:
            bins = bins + part.sums(target.size)
        return Binned(self.sample, self.slots, self.forms, bins, cells)

    def frequency_totals(self) -> FloatArray:
        """Weighted sums Σwμ̂ (C,) over all cases, one per class."""
        return np.asarray(np.add.reduceat(self.bins.freq, self.slots.first[:-1]))

    def frequency_sums(self) -> Iterator[FloatArray]:
        """The same of each cluster (g, C), in chunks of consecutive clusters."""
        n_columns = len(self.slots.edges)
        column = np.repeat(np.arange(n_columns), np.diff(self.slots.first))
        for cells in self.cells:
            low, high = int(cells.cluster[0]), int(cells.cluster[-1]) + 1
            labelled = np.flatnonzero(cells.freq != 0)  # few of them
            at = (cells.cluster.take(labelled) - low) * n_columns + column.take(cells.slot.take(labelled))
            yield sums_by_slot(at, cells.freq.take(labelled), (high - low) * n_columns).reshape(-1, n_columns)

    def constant_loss(self) -> Replicates:
        """Loss of the best constant, refitted without each cluster."""
        sample, total = self.sample, self.frequency_totals()
        weight, own, squares = sample.total_weight, sample.cluster_weight, np.full(sample.n_clusters, np.nan)
        if total.size == 1:
            removed = np.concatenate([np.empty((0, 1)), *self.frequency_sums()])[:, 0]
            rate = ratio_replicates(float(total[0]), removed, sample)
            return Replicates(rate.value * (1 - rate.value), rate.without * (1 - rate.without))
        if weight <= 0:
            return Replicates(float("nan"), squares)
        start = 0
        for sums in self.frequency_sums():
            part = slice(start, start := start + len(sums))
            with np.errstate(invalid="ignore", divide="ignore"):
                left = (total - sums) / (weight - own[part])[:, None]
            squares[part] = np.einsum("gk,gk->g", left, left)
        return Replicates(float(1 - ((total / weight) ** 2).sum()), 1 - squares)

    def singleton_mass(self, debias: Debias) -> float:
        """Share of the weight in bins without a pair."""
        weight = float(self.sample.weight.sum()) * len(self.slots.edges)
        lonely = float(self.bins.weight[~usable_bins(self.bins, debias)].sum())
        return lonely / weight if weight > 0 else 0.0

    def estimate(self, debias: Debias) -> Estimate:
        """CL over all columns with its interval."""
        replicates = self.replicates(debias)
        quadratic, gaps = self.quadratic_part(debias, replicates), self.mean_gaps_squared
        return to_estimate(replicates, self.sample, self.singleton_mass(debias), quadratic=quadratic, includes=gaps)

    @cached_property
    def mean_gaps_squared(self) -> Bounds | None:
        """Range of Σ_k (mean of μ̂_k − z_k)², which CL exceeds, if at most a few gaps are large; else None.

        Where hardly a label is unexpected, the cases do not show how much CL may vary.
        """
        sample = self.sample
        if not 2 <= sample.n_clusters < MANY or not self.cells:
            return None
        cells = ClusterBinSums.joined(self.cells)
        column = np.searchsorted(self.slots.first, cells.slot, side="right") - 1
        prob, n_columns = (
            (cells.freq - cells.diff) / np.where(cells.weight > 0, cells.weight, 1.0),
            len(self.slots.edges),
        )
        at, size = cells.cluster.astype(np.intp) * n_columns + column, sample.n_clusters * n_columns
        gaps = sums_by_slot(at, cells.diff, size).reshape(-1, n_columns)
        # within a bin, since the cases of a patient cancel in the mean
        large = (cells.weight > 0) & (np.abs(cells.diff) >= cells.weight / 2)
        if np.unique(cells.cluster[large]).size >= FEW_EVENTS:
            return None
        least, most = np.full(n_columns, np.inf), np.full(n_columns, -np.inf)
        np.minimum.at(least, column, prob)
        np.maximum.at(most, column, prob)
        ends = moment_intervals(gaps, sample.cluster_weight, sample.largest_weight, -most, 1 - least)
        smaller, larger = np.sort(np.abs(ends), axis=0)
        smaller = np.where((ends[0] < 0) & (ends[1] > 0), 0.0, smaller)
        return Bounds(float(smaller @ smaller), float(larger @ larger))

    def quadratic_part(self, debias: Debias, replicates: Replicates) -> QuadraticPart:
        """Pairs of clusters in the error of CL: ψ_gh = 2 Σ_b c_b e_gb e_hb."""
        bins, moved = self._paired.bins, replicates.value - replicates.without
        if debias != "pair" or not self.joins or self.sample.total_weight <= 0 or not np.isfinite(moved).all():
            return LINEAR
        pairs = np.where(usable_bins(bins), bins.weight**2 - bins.cell_weight_sq, np.inf)
        mean = bins.diff / np.where(bins.weight > 0, bins.weight, 1.0)
        crossed, own, squares, fourths = np.zeros((4, len(self.slots)))
        for cells in self._paired.cells:
            slot = cells.slot.astype(np.intp)
            above = cells.diff - mean[slot] * cells.weight
            by_move = moved[cells.cluster] * above
            for sums, terms in ((crossed, by_move), (own, by_move**2), (squares, above**2), (fourths, above**4)):
                sums += sums_by_slot(slot, terms, len(self.slots))
        share = bins.weight / (pairs * self.sample.total_weight)
        return QuadraticPart(
            curvature=float((2 * share * (crossed**2 - own)).sum()),
            variance=float((2 * share**2 * (squares**2 - fourths)).sum()),
        )

    def horvitz_thompson(self, pairs: "PairCounts") -> float:
        """CL over all cases by their selection probabilities."""
        if not (pairs.pairs > 0).any():
            return float("nan")
        crossed = self.bins.diff**2 - self.bins.cell_diff_sq
        shares = pairs.cases * crossed / np.where(pairs.pairs > 0, pairs.pairs, np.inf)
        return float(shares.sum()) / pairs.n_cases

    def diagram(self, column: int | None = None) -> tuple[ReliabilityBin, ...]:
        """Rows of the reliability diagram of one column, or of all."""
        edges = self.slots.edges[0 if column is None else column]
        n_bins, chosen = len(edges) - 1, self._chosen(column)
        of_slots = self.bins.take(chosen)
        sums = BinSums(*(getattr(of_slots, f.name).reshape(-1, n_bins).sum(axis=0) for f in fields(BinSums)))
        mean, members = sums.freq / np.where(sums.weight > 0, sums.weight, 1.0), sums.cells
        # Σ (Σwμ̂ − mean Σw)² over cells; rounding may leave less than nothing
        squares, crossed = (of_own_mean[chosen] for of_own_mean in self._spread)
        moved = np.resize(mean, squares.size) - self._mean[chosen]
        spread = np.maximum(squares - 2 * moved * crossed + moved**2 * of_slots.cell_weight_sq, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            half = 1.96 * np.sqrt(spread.reshape(-1, n_bins).sum(axis=0) * members / (members - 1)) / sums.weight
        low, high = np.maximum(0.0, mean - half), np.minimum(1.0, mean + half)
        alike = half < _NO_SPREAD
        low[alike], high[alike] = binomial_interval(mean[alike], members[alike])
        rows = []
        for b in range(n_bins):
            weight, has_interval = sums.weight[b], members[b] > 1 and np.isfinite(half[b])
            rows.append(
                ReliabilityBin(
                    low=float(edges[b]),
                    high=float(edges[b + 1]),
                    n=int(sums.cases[b]),
                    mean_prob=float(sums.prob[b] / weight) if weight > 0 else None,
                    mean_freq=float(mean[b]) if weight > 0 else None,
                    freq_low=float(low[b]) if has_interval else None,
                    freq_high=float(high[b]) if has_interval else None,
                )
            )
        return tuple(rows)

    @cached_property
    def _mean(self) -> FloatArray:
        return self.bins.freq / np.where(self.bins.weight > 0, self.bins.weight, 1.0)

    @cached_property
    def _spread(self) -> tuple[FloatArray, FloatArray]:
        """Σ e² and Σ e Σw (S,), e = Σwμ̂ − mean Σw."""
        squares, crossed = np.zeros(len(self.slots)), np.zeros(len(self.slots))
        for cells in self.cells:
            slot = cells.slot.astype(np.intp)
            above = cells.freq - self._mean[slot] * cells.weight
            squares += sums_by_slot(slot, above**2, len(squares))
            crossed += sums_by_slot(slot, above * cells.weight, len(squares))
        return squares, crossed


@dataclass(frozen=True)
class PairCounts:
    """Cases and pairs of different clusters in each slot."""

    n_cases: int  # N
    cases: FloatArray  # (S,) N_b
    pairs: FloatArray  # (S,)

    @classmethod
    def of(cls, probs: FloatArray, everyone: Sample, n_bins: int) -> "PairCounts":
        """Count in equal-width bins."""
        slots = BinIndex.of(probs[:0], n_bins, "uniform")
        cases, own = np.zeros(len(slots)), np.zeros(len(slots))
        for part in slots.chunks(len(probs), everyone.cluster):
            slot = slots.index(probs[part])
            here = np.bincount(slot.ravel(), minlength=len(slots))
            cases += here
            if everyone.cluster is None:
                own += here
                continue
            cluster = everyone.cluster[part] - everyone.cluster[part.start]
            key = cluster[:, None] * len(slots) + slot
            size = np.bincount(key.ravel(), minlength=(int(cluster[-1]) + 1) * len(slots)).reshape(-1, len(slots))
            own += np.einsum("gs,gs->s", size, size)
        return cls(len(probs), cases, cases**2 - own)
