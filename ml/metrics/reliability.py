"""Binned frequencies and probabilities: calibration losses and reliability diagrams.

Cases run through in chunks whose cells stay in the processor's cache; the cases of a cluster stand together in a
``Sample``, so that no cell is ever split between chunks.
"""

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ml.metrics.binning import (
    BinIndex,
    BinSums,
    Debias,
    Strategy,
    bins_lost,
    calibration_sum,
    contributions,
    contributions_without,
    merge_map,
    singleton_weight,
    sums_by_slot,
    usable_bins,
)
from ml.metrics.cluster_bin_sums import Batch, ClusterBinSums
from ml.metrics.evaluation import ReliabilityBin
from ml.metrics.intervals import LINEAR, QuadraticPart, ReaderPart, binomial_interval
from ml.metrics.jackknife import Estimate, Replicates, Sample, ratio_replicates, to_estimate
from ml.util.arrays import FloatArray

# half an interval below which differences are rounding
_NO_SPREAD = 1e-9


@dataclass
class Binned:
    """Frequencies and probabilities (n, C) gathered into bins, a column per class.

    Attributes:
        sample: the cases.
        slots: bins of all columns.
        debias: the form of CL that will be asked for, besides the plug-in.
        bins: sums over all cells.
        cells: those of each batch.
        joining: whether the pair form joins bins without a pair to others where weights differ, as evaluations do.
    """

    sample: Sample
    slots: BinIndex
    debias: Debias
    bins: BinSums
    cells: list[ClusterBinSums] = field(default_factory=list)
    joining: bool = False

    @classmethod
    def empty(cls, sample: Sample, slots: BinIndex, debias: Debias, *, joining: bool = False) -> "Binned":
        """Nothing yet; ``add`` takes the sample's cases chunk by chunk."""
        return cls(sample, slots, debias, BinSums.zeros(len(slots)), joining=joining)

    @classmethod
    def of(
        cls,
        freqs: FloatArray,
        probs: FloatArray,
        sample: Sample,
        n_bins: int,
        strategy: Strategy | FloatArray,
        debias: Debias,
        *,
        joining: bool = False,
    ) -> "Binned":
        """Bin frequencies and probabilities (n, C) of the sample's cases, each column by its own edges.

        Args:
            freqs: (n, C).
            probs: (n, C).
            sample: the cases.
            n_bins: bins of [0, 1].
            strategy: as in ``bin_edges``.
            debias: the form that will be asked for, besides the plug-in.
            joining: whether bins without a pair join others where weights differ.
        """
        binned = cls.empty(sample, BinIndex.of(probs, n_bins, strategy), debias, joining=joining)
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
        cells = batch.cells(squares=self.debias == "paper")
        self.bins = self.bins + (batch.sums() if alone else cells.sums(len(self.slots)))
        self.cells.append(cells)
        return batch

    def _chosen(self, column: int | None) -> slice:
        """Slots of one column, or of all."""
        return (
            slice(None) if column is None else slice(int(self.slots.first[column]), int(self.slots.first[column + 1]))
        )

    def value(self, debias: Debias, column: int | None = None) -> float:
        """CL over all columns or of one; NaN without cases, or if no bin holds two that it can compare."""
        weight = float(self.sample.weight.sum())
        bins = self._paired.bins if debias == "pair" else self.bins
        total = calibration_sum(bins.take(self._chosen(column)), debias)
        return total / weight if weight > 0 else float("nan")

    def replicates(self, debias: Debias) -> Replicates:
        """CL over all columns, with its leave-one-cluster-out values; bins are joined as those of all cases are."""
        return self.replicates_of({debias})[debias]

    def replicates_of(self, forms: Set[Debias]) -> dict[Debias, Replicates]:
        """The same in several forms; those that rest on the same bins go through the cells together."""
        joined = {debias for debias in forms if self.joins and debias == "pair"}
        return self._paired._replicates(joined) | self._replicates(forms - joined)

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

    @cached_property
    def joins(self) -> bool:
        """Whether bins without a pair join others: where weights differ, and few heavy cases stand for many."""
        weight = self.sample.weight
        return self.joining and bool(weight.size) and bool((weight != weight[0]).any())

    @property
    def _paired(self) -> "Binned":
        """The same with bins joined until each has a pair of clusters; as it is where all cases weigh the same."""
        return self._joined or self  # what kept itself would keep its cells until the garbage is collected

    @cached_property
    def _joined(self) -> "Binned | None":
        """The same with other bins; None where they would be the same."""
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
        return Binned(self.sample, self.slots, self.debias, bins, cells)

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

    def singleton_mass(self, debias: Debias) -> float:
        """Share of the weight in bins that the debiased form cannot use alone, whether they join others or not."""
        weight = float(self.sample.weight.sum()) * len(self.slots.edges)
        return singleton_weight(self.bins, debias) / weight if weight > 0 else 0.0

    def estimate(
        self,
        debias: Debias,
        readers: Callable[[Replicates], ReaderPart | None] = lambda replicates: None,
        replicates: Replicates | None = None,
    ) -> Estimate:
        """CL over all columns; ``readers`` says what they add to the error, ``replicates`` may be known already."""
        replicates, lonely = replicates or self.replicates(debias), self.singleton_mass(debias)
        # with even weights the jackknife alone covers, and is the interval that was published
        quadratic = self._paired.quadratic_part(replicates) if debias == "pair" and self.joins else LINEAR
        return to_estimate(replicates, self.sample, lonely, quadratic=quadratic, readers=readers(replicates))

    def quadratic_part(self, replicates: Replicates) -> QuadraticPart:
        """Pairwise cluster contributions to the pair form's error: ψ_gh = 2 Σ_b c_b e_gb e_hb.

        e_gb is what cluster g's differences in bin b are above the bin's mean and c_b the factor of its pairs. Of the
        variance only products within a bin are taken, so that it is rather too small where clusters lie in several.
        """
        bins, moved = self.bins, replicates.value - replicates.without
        if self.sample.weight.sum() <= 0 or not np.isfinite(moved).all():
            return LINEAR
        pairs = np.where(usable_bins(bins), bins.weight**2 - bins.cell_weight_sq, np.inf)
        mean = bins.diff / np.where(bins.weight > 0, bins.weight, 1.0)
        crossed, own, squares, fourths = np.zeros((4, len(self.slots)))
        for cells in self.cells:
            slot = cells.slot.astype(np.intp)
            above = cells.diff - mean[slot] * cells.weight
            by_move = moved[cells.cluster] * above
            for sums, terms in ((crossed, by_move), (own, by_move**2), (squares, above**2), (fourths, above**4)):
                sums += sums_by_slot(slot, terms, len(self.slots))
        share = bins.weight / (pairs * float(self.sample.weight.sum()))
        return QuadraticPart(
            curvature=float((2 * share * (crossed**2 - own)).sum()),
            variance=float((2 * share**2 * (squares**2 - fourths)).sum()),
        )

    def horvitz_thompson(self, pairs: "PairCounts") -> float:
        """CL in the pair form over all cases, Σ_b N_b/N · Σ_{i≠j} w_i w_j d_i d_j / (pairs of bin b).

        Each pair of cases is selected with the product of their probabilities; N_b and the number of pairs are
        those of all cases, with labels or without, so no weight stands in a denominator. NaN if no bin of all cases
        has a pair; 0 if no pair was labelled, without which the mean over all samples would be biased.
        """
        if not (pairs.pairs > 0).any():
            return float("nan")
        crossed = self.bins.diff**2 - self.bins.cell_diff_sq
        shares = pairs.cases * crossed / np.where(pairs.pairs > 0, pairs.pairs, np.inf)
        return float(shares.sum()) / pairs.n_cases

    def diagram(self, column: int | None = None) -> tuple[ReliabilityBin, ...]:
        """Rows of the reliability diagram of one column, or of all pooled; means are None in empty bins.

        ``freq_low`` and ``freq_high`` are the 95 % interval of the mean frequency, over clusters where there are
        any; None in bins with one member. Where all members show the same frequency they have no spread to judge
        by, and the interval is Clopper and Pearson's for as many yes-or-no answers: of all values between 0 and 1
        with that mean, those vary most.
        """
        edges = self.slots.edges[0 if column is None else column]
        n_bins = len(edges) - 1
        chosen = self._chosen(column)
        sums = BinSums(*(getattr(self.bins, f.name)[chosen].reshape(-1, n_bins).sum(axis=0) for f in fields(BinSums)))
        mean = sums.freq / np.where(sums.weight > 0, sums.weight, 1.0)
        members = sums.cells
        spread = self._own_spread[0] if column is not None else self._spread(np.tile(mean, len(self.slots.edges)))
        spread = spread[chosen].reshape(-1, n_bins).sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            half = 1.96 * np.sqrt(spread * members / (members - 1)) / sums.weight
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
    def _own_mean(self) -> FloatArray:
        """Mean frequency (S,) of each slot."""
        return self.bins.freq / np.where(self.bins.weight > 0, self.bins.weight, 1.0)

    @cached_property
    def _own_spread(self) -> tuple[FloatArray, FloatArray]:
        """Σ e² and Σ e Σw over the cells of each slot (S,), e = Σwμ̂ − mean Σw by the slot's own mean."""
        squares, crossed, mean = np.zeros(len(self.slots)), np.zeros(len(self.slots)), self._own_mean
        for cells in self.cells:
            slot = cells.slot.astype(np.intp)
            above = cells.freq - mean[slot] * cells.weight
            squares += sums_by_slot(slot, above**2, len(squares))
            crossed += sums_by_slot(slot, above * cells.weight, len(squares))
        return squares, crossed

    def _spread(self, mean: FloatArray) -> FloatArray:
        """Σ over cells of (Σwμ̂ − mean Σw)² in each slot (S,), by means (S,): from that by the slots' own means."""
        (squares, crossed), moved = self._own_spread, mean - self._own_mean
        # rounding may leave less than nothing where all cells show the same frequency
        return np.maximum(squares - 2 * moved * crossed + moved**2 * self.bins.cell_weight_sq, 0.0)


@dataclass(frozen=True)
class PairCounts:
    """Cases, and ordered pairs of cases of different clusters, in each slot, over all cases with labels or without.

    Attributes:
        n_cases: N.
        cases: (S,) N_b.
        pairs: (S,).
    """

    n_cases: int
    cases: FloatArray
    pairs: FloatArray

    @classmethod
    def of_binned(cls, binned: Binned) -> "PairCounts":
        """Count the cases that were binned, which are all."""
        own = np.zeros(len(binned.slots))
        for cells in binned.cells:
            own += np.bincount(cells.slot, cells.cases.astype(np.float64) ** 2, own.size)
        cases = binned.bins.cases.astype(np.float64)
        return cls(binned.sample.rows.size, cases, cases**2 - own)

    @classmethod
    def of(cls, probs: FloatArray, everyone: Sample, n_bins: int) -> "PairCounts":
        """Count in equal-width bins.

        Args:
            probs: (N, C) probabilities of all cases, in the order of the sample's rows.
            everyone: all cases.
            n_bins: bins of [0, 1].
        """
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
