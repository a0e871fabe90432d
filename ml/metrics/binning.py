"""Bins, sums per bin, and how the binned losses follow from them.

A *cell* is what one cluster (patient) puts into one bin; without clusters every case is its own cluster.
Everything the calibration losses need are sums over the cells of a bin, so that leaving one cluster out,
streaming and merging are subtraction and addition.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ml.util.arrays import FloatArray, IntArray

Debias = Literal["pair", "paper", "none"]
Strategy = Literal["uniform", "quantile"]

# (case, slot) pairs of a chunk whose cells are kept: small arrays come from memory that the process has, larger ones
# are asked for, and cleared, anew each time
_CHUNK = 2**20
#: The same where only sums are kept: of fewer, calling NumPy takes as long as what it does.
SUMMED = 2**21


@dataclass(frozen=True)
class BinSums:
    """Sums over cells with probabilities z, frequencies μ̂, weights w and differences d = μ̂ − z.

    ``cell_weight_sq`` and ``cell_diff_sq`` are sums over cells of (Σw)² and (Σwd)²; every other field is a
    sum over cases. Fields share one shape.
    """

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
        """Sums of slots that go to others, where no two slots that are joined share a cluster."""
        sums = (np.bincount(target, getattr(self, f.name), target.size) for f in fields(self))
        kinds = (getattr(self, f.name).dtype for f in fields(self))
        return BinSums(*(column.astype(kind) for column, kind in zip(sums, kinds, strict=True)))

    @classmethod
    def zeros(cls, size: int) -> "BinSums":
        """Sums (size,) of nothing."""
        counts, sums = np.zeros(size, dtype=np.int64), np.zeros(size)
        return cls(counts, counts, *[sums] * (len(fields(cls)) - 2))


# Beyond one, the effective number of members at or below which a bin has no pairs: where all but one member weigh
# nothing, rounding leaves a little more than none.
_NO_PAIRS = 1e-9


def bin_edges(probs: FloatArray, n_bins: int, strategy: Strategy | FloatArray) -> FloatArray:
    """Edges of equal-width bins, of quantile bins of the given probabilities (N,), or edges frozen before.

    Quantiles of the data that are judged make bins that move with the data. To compare releases or months, take
    edges from a reference once, ``bin_edges(reference, n_bins, "quantile")``, and give those.

    Raises:
        ValueError: ``n_bins`` below one, an unknown strategy, or edges that do not rise from 0 to 1.
    """
    if n_bins < 1:
        raise ValueError(f"n_bins must be at least 1, got {n_bins}")
    if isinstance(strategy, np.ndarray):
        rising = strategy.ndim == 1 and strategy.size >= 2 and bool((np.diff(strategy) > 0).all())
        if not (rising and strategy[0] == 0 and strategy[-1] == 1):
            raise ValueError("frozen bin edges must rise from 0 to 1")
        return strategy.astype(np.float64)
    if strategy == "uniform":
        # each edge is the correctly rounded b / n_bins, so that 0.6 opens the tenth of 15 bins
        return np.arange(n_bins + 1) / n_bins
    if strategy != "quantile":
        raise ValueError(f"strategy must be 'uniform', 'quantile' or edges, got {strategy!r}")
    inner = np.quantile(probs, np.arange(1, n_bins) / n_bins) if probs.size else np.empty(0)
    return np.unique(np.concatenate(([0.0], inner, [1.0])))


def bin_index(probs: FloatArray, edges: FloatArray) -> npt.NDArray[np.intp]:
    """Index (N,) of the bin [a, b) that contains each probability; the last bin is closed."""
    index = np.searchsorted(edges, probs, side="right") - 1
    return np.clip(index, 0, len(edges) - 2)


def uniform_bin_index(probs: FloatArray, n_bins: int) -> npt.NDArray[np.int32]:
    """Equal-width bin of each probability, as ``bin_index`` gives it, without a search.

    Multiplying rounds, so that a probability next to an edge may land one bin off; those few are looked up.
    """
    scaled = probs * n_bins
    index = scaled.astype(np.int32)
    np.minimum(index, n_bins - 1, out=index)
    # an edge is within a few ulp of a whole number; everything else is safely inside its bin
    from_whole = np.rint(scaled)
    from_whole -= scaled
    np.abs(from_whole, out=from_whole)
    near = from_whole < 1e-9
    if near.any():
        index[near] = bin_index(probs[near], bin_edges(np.empty(0), n_bins, "uniform"))
    return index


def sums_by_slot(slot: npt.NDArray[np.intp], values: npt.NDArray[Any], size: int) -> FloatArray:
    """Sums (size,) of values, any shape, that fall into slots (M,) in the same order."""
    return np.asarray(np.bincount(slot, values.ravel(), size), dtype=np.float64)


@dataclass(frozen=True)
class BinIndex:
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
            index += self.first[:-1].astype(np.int32)  # half as wide: quicker, until sums need it wide
            return index.astype(np.intp)
        columns = [bin_index(prob, edges) for prob, edges in zip(probs.T, self.edges, strict=True)]
        return np.stack(columns, axis=1) + self.first[:-1]

    def chunks(self, n: int, cluster: npt.NDArray[np.intp] | None, pairs: int = _CHUNK) -> Iterator[slice]:
        """Consecutive cases (n,) of so many (case, slot) pairs, never parting those of a cluster."""
        step, start = max(1, pairs // len(self)), 0
        while start < n:
            stop = min(start + step, n)
            if cluster is not None:
                stop = int(np.searchsorted(cluster, cluster[stop - 1], side="right"))
            yield slice(start, stop)
            start = stop


def _plugin(weight: FloatArray, cases: IntArray, diff: FloatArray) -> FloatArray:
    return np.where(cases > 0, diff**2 / np.where(weight > 0, weight, 1.0), 0.0)


def _has_pair(weight: FloatArray, cells: IntArray, cell_weight_sq: FloatArray) -> npt.NDArray[np.bool_]:
    return np.asarray((cells >= 2) & (weight**2 - cell_weight_sq > _NO_PAIRS * cell_weight_sq))


def _pair(
    weight: FloatArray, cells: IntArray, diff: FloatArray, cell_weight_sq: FloatArray, cell_diff_sq: FloatArray
) -> FloatArray:
    usable = _has_pair(weight, cells, cell_weight_sq)
    ratio = (diff**2 - cell_diff_sq) / np.where(usable, weight**2 - cell_weight_sq, 1.0)
    return np.where(usable, weight * ratio, 0.0)


def _has_variance(weight: FloatArray, cases: IntArray, weight_sq: FloatArray) -> npt.NDArray[np.bool_]:
    return np.asarray((cases >= 2) & (weight**2 - weight_sq > _NO_PAIRS * weight_sq))


def _paper(
    weight: FloatArray, cases: IntArray, diff: FloatArray, weight_sq: FloatArray, freq: FloatArray, freq_sq: FloatArray
) -> FloatArray:
    usable = _has_variance(weight, cases, weight_sq)
    weight = np.where(weight > 0, weight, 1.0)
    spare = weight**2 / np.where(weight_sq > 0, weight_sq, 1.0) - 1
    variance = freq_sq / weight - (freq / weight) ** 2
    return np.where(usable, diff**2 / weight - weight * variance / np.where(usable, spare, 1.0), 0.0)


#: Which bins a debiased form can use, by which sums.
_USABLE: dict[Debias, tuple[Callable[..., npt.NDArray[np.bool_]], tuple[str, ...]]] = {
    "pair": (_has_pair, ("weight", "cells", "cell_weight_sq")),
    "paper": (_has_variance, ("weight", "cases", "weight_sq")),
}
#: How each form of CL follows from which sums.
_FORMS: dict[Debias, tuple[Callable[..., FloatArray], tuple[str, ...]]] = {
    "none": (_plugin, ("weight", "cases", "diff")),
    "pair": (_pair, ("weight", "cells", "diff", "cell_weight_sq", "cell_diff_sq")),
    "paper": (_paper, ("weight", "cases", "diff", "weight_sq", "freq", "freq_sq")),
}


def contributions(sums: BinSums, debias: Debias) -> FloatArray:
    """Contribution of each bin to W·CL, W the total weight.

    ``None``: A (c̄ − z̄)². ``"paper"`` (§4.1): minus A σ̄²/(m − 1), σ̄² the variance of μ̂ and m the effective
    number of cases. ``"pair"``: A [(Σwd)² − Σ_cells(Σwd)²] / [(Σw)² − Σ_cells(Σw)²], unbiased because no cell
    is paired with itself. The debiased forms give a bin with one member nothing; ``merge_map`` joins such bins first.

    Raises:
        ValueError: an unknown ``debias``.
    """
    form, names = _form(debias)
    return form(*(getattr(sums, name) for name in names))


def calibration_sum(sums: BinSums, debias: Debias) -> float:
    """W·CL over bins; NaN if there are cases but no bin that the form can use."""
    if (sums.weight > 0).any() and not usable_bins(sums, debias).any():
        return float("nan")
    return float(contributions(sums, debias).sum())


def bins_lost(sums: BinSums, cells: Any, slot: npt.NDArray[np.intp], debias: Debias) -> npt.NDArray[np.bool_] | None:
    """Mask (M,) of the cells without which a debiased form cannot use their bin; None if no cell alone matters.

    Args:
        sums: of every bin.
        cells: sums of M cells, by the names of ``BinSums``.
        slot: (M,) bin of each cell.
        debias: the form.
    """
    usable = usable_bins(sums, debias)
    # a bin of three clusters stays usable without any one of them
    if debias == "none" or (sums.weight[usable] ** 2 > 2.01 * sums.cell_weight_sq[usable]).any():
        return None
    is_usable, names = _USABLE[debias]
    left = [getattr(sums, name).take(slot) - getattr(cells, name) for name in names]
    return usable.take(slot) & ~is_usable(*left)


def contributions_without(
    sums: BinSums, cells: Any, slot: npt.NDArray[np.intp], forms: Collection[Debias]
) -> dict[Debias, FloatArray]:
    """Contribution (M,) of each cell's bin once the cell is left out, in each form.

    Args:
        sums: of every bin.
        cells: sums of M cells, by the names of ``BinSums``.
        slot: (M,) bin of each cell.
        forms: as in ``contributions``; what several need is worked out once.

    Raises:
        ValueError: an unknown form.
    """
    needed = {name for debias in forms for name in _form(debias)[1]}
    # these cells may weigh as much as they have cases where others do not
    even = cells.cases is cells.weight and np.array_equal(sums.cases, sums.weight)
    twice = {"cases"} & needed if even else set()
    left = {name: getattr(sums, name).take(slot) - getattr(cells, name) for name in needed - twice}
    left |= {name: left["weight"] for name in twice}
    by_debias = {}
    for debias in forms:
        form, names = _form(debias)
        by_debias[debias] = form(*(left[name] for name in names))
    return by_debias


def _form(debias: Debias) -> tuple[Callable[..., FloatArray], tuple[str, ...]]:
    if debias not in _FORMS:
        raise ValueError(f"debias must be 'pair', 'paper' or 'none', got {debias!r}")
    return _FORMS[debias]


def is_debiased(debias: Debias) -> bool:
    """Whether a form corrects the plug-in.

    Raises:
        ValueError: an unknown ``debias``.
    """
    _form(debias)
    return debias != "none"


def singleton_weight(sums: BinSums, debias: Debias) -> float:
    """Weight in bins that a debiased form cannot use, because one member stands alone in them."""
    return float(sums.weight[~usable_bins(sums, debias)].sum())


def usable_bins(sums: BinSums, debias: Debias = "pair") -> npt.NDArray[np.bool_]:
    """Mask of the bins that a form can use: a debiased one needs two cells, or cases, of positive weights."""
    if debias == "none":
        return np.asarray(sums.weight > 0)
    is_usable, names = _USABLE[debias]
    return is_usable(*(getattr(sums, name) for name in names))


def merge_map(
    usable: npt.NDArray[np.bool_], owner: npt.NDArray[np.intp], first: npt.NDArray[np.intp]
) -> npt.NDArray[np.intp]:
    """Slot (S,) to which each slot goes so that every bin has a pair, as far as there are pairs.

    A bin without a pair says nothing alone. Left out it would take the most miscalibrated cases with it, since rare
    probabilities are where predictions are bold. It joins the bins below it until there is a pair, from the high
    end down, where bins are emptiest; what is left at the low end joins the last bin that was made.

    Args:
        usable: (S,) whether a slot has a pair.
        owner: (S,) the only cluster of a slot without a pair, −1 where it is empty; any number ≥ 0 elsewhere.
        first: (C + 1,) first slot of each column.
    """
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
