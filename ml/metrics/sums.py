"""Sums by unit and bin, from which calibration losses follow.

A *cell* is what one cluster (patient) puts into one bin; without
clusters every case is its own cluster.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ml.util.arrays import FloatArray, IntArray, require_whole

Debias = Literal["pair", "paper", "none"]
Strategy = Literal["uniform", "quantile"]
# (case, slot) pairs of a chunk whose cells are kept: small arrays come from memory that the process has, larger ones
# are asked for, and cleared, anew each time
_CHUNK = 2**20
#: The same where only sums are kept: of fewer, calling NumPy takes as long as what it does.
SUMMED = 2**21


@dataclass(frozen=True)
class BinSums:
    """Sums over cells and cases, by slot."""

    cells: IntArray
    cases: IntArray
    weight: FloatArray
    freq: FloatArray
    prob: FloatArray
    diff: FloatArray
    freq_sq: FloatArray
    weight_sq: FloatArray
    cell_weight_sq: FloatArray
    cell_diff_sq: FloatArray

    def __add__(self, other: "BinSums") -> "BinSums":
        return BinSums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def take(self, slots: slice) -> "BinSums":
        """Sums of some slots."""
        return BinSums(*(getattr(self, f.name)[slots] for f in fields(self)))

    def merged(self, target: npt.NDArray[np.intp]) -> "BinSums":
        """Sums of slots moved to others."""
        sums = (np.bincount(target, getattr(self, f.name), target.size) for f in fields(self))
        kinds = (getattr(self, f.name).dtype for f in fields(self))
        return BinSums(*(column.astype(kind) for column, kind in zip(sums, kinds, strict=True)))

    @classmethod
    def zeros(cls, size: int) -> "BinSums":
        """Sums (size,) of nothing."""
        counts, sums = np.zeros(size, dtype=np.int64), np.zeros(size)
        return cls(counts, counts, *[sums] * (len(fields(cls)) - 2))


def bin_edges(probs: FloatArray, n_bins: int, strategy: Strategy | FloatArray) -> FloatArray:
    """Edges of equal-width, quantile or frozen bins."""
    require_whole(n_bins, "n_bins", 1)
    if isinstance(strategy, np.ndarray):
        rising = strategy.ndim == 1 and strategy.size >= 2 and bool((np.diff(strategy) > 0).all())
        if not (rising and strategy[0] == 0 and strategy[-1] == 1):
            raise ValueError("frozen bin edges must rise from 0 to 1")
        return strategy.astype(np.float64)
    if strategy == "uniform":
        # correctly rounded, so that 0.6 opens the tenth of 15 bins
        return np.arange(n_bins + 1) / n_bins
    if strategy != "quantile":
        raise ValueError(f"strategy must be 'uniform', 'quantile' or edges, got {strategy!r}")
    inner = np.quantile(probs, np.arange(1, n_bins) / n_bins) if probs.size else np.empty(0)
    return np.unique(np.concatenate(([0.0], inner, [1.0])))


def bin_index(probs: FloatArray, edges: FloatArray) -> npt.NDArray[np.intp]:
    """Index (N,) of the bin [a, b) of each probability."""
    index = np.searchsorted(edges, probs, side="right") - 1
    return np.clip(index, 0, len(edges) - 2)


def uniform_bin_index(probs: FloatArray, n_bins: int) -> npt.NDArray[np.int32]:
    """Equal-width bin of each probability, without a search."""
    scaled = probs * n_bins
    index = scaled.astype(np.int32)
    np.minimum(index, n_bins - 1, out=index)
    # an edge is within a few ulp of a whole number
    from_whole = np.rint(scaled)
    from_whole -= scaled
    np.abs(from_whole, out=from_whole)
    near = from_whole < 1e-9
    if near.any():
        index[near] = bin_index(probs[near], bin_edges(np.empty(0), n_bins, "uniform"))
    return index


def sums_by_slot(slot: npt.NDArray[np.intp], values: npt.NDArray[Any], size: int) -> FloatArray:
    """Sums (size,) of values that fall into slots (M,)."""
    return np.asarray(np.bincount(slot, values.ravel(), size), dtype=np.float64)


@dataclass(frozen=True)
class BinIndex:
    """Bins of all columns, numbered through."""

    edges: tuple[FloatArray, ...]  # of each column
    first: npt.NDArray[np.intp]  # (C + 1,) first slot of each column
    uniform: bool  # whether all bins are of one width

    @classmethod
    def of(cls, probs: FloatArray, n_bins: int, strategy: Strategy | FloatArray) -> "BinIndex":
        """Bins of columns of probabilities (n, C)."""
        edges = tuple(bin_edges(prob, n_bins, strategy) for prob in probs.T)
        first = np.cumsum([0, *(len(column) - 1 for column in edges)])
        return cls(edges, first, isinstance(strategy, str) and strategy == "uniform")

    def __len__(self) -> int:
        return int(self.first[-1])

    def index(self, probs: FloatArray) -> npt.NDArray[np.intp]:
        """Slot (n, C) of each probability."""
        if self.uniform:
            index = uniform_bin_index(probs, len(self.edges[0]) - 1)
            index += self.first[:-1].astype(np.int32)  # half as wide: quicker
            return index.astype(np.intp)
        columns = [bin_index(prob, edges) for prob, edges in zip(probs.T, self.edges, strict=True)]
        return np.stack(columns, axis=1) + self.first[:-1]

    def chunks(self, n: int, cluster: npt.NDArray[np.intp] | None) -> Iterator[slice]:
        """Slices of cases (n,) that part no cluster."""
        step, start = max(1, _CHUNK // len(self)), 0
        while start < n:
            stop = min(start + step, n)
            if cluster is not None:
                stop = int(np.searchsorted(cluster, cluster[stop - 1], side="right"))
            yield slice(start, stop)
            start = stop


@dataclass(frozen=True)
class ClusterBinSums:
    """Sums of M (cluster, slot) cells."""

    slot: npt.NDArray[np.int32]
    cluster: npt.NDArray[np.int32]
    cases: npt.NDArray[Any]  # the weight itself, where every case weighs one
    weight: FloatArray
    freq: FloatArray
    diff: FloatArray
    weight_sq: FloatArray | None = None
    freq_sq: FloatArray | None = None
    pair_weight_sq: FloatArray | None = None
    pair_diff_sq: FloatArray | None = None

    @property
    def may_pair(self) -> bool:
        """Whether the pair form may pair cases of one cell."""
        return self.pair_weight_sq is not None

    @property
    def cells(self) -> npt.NDArray[Any] | int:
        """Cells that the pair form sees in each: one, or one for each case."""
        return self.cases if self.may_pair else 1

    @property
    def cell_weight_sq(self) -> FloatArray:
        """(Σw)² of each, or Σw²."""
        return self.weight**2 if self.pair_weight_sq is None else self.pair_weight_sq

    @property
    def cell_diff_sq(self) -> FloatArray:
        """(Σwd)² of each, or Σ(wd)²."""
        return self.diff**2 if self.pair_diff_sq is None else self.pair_diff_sq

    @classmethod
    def joined(cls, parts: Sequence["ClusterBinSums"]) -> "ClusterBinSums":
        """Cells of all parts; a column that one does not have is left out."""
        columns = ([getattr(part, f.name) for part in parts] for f in fields(cls))
        joined: list[Any] = [None if any(c is None for c in column) else np.concatenate(column) for column in columns]
        return cls(*joined)

    def gathered(self, n_slots: int) -> "ClusterBinSums":
        """The same with one cell for each cluster and slot, in their order."""
        key = self.cluster.astype(np.int64) * n_slots + self.slot
        order = np.argsort(key, kind="stable")  # quick for long runs
        ordered = key[order]
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        columns = (getattr(self, f.name) for f in fields(self)[2:])
        sums: list[Any] = [
            column if column is None or not column.size else np.add.reduceat(column[order], starts)
            for column in columns
        ]
        keys = ordered[starts]
        return ClusterBinSums((keys % n_slots).astype(np.int32), (keys // n_slots).astype(np.int32), *sums)

    def merged(self, target: npt.NDArray[np.intp], *, alone: bool) -> "ClusterBinSums":
        """Cells of slots moved to others."""
        moved = replace(self, slot=target[self.slot].astype(np.int32))
        joined = (np.bincount(target, minlength=target.size) > 1)[moved.slot]
        if (alone and not self.may_pair) or not joined.any():
            return moved
        together = moved.take(np.flatnonzero(joined)).gathered(target.size)
        return ClusterBinSums.joined([moved.take(np.flatnonzero(~joined)), together])

    def take(self, rows: npt.NDArray[np.intp]) -> "ClusterBinSums":
        """Some of the cells."""
        columns = (getattr(self, f.name) for f in fields(self))
        some: list[Any] = [None if column is None else column[rows] for column in columns]
        return ClusterBinSums(*some)

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
            cells=np.bincount(at, self.cells if self.may_pair else None, n_slots).astype(np.int64),
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
    """A chunk of cases processed together."""

    freq: FloatArray  # (n, C) label frequencies μ̂, a column per class
    prob: FloatArray  # (n, C) probabilities z
    weight: FloatArray  # (n,) instance weights
    slots: BinIndex  # bins of the columns
    cluster: npt.NDArray[np.intp]  # (n,) numbers; of cases if ``alone``
    alone: bool  # whether every case is its own cluster

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
        return bool((self.weight == 1).all())

    @cached_property
    def _diff(self) -> FloatArray:
        return self.gap if self._unit else self.weight[:, None] * self.gap

    def sums(self) -> BinSums:
        """Sums over cases in each slot, every case a cell."""
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
        """Cells of the batch, by cluster and slot."""
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
    """Keys of cells, cell of each entry, and entries of each."""
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


class NamedCells:
    """Sums of the (cluster, slot) cells of named clusters."""

    def __init__(self, n_slots: int) -> None:
        self.n_slots = n_slots
        self.numbers: dict[str, int] = {}
        self._parts = [self._cells(np.empty(0, dtype=np.int64), np.empty(0), np.empty(0))]

    def _cells(self, keys: IntArray, weight: FloatArray, diff: FloatArray) -> ClusterBinSums:
        unknown = np.broadcast_to(0.0, keys.shape)
        slot, cluster = (keys % self.n_slots).astype(np.int32), (keys // self.n_slots).astype(np.int32)
        return ClusterBinSums(slot, cluster, unknown, weight, unknown, diff)

    def _keys(self, slot: npt.NDArray[Any], cluster: npt.NDArray[Any]) -> IntArray:
        return np.asarray(cluster.astype(np.int64) * self.n_slots + slot)

    def add(self, names: npt.NDArray[Any] | list[str], cells: ClusterBinSums) -> None:
        """Add cells, whose clusters are numbers of names (G,)."""
        numbers = np.array([self.numbers.setdefault(str(name), len(self.numbers)) for name in names], dtype=np.int64)
        keys = self._keys(cells.slot, numbers[cells.cluster])
        self._parts.append(self._cells(keys, cells.weight, cells.diff))
        if sum(part.slot.size for part in self._parts[1:]) > self._parts[0].slot.size:  # amortised
            self._parts = [self.gathered()]

    def gathered(self) -> ClusterBinSums:
        """Sums of all cells, by cluster."""
        cells = ClusterBinSums.joined(self._parts).gathered(self.n_slots)
        return self._cells(self._keys(cells.slot, cells.cluster), cells.weight, cells.diff)

    def merge(self, other: "NamedCells") -> None:
        """Add another's sums; clusters of the same name are one."""
        self.add(list(other.numbers), other.gathered())

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as JSON values."""
        cells = self.gathered()
        keys = self._keys(cells.slot, cells.cluster).tolist()
        return {
            "clusters": list(self.numbers),
            "keys": keys,
            "weight": cells.weight.tolist(),
            "diff": cells.diff.tolist(),
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any], n_slots: int) -> "NamedCells":
        """Read back what ``to_dict`` wrote."""
        cells = cls(n_slots)
        cells.numbers = {str(name): number for number, name in enumerate(document["clusters"])}
        keys = np.array(document["keys"], dtype=np.int64)
        weight, diff = (np.array(document[name], dtype=np.float64) for name in ("weight", "diff"))
        if not keys.shape == weight.shape == diff.shape or (keys.size and keys.max() >= len(cells.numbers) * n_slots):
            raise ValueError("cluster sums do not fit each other")
        cells._parts.append(cells._cells(keys, weight, diff))
        return cells
