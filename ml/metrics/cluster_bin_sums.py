"""Streaming kernel: sums of a batch by (cluster, bin) cell and by bin.

Both engines run on it. The evaluation in memory keeps the cells, from which intervals and diagrams follow; the
accumulator keeps the sums by bin, and of the cells what the clustered pair form needs.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ml.metrics.binning import BinIndex, BinSums, sums_by_slot
from ml.util.arrays import FloatArray


@dataclass(frozen=True)
class ClusterBinSums:
    """Sums of M (cluster, slot) cells, by the names of ``BinSums``; the squares only where they were asked for."""

    slot: npt.NDArray[np.int32]
    cluster: npt.NDArray[np.int32]
    cases: npt.NDArray[Any]  # the weight itself, where every case weighs one
    weight: FloatArray
    freq: FloatArray
    diff: FloatArray
    weight_sq: FloatArray | None = None
    freq_sq: FloatArray | None = None

    @property
    def cells(self) -> int:
        """Each is one."""
        return 1

    @property
    def cell_weight_sq(self) -> FloatArray:
        """(Σw)² of each."""
        return self.weight**2

    @property
    def cell_diff_sq(self) -> FloatArray:
        """(Σwd)² of each."""
        return self.diff**2

    def merged(self, target: npt.NDArray[np.intp], *, alone: bool) -> "ClusterBinSums":
        """Cells of slots that go to others, for the pair form: a cluster has one cell in each, in any order.

        Args:
            target: (S,) slot to which each slot goes.
            alone: whether every case is its own cluster, which no two slots of a column share.
        """
        slot = target[self.slot]
        joined = np.bincount(target, minlength=target.size) > 1
        moved = np.flatnonzero(joined[slot])
        if alone or moved.size == 0:
            return replace(self, slot=slot.astype(np.int32))
        keys, cell = np.unique(self.cluster[moved].astype(np.int64) * target.size + slot[moved], return_inverse=True)
        kept = np.flatnonzero(~joined[slot])

        def sums(values: FloatArray) -> FloatArray:
            return np.concatenate([values[kept], sums_by_slot(cell, values[moved], keys.size)])

        return ClusterBinSums(
            np.concatenate([slot[kept], keys % target.size]).astype(np.int32),
            np.concatenate([self.cluster[kept], keys // target.size]).astype(np.int32),
            sums(self.cases.astype(np.float64)).astype(np.int32),
            *(sums(values) for values in (self.weight, self.freq, self.diff)),
        )

    def sums(self, n_slots: int) -> BinSums:
        """Sums over the cells of each slot (n_slots,)."""
        at = self.slot.astype(np.intp)
        freq, diff = sums_by_slot(at, self.freq, n_slots), sums_by_slot(at, self.diff, n_slots)
        # what nobody asked for must not pass for a sum
        cases = sums_by_slot(at, self.cases, n_slots)
        weight_sq, freq_sq = (
            np.full(n_slots, np.nan) if values is None else sums_by_slot(at, values, n_slots)
            for values in (self.weight_sq, self.freq_sq)
        )
        return BinSums(
            cells=np.bincount(at, minlength=n_slots),
            cases=cases.astype(np.int64),
            weight=cases if self.weight is self.cases else sums_by_slot(at, self.weight, n_slots),
            freq=freq,
            prob=freq - diff,
            diff=diff,
            freq_sq=freq_sq,
            weight_sq=weight_sq,
            cell_weight_sq=sums_by_slot(at, self.cell_weight_sq, n_slots),
            cell_diff_sq=sums_by_slot(at, self.cell_diff_sq, n_slots),
        )


@dataclass(frozen=True)
class Batch:
    """A chunk of cases processed together.

    Attributes:
        freq: (n, C) label frequencies μ̂, a column per class.
        prob: (n, C) probabilities z.
        weight: (n,) instance weights.
        slots: bins of the columns.
        cluster: (n,) number of each case's cluster; of the case itself where ``alone``.
        alone: whether every case is its own cluster.
    """

    freq: FloatArray
    prob: FloatArray
    weight: FloatArray
    slots: BinIndex
    cluster: npt.NDArray[np.intp]
    alone: bool

    @cached_property
    def slot(self) -> npt.NDArray[np.intp]:
        """Slot (n, C) of each probability."""
        return self.slots.index(self.prob)

    @cached_property
    def gap(self) -> FloatArray:
        """μ̂ − z (n, C)."""
        return self.freq - self.prob

    @cached_property
    def _unit(self) -> bool:
        """Whether every weight is one: nothing needs to be multiplied then."""
        return bool((self.weight == 1).all())

    @cached_property
    def _diff(self) -> FloatArray:
        return self.gap if self._unit else self.weight[:, None] * self.gap

    def sums(self) -> BinSums:
        """Sums over cases in each slot, every case being a cell.

        Frequencies are mostly zero, so their sums visit only the entries with labels.
        """
        at, size = self.slot.ravel(), len(self.slots)
        cases = np.bincount(at, minlength=size)
        labelled = np.flatnonzero(self.freq.ravel() != 0)
        freqs = scaled = self.freq.ravel()[labelled]
        weight = weight_sq = cases.astype(np.float64)
        if not self._unit:
            weights = np.broadcast_to(self.weight[:, None], self.prob.shape)
            weight, weight_sq = sums_by_slot(at, weights, size), sums_by_slot(at, weights**2, size)
            scaled = self.weight[labelled // self.freq.shape[1]] * freqs
        at_labels = at[labelled]
        freq, diff = sums_by_slot(at_labels, scaled, size), sums_by_slot(at, self._diff, size)
        return BinSums(
            cells=cases,
            cases=cases,
            weight=weight,
            freq=freq,
            prob=freq - diff,
            diff=diff,
            freq_sq=sums_by_slot(at_labels, scaled * freqs, size),
            weight_sq=weight_sq,
            cell_weight_sq=weight_sq,
            cell_diff_sq=sums_by_slot(at, self._diff**2, size),
        )

    def cells(self, *, squares: bool = False) -> ClusterBinSums:
        """Cells of the batch, by cluster and slot.

        Args:
            squares: also the sums that the paper's form of CL needs.
        """
        weights = np.broadcast_to(self.weight[:, None], self.prob.shape)
        weighted = self.freq if self._unit else weights * self.freq
        entries = [weights, weighted, self._diff]
        if squares:
            entries += [weights**2, weighted * self.freq]
        slot: npt.NDArray[np.intp]
        cluster: npt.NDArray[np.signedinteger[Any]]
        cases: npt.NDArray[np.signedinteger[Any]]
        if self.alone:
            slot, cluster = self.slot.ravel(), np.repeat(self.cluster.astype(np.int32), self.prob.shape[1])
            cases = np.broadcast_to(np.int32(1), slot.shape)
            sums = [entry.ravel() for entry in entries]
            if self._unit:
                sums[0] = np.broadcast_to(1.0, slot.shape)
        else:
            keys, cell, cases = numbered_cells(self.cluster, self.slot, len(self.slots))
            cluster = keys // len(self.slots)
            slot = keys - cluster * len(self.slots)  # a third of what the remainder takes
            cluster += int(self.cluster.min())
            sums = [sums_by_slot(cell, entry, keys.size) for entry in entries[1:]]
            if self._unit:  # a cell weighs as much as it has cases
                weight = cases.astype(np.float64)
                return ClusterBinSums(slot.astype(np.int32), cluster.astype(np.int32), weight, weight, *sums)
            sums.insert(0, sums_by_slot(cell, weights, keys.size))
        return ClusterBinSums(
            slot.astype(np.int32), cluster.astype(np.int32, copy=False), cases.astype(np.int32), *sums
        )


def numbered_cells(
    cluster: npt.NDArray[np.intp], slot: npt.NDArray[np.intp], n_slots: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Number the (cluster, slot) cells that occur, without sorting: memory of n_slots for each cluster.

    Args:
        cluster: (n,) cluster numbers.
        slot: (n, C) slot of each case in each of C columns.
        n_slots: number of slots.

    Returns:
        Key cluster · n_slots + slot (M,) of each cell, the lowest cluster counted as 0; the cell (n · C,) of each
        entry; and entries (M,) of each cell.
    """
    if cluster.size == 0:
        nothing = np.empty(0, dtype=np.intp)
        return nothing, nothing, nothing
    first, last = int(cluster.min()), int(cluster.max())
    key = ((cluster - first)[:, None] * n_slots + slot).ravel()
    entries = np.bincount(key, minlength=(last - first + 1) * n_slots)
    keys = np.flatnonzero(entries > 0)  # of booleans, which is several times quicker
    number = np.empty(entries.size, dtype=np.intp)
    number[keys] = np.arange(keys.size)
    return keys, number.take(key), entries.take(keys)
