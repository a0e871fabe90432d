"""Frequencies and probabilities gathered into bins: calibration losses and reliability diagrams.

Cases run through in chunks whose cells stay in the processor's cache; the cases of a cluster stand together in a
``Sample``, so that no cell is ever split between chunks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv

from ml.arrays import FloatArray, IntArray
from ml.metrics.binning import (
    BinSums,
    Debias,
    Strategy,
    bin_edges,
    bin_index,
    contributions,
    contributions_without,
    lonely_weight,
    numbered_cells,
    sums_by_slot,
    uniform_bin_index,
)
from ml.metrics.evaluation import ReliabilityBin
from ml.metrics.jackknife import Estimate, Replicates, Sample, ratio_replicates, to_estimate

# (case, slot) pairs of a chunk: what is worked on at once takes a few megabytes
_CHUNK = 2**19
# half an interval below which differences are rounding
_NO_SPREAD = 1e-9


def binomial_interval(mean: FloatArray, n: npt.NDArray[Any]) -> tuple[FloatArray, FloatArray]:
    """95 % intervals of shares by Clopper and Pearson, for n answers of which n · mean were yes.

    Args:
        mean: (B,) shares; n · mean need not be whole.
        n: (B,) answers.
    """
    hits = np.clip(mean, 0.0, 1.0) * n
    low = np.where(hits > 0, betaincinv(np.maximum(hits, 1e-12), n - hits + 1, 0.025), 0.0)
    high = np.where(hits < n, betaincinv(hits + 1, np.maximum(n - hits, 1e-12), 0.975), 1.0)
    return low, high


@dataclass(frozen=True)
class Slots:
    """Bins of all columns, numbered through.

    Attributes:
        edges: of each column.
        first: (C + 1,) first slot of each column.
        uniform: whether all bins are of one width.
    """

    edges: tuple[FloatArray, ...]
    first: npt.NDArray[np.intp]
    uniform: bool

    @classmethod
    def of(cls, probs: FloatArray, n_bins: int, strategy: Strategy | FloatArray) -> "Slots":
        """Bins of columns of probabilities (n, C)."""
        edges = tuple(bin_edges(prob, n_bins, strategy) for prob in probs.T)
        first = np.cumsum([0, *(len(one) - 1 for one in edges)])
        return cls(edges, first, isinstance(strategy, str) and strategy == "uniform")

    def __len__(self) -> int:
        return int(self.first[-1])

    def index(self, probs: FloatArray) -> npt.NDArray[np.intp]:
        """Slot (n, C) of each probability."""
        if self.uniform:
            return uniform_bin_index(probs, len(self.edges[0]) - 1) + self.first[:-1]
        columns = [bin_index(prob, edges) for prob, edges in zip(probs.T, self.edges, strict=True)]
        return np.stack(columns, axis=1) + self.first[:-1]

    def chunks(self, n: int, cluster: npt.NDArray[np.intp] | None) -> Iterator[slice]:
        """Consecutive cases (n,), never parting those of a cluster."""
        step, start = max(1, _CHUNK // len(self)), 0
        while start < n:
            stop = min(start + step, n)
            if cluster is not None:
                stop = int(np.searchsorted(cluster, cluster[stop - 1], side="right"))
            yield slice(start, stop)
            start = stop


@dataclass(frozen=True)
class _Cells:
    """Sums of M (cluster, slot) cells, by the names of ``BinSums``."""

    slot: npt.NDArray[np.int32]
    cluster: npt.NDArray[np.int32]
    cases: npt.NDArray[np.int32]
    weight: FloatArray
    freq: FloatArray
    diff: FloatArray
    weight_sq: FloatArray | None = None
    freq_sq: FloatArray | None = None

    @property
    def cells(self) -> int:
        return 1

    @property
    def cell_weight_sq(self) -> FloatArray:
        return self.weight**2

    @property
    def cell_diff_sq(self) -> FloatArray:
        return self.diff**2


@dataclass(frozen=True)
class Binned:
    """Frequencies and probabilities (n, C) gathered into bins, a column a class."""

    sample: Sample
    slots: Slots
    bins: BinSums
    cells: tuple[_Cells, ...]

    @classmethod
    def of(
        cls,
        freqs: FloatArray,
        probs: FloatArray,
        sample: Sample,
        n_bins: int,
        strategy: Strategy | FloatArray,
        debias: Debias,
    ) -> "Binned":
        """Bin frequencies and probabilities (n, C) of the sample's cases, each column by its own edges.

        Args:
            freqs: (n, C).
            probs: (n, C).
            sample: the cases.
            n_bins: bins of [0, 1].
            strategy: as in ``bin_edges``.
            debias: the form that will be asked, beside the plug-in.
        """
        slots = Slots.of(probs, n_bins, strategy)
        parts = ((freqs[part], probs[part]) for part in slots.chunks(len(probs), sample.cluster))
        return cls.gathered(parts, sample, slots, debias)

    @classmethod
    def gathered(
        cls, parts: Iterable[tuple[FloatArray, FloatArray]], sample: Sample, slots: Slots, debias: Debias
    ) -> "Binned":
        """Bin frequencies and probabilities that come in the slots' chunks of the sample's cases."""
        bins, kept, start = BinSums.zeros(len(slots)), [], 0
        for freqs, probs in parts:
            part = slice(start, start + len(probs))
            cluster = None if sample.cluster is None else sample.cluster[part]
            cells, added = _gather(freqs, probs, sample.weight[part], cluster, start, slots, debias == "paper")
            bins, start = bins + added, part.stop
            kept.append(cells)
        return cls(sample, slots, bins, tuple(kept))

    def _chosen(self, column: int | None) -> slice:
        """Slots of one column, or of all."""
        return (
            slice(None) if column is None else slice(int(self.slots.first[column]), int(self.slots.first[column + 1]))
        )

    def value(self, debias: Debias, column: int | None = None) -> float:
        """CL over all columns or of one; NaN without cases."""
        weight = float(self.sample.weight.sum())
        total = float(contributions(self.bins, debias)[self._chosen(column)].sum())
        return total / weight if weight > 0 else float("nan")

    def replicates(self, debias: Debias) -> Replicates:
        """CL over all columns, with its leave-one-cluster-out values."""
        full = contributions(self.bins, debias)
        taken = np.zeros(self.sample.n_clusters)
        for one in self.cells:
            slot = one.slot.astype(np.intp)
            gone = full[slot] - contributions_without(self.bins, one, slot, debias)
            low, high = int(one.cluster[0]), int(one.cluster[-1]) + 1
            taken[low:high] = np.bincount(one.cluster - low, gone, high - low)
        return ratio_replicates(float(full.sum()), taken, self.sample)

    def singleton_mass(self, debias: Debias) -> float:
        """Share of the weight in bins that the debiased form cannot use."""
        weight = float(self.sample.weight.sum()) * len(self.slots.edges)
        return lonely_weight(self.bins, debias) / weight if weight > 0 else 0.0

    def estimate(self, debias: Debias) -> Estimate:
        """CL over all columns."""
        return to_estimate(self.replicates(debias), self.sample, self.singleton_mass(debias))

    def horvitz_thompson(self, pairs: "PairCounts") -> float:
        """CL in the pair form over all cases, Σ_b N_b/N · Σ_{i≠j} w_i w_j d_i d_j / (pairs of bin b).

        Each pair of cases is selected with the product of their probabilities; N_b and the number of pairs are
        those of all cases, with labels or without, so no weight stands in a denominator.
        """
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
        spread = self._own_spread if column is not None else self._spread(np.tile(mean, len(self.slots.edges)))
        spread = spread[chosen].reshape(-1, n_bins).sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            half = 1.96 * np.sqrt(spread * members / (members - 1)) / sums.weight
        low, high = np.maximum(0.0, mean - half), np.minimum(1.0, mean + half)
        alike = half < _NO_SPREAD
        low[alike], high[alike] = binomial_interval(mean[alike], members[alike])
        rows = []
        for b in range(n_bins):
            weight, known = sums.weight[b], members[b] > 1 and np.isfinite(half[b])
            rows.append(
                ReliabilityBin(
                    low=float(edges[b]),
                    high=float(edges[b + 1]),
                    n=int(sums.cases[b]),
                    mean_prob=float(sums.prob[b] / weight) if weight > 0 else None,
                    mean_freq=float(mean[b]) if weight > 0 else None,
                    freq_low=float(low[b]) if known else None,
                    freq_high=float(high[b]) if known else None,
                )
            )
        return tuple(rows)

    @cached_property
    def _own_spread(self) -> FloatArray:
        return self._spread(self.bins.freq / np.where(self.bins.weight > 0, self.bins.weight, 1.0))

    def _spread(self, mean: FloatArray) -> FloatArray:
        """Σ over cells of (Σwμ̂ − mean Σw)² in each slot (S,), by means (S,)."""
        result = np.zeros(len(self.slots))
        for one in self.cells:
            slot = one.slot.astype(np.intp)
            result += np.bincount(slot, (one.freq - mean[slot] * one.weight) ** 2, len(result))
        return result


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
    def of(cls, probs: FloatArray, everyone: Sample, n_bins: int) -> "PairCounts":
        """Count in equal-width bins.

        Args:
            probs: (N, C) probabilities of all cases, in the order of the sample's rows.
            everyone: all cases.
            n_bins: bins of [0, 1].
        """
        slots = Slots.of(probs[:0], n_bins, "uniform")
        cases, own = np.zeros(len(slots)), np.zeros(len(slots))
        for part in slots.chunks(len(probs), everyone.cluster):
            slot = slots.index(probs[part])
            here = np.bincount(slot.ravel(), minlength=len(slots))
            cases += here
            if everyone.cluster is None:
                own += here
                continue
            keys, entry = numbered_cells(everyone.cluster[part], slot, len(slots))
            size = np.bincount(entry, minlength=keys.size).astype(np.float64)
            own += np.bincount(keys % len(slots), size**2, len(slots))
        return cls(len(probs), cases, cases**2 - own)


def _gather(
    freq: FloatArray,
    prob: FloatArray,
    weight: FloatArray,
    cluster: npt.NDArray[np.intp] | None,
    start: int,
    slots: Slots,
    paper: bool,
) -> tuple[_Cells, BinSums]:
    """Cells of a chunk of cases (n, C), and their sums by slot; ``start`` is the number of the first case."""
    slot = slots.index(prob)
    weights = np.broadcast_to(weight[:, None], prob.shape)
    wf = weights * freq
    entries: list[npt.NDArray[Any]] = [weights, wf, wf - weights * prob]
    if paper:
        entries += [weights**2, wf * freq]
    if cluster is None:
        at, owner = slot.ravel(), np.repeat(np.arange(start, start + len(prob)), prob.shape[1])
        cases = np.ones(at.size, dtype=np.int64)
        sums = [one.ravel() for one in entries]
    else:
        keys, cell = numbered_cells(cluster, slot, len(slots))
        at, owner = keys % len(slots), keys // len(slots) + cluster[0]
        cases = np.bincount(cell, minlength=keys.size)
        sums = [sums_by_slot(cell, one, keys.size) for one in entries]
    slot_, owner_, cases_ = (one.astype(np.int32) for one in (at, owner, cases))
    return _Cells(slot_, owner_, cases_, *sums), _slot_sums(at, cases, sums, len(slots))


def _slot_sums(at: npt.NDArray[np.intp], cases: IntArray, sums: list[FloatArray], size: int) -> BinSums:
    weight, freq, diff, *squares = (sums_by_slot(at, one, size) for one in sums)
    # what nobody asked for must not pass for a sum
    weight_sq, freq_sq = squares or (np.full(size, np.nan), np.full(size, np.nan))
    return BinSums(
        cells=np.bincount(at, minlength=size),
        cases=sums_by_slot(at, cases, size).astype(np.int64),
        weight=weight,
        freq=freq,
        prob=freq - diff,
        diff=diff,
        freq_sq=freq_sq,
        weight_sq=weight_sq,
        cell_weight_sq=sums_by_slot(at, sums[0] ** 2, size),
        cell_diff_sq=sums_by_slot(at, sums[2] ** 2, size),
    )
