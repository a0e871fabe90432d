"""Sums per bin, and what the binned losses make of them.

A *cell* is what one cluster (patient) puts into one bin; without clusters every case is its own cluster.
Everything the calibration losses need are sums over the cells of a bin, so that leaving one cluster out,
streaming and merging are subtraction and addition.
"""

from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ml.arrays import FloatArray, IntArray

Debias = Literal["pair", "paper"] | None
Strategy = Literal["uniform", "quantile"]


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

    def __sub__(self, other: "BinSums") -> "BinSums":
        return BinSums(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    def take(self, index: npt.NDArray[np.intp]) -> "BinSums":
        """Pick entries by position along the first axis."""
        return BinSums(*(getattr(self, f.name)[index] for f in fields(self)))

    def grouped(self, index: npt.NDArray[np.intp], size: int) -> "BinSums":
        """Add up entries (M,) that share an index, into ``size`` groups."""
        return BinSums(*(_grouped(getattr(self, f.name), index, size) for f in fields(self)))


def _grouped(values: Any, index: npt.NDArray[np.intp], size: int) -> Any:
    # bincount adds in float64, exact for counts below 2**53
    return np.bincount(index, weights=values, minlength=size).astype(values.dtype, copy=False)


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
    """Index (N,) of the bin [a, b) that holds each probability; the last bin is closed."""
    index = np.searchsorted(edges, probs, side="right") - 1
    return np.clip(index, 0, len(edges) - 2)


def uniform_bin_index(probs: FloatArray, n_bins: int) -> npt.NDArray[np.intp]:
    """Equal-width bin of each probability, as ``bin_index`` gives it, without a search.

    Multiplying rounds, so that a probability next to an edge may land one bin off; those few are looked up.
    """
    scaled = probs * n_bins
    index = scaled.astype(np.intp)
    np.minimum(index, n_bins - 1, out=index)
    # an edge is within a few ulp of a whole number; everything else is safely inside its bin
    near = np.abs(scaled - np.rint(scaled)) < 1e-9
    if near.any():
        index[near] = bin_index(probs[near], bin_edges(np.empty(0), n_bins, "uniform"))
    return index


def case_sums(freq: FloatArray, prob: FloatArray, weight: FloatArray) -> BinSums:
    """Sums of each single case (N,), every case a cell of its own."""
    ones = np.ones(freq.shape, dtype=np.int64)
    diff = weight * (freq - prob)
    return BinSums(
        cells=ones,
        cases=ones,
        weight=weight,
        freq=weight * freq,
        prob=weight * prob,
        diff=diff,
        freq_sq=weight * freq**2,
        weight_sq=weight**2,
        cell_weight_sq=weight**2,
        cell_diff_sq=diff**2,
    )


def cell_sums(
    cases: BinSums, index: npt.NDArray[np.intp], cluster: npt.NDArray[np.intp], n_bins: int
) -> tuple[BinSums, npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Gather cases into (cluster, bin) cells; returns the cells with their bin and their cluster."""
    keys, inverse = np.unique(cluster * n_bins + index, return_inverse=True)
    sums = cases.grouped(inverse, len(keys))
    ones = np.ones(len(keys), dtype=np.int64)
    squares: dict[str, Any] = {"cell_weight_sq": sums.weight**2, "cell_diff_sq": sums.diff**2, "cells": ones}
    merged = {f.name: squares.get(f.name, getattr(sums, f.name)) for f in fields(BinSums)}
    return BinSums(**merged), keys % n_bins, keys // n_bins


def contributions(sums: BinSums, debias: Debias) -> FloatArray:
    """Contribution of each bin to W·CL, W the total weight.

    ``None``: A (c̄ − z̄)². ``"paper"`` (§4.1): minus A σ̄²/(m − 1), σ̄² the variance of μ̂ and m the effective
    number of cases. ``"pair"``: A [(Σwd)² − Σ_cells(Σwd)²] / [(Σw)² − Σ_cells(Σw)²], unbiased because no cell
    is paired with itself. The debiased forms give a bin with one member nothing.

    Raises:
        ValueError: an unknown ``debias``.
    """
    weight = np.where(sums.weight > 0, sums.weight, 1.0)
    if debias is None:
        return np.where(sums.cases > 0, sums.diff**2 / weight, 0.0)
    if debias == "pair":
        pairs = sums.weight**2 - sums.cell_weight_sq
        usable = (sums.cells >= 2) & (pairs > 0)
        ratio = (sums.diff**2 - sums.cell_diff_sq) / np.where(usable, pairs, 1.0)
        return np.where(usable, sums.weight * ratio, 0.0)
    if debias != "paper":
        raise ValueError(f"debias must be 'pair', 'paper' or None, got {debias!r}")
    spare = weight**2 / np.where(sums.weight_sq > 0, sums.weight_sq, 1.0) - 1
    usable = (sums.cases >= 2) & (spare > 0)
    variance = sums.freq_sq / weight - (sums.freq / weight) ** 2
    correction = sums.weight * variance / np.where(usable, spare, 1.0)
    return np.where(usable, sums.diff**2 / weight - correction, 0.0)


def lonely_weight(sums: BinSums, debias: Debias) -> float:
    """Weight in bins that a debiased form cannot use, because one member stands alone in them."""
    if debias is None:
        return 0.0
    members = sums.cells if debias == "pair" else sums.cases
    return float(sums.weight[members == 1].sum())
