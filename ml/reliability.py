"""Frequencies and probabilities gathered into bins: calibration losses and reliability diagrams."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ml.arrays import FloatArray
from ml.binning import (
    BinSums,
    Debias,
    Strategy,
    bin_edges,
    bin_index,
    case_sums,
    cell_sums,
    contributions,
    lonely_weight,
)
from ml.estimate import Estimate, Replicates, Sample, ratio_replicates, to_estimate


@dataclass(frozen=True)
class _Column:
    edges: FloatArray
    cells: BinSums
    cell_bin: npt.NDArray[np.intp]
    cell_cluster: npt.NDArray[np.intp] | None
    bins: BinSums

    def totals(self, debias: Debias, sample: Sample) -> tuple[float, FloatArray]:
        """W·CL of this column, and what leaving out each cluster takes from it (G,)."""
        full = contributions(self.bins, debias)
        reduced = contributions(self.bins.take(self.cell_bin) - self.cells, debias)
        taken = full[self.cell_bin] - reduced
        if self.cell_cluster is not None:
            gathered = np.bincount(self.cell_cluster, weights=taken, minlength=sample.n_clusters)
            taken = np.asarray(gathered, dtype=np.float64)
        return float(full.sum()), taken


@dataclass(frozen=True)
class Binned:
    """Frequencies and probabilities (n, K) gathered into bins, a column a class."""

    columns: tuple[_Column, ...]
    sample: Sample

    @classmethod
    def of(
        cls, freqs: FloatArray, probs: FloatArray, sample: Sample, n_bins: int, strategy: Strategy | FloatArray
    ) -> "Binned":
        """Bin frequencies and probabilities (n, K) of the sample's cases, each column by its own edges."""
        columns = []
        for freq, prob in zip(freqs.T, probs.T, strict=True):
            edges = bin_edges(prob, n_bins, strategy)
            index = bin_index(prob, edges)
            cases, cluster = case_sums(freq, prob, sample.weight), None
            if sample.cluster is not None:
                cases, index, cluster = cell_sums(cases, index, sample.cluster, len(edges) - 1)
            bins = cases.grouped(index, len(edges) - 1)
            columns.append(_Column(edges, cases, index, cluster, bins))
        return cls(tuple(columns), sample)

    def replicates(self, debias: Debias, column: int | None = None) -> Replicates:
        """CL over all columns or of one, with its leave-one-cluster-out values."""
        chosen = self.columns if column is None else (self.columns[column],)
        parts = [one.totals(debias, self.sample) for one in chosen]
        total = sum(part[0] for part in parts)
        return ratio_replicates(total, np.sum([part[1] for part in parts], axis=0), self.sample)

    def singleton_mass(self, debias: Debias) -> float:
        """Share of the weight in bins that the debiased form cannot use."""
        weight = float(self.sample.weight.sum()) * len(self.columns)
        return sum(lonely_weight(one.bins, debias) for one in self.columns) / weight if weight > 0 else 0.0

    def estimate(self, debias: Debias) -> Estimate:
        """CL over all columns."""
        return to_estimate(self.replicates(debias), self.sample, self.singleton_mass(debias))

    def horvitz_thompson(self, probs: FloatArray, cluster: npt.NDArray[Any] | None) -> float:
        """CL in the pair form over all cases, Σ_b N_b/N · Σ_{i≠j} w_i w_j d_i d_j / (pairs of bin b).

        Each pair of cases is selected with the product of their probabilities; N_b and the number of pairs are
        those of all cases, with labels or without, so no weight stands in a denominator.

        Args:
            probs: (N, K) probabilities of all cases.
            cluster: (N,) patient of all cases.
        """
        total = 0.0
        for one, prob in zip(self.columns, probs.T, strict=True):
            n_bins = len(one.edges) - 1
            index = bin_index(prob, one.edges)
            cases = np.bincount(index, minlength=n_bins).astype(np.float64)
            own = cases
            if cluster is not None:
                numbers = np.unique(cluster, return_inverse=True)[1]
                keys, sizes = np.unique(numbers * n_bins + index, return_counts=True)
                own = np.asarray(np.bincount(keys % n_bins, sizes.astype(np.float64) ** 2, n_bins), dtype=np.float64)
            pairs = cases**2 - own
            crossed = one.bins.diff**2 - one.bins.cell_diff_sq
            total += float((cases * crossed / np.where(pairs > 0, pairs, np.inf)).sum())
        return total / len(probs)

    def diagram(self, column: int | None = None) -> list[dict[str, Any]]:
        """Rows of the reliability diagram of one column, or of all pooled; means are None in empty bins.

        ``freq_low`` and ``freq_high`` are the 95 % interval of the mean frequency, over clusters where there are
        any; None in bins with one member.
        """
        chosen = self.columns if column is None else (self.columns[column],)
        edges = chosen[0].edges
        sums = chosen[0].bins
        for one in chosen[1:]:
            sums = sums + one.bins
        mean = sums.freq / np.where(sums.weight > 0, sums.weight, 1.0)
        spread, members = np.zeros(len(edges) - 1), np.zeros(len(edges) - 1)
        for one in chosen:
            residual = one.cells.freq - mean[one.cell_bin] * one.cells.weight
            spread += np.bincount(one.cell_bin, residual**2, len(spread))
            members += np.bincount(one.cell_bin, minlength=len(spread))
        with np.errstate(divide="ignore", invalid="ignore"):
            half = 1.96 * np.sqrt(spread * members / (members - 1)) / sums.weight
        rows = []
        for b in range(len(edges) - 1):
            weight, known = sums.weight[b], members[b] > 1 and np.isfinite(half[b])
            rows.append(
                {
                    "low": float(edges[b]),
                    "high": float(edges[b + 1]),
                    "n": int(sums.cases[b]),
                    "mean_prob": float(sums.prob[b] / weight) if weight > 0 else None,
                    "mean_freq": float(mean[b]) if weight > 0 else None,
                    "freq_low": float(max(0.0, mean[b] - half[b])) if known else None,
                    "freq_high": float(min(1.0, mean[b] + half[b])) if known else None,
                }
            )
        return rows
