"""Mergeable sums from which the label-histogram metrics follow: memory O(K · bins), independent of N."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ml.arrays import FloatArray, IntArray, as_class_probs, as_label_counts, as_vector
from ml.distributions.families import gini
from ml.metrics.binning import BinSums, Debias, bin_edges, contributions, sums_by_slot, uniform_bin_index
from ml.metrics.cluster_sums import ClusterCells
from ml.metrics.histograms import observed_disagreement

# names of the means, each with the number of labels a case needs
_MEANS = {"L": 1, "accuracy": 1, "EL": 2, "EL_plugin": 2, "L_D": 2}
# binned tables: classes of cases with one label, with several, and their disagreement
_TABLES = ("single", "several", "disagreement")
#: Cases worked on at once: temporaries stay in the processor's cache, and memory does not grow with N.
CHUNK = 2048


class Accumulator:
    """Sums over cases seen so far; merging two equals accumulating both.

    Counts are exact (int64), sums float64. Weights belong to one order: use one accumulator per order where
    inverse selection probabilities of one and of two labels differ. With clusters the sums of every
    (cluster, bin) cell are kept as well, so memory grows with the cells seen.

    Args:
        n_classes: K.
        n_bins: equal-width bins of [0, 1].

    >>> acc = Accumulator(2, n_bins=5)
    >>> acc.update([[2, 1], [0, 3]], [[0.7, 0.3], [0.2, 0.8]])
    >>> round(acc.compute()["L"], 4)
    0.2633
    """

    def __init__(self, n_classes: int, n_bins: int = 15) -> None:
        if n_classes < 2:
            raise ValueError(f"n_classes must be at least 2, got {n_classes}")
        bin_edges(np.empty(0), n_bins, "uniform")
        self.n_classes = n_classes
        self.n_bins = n_bins
        self.n_cases = 0
        self.n_labels = 0
        self.used = {1: 0, 2: 0}
        self.weight = {1: 0.0, 2: 0.0}
        self.sums = dict.fromkeys(_MEANS, 0.0)
        self.tables = {name: BinSums.zeros(self._columns(name) * n_bins) for name in _TABLES}
        #: None until the first update decides whether cases come with clusters
        self.cells: dict[str, ClusterCells] | None = None

    def _columns(self, table: str) -> int:
        return 1 if table == "disagreement" else self.n_classes

    def update(
        self,
        label_counts: npt.ArrayLike,
        class_probs: npt.ArrayLike,
        disagreement_probs: npt.ArrayLike | None = None,
        weight: npt.ArrayLike | None = None,
        cluster: npt.ArrayLike | None = None,
    ) -> None:
        """Add cases.

        Args:
            label_counts: (N, K) label histograms.
            class_probs: (N, K) class probability estimates.
            disagreement_probs: (N,) DPEs; 1 − Σf² where left out.
            weight: (N,) instance weights.
            cluster: (N,) patient of each case; all updates have one or none has.

        Raises:
            ValueError: shapes that do not match or values out of range; nothing is added then.
        """
        counts, probs = as_label_counts(label_counts), as_class_probs(class_probs)
        if counts.shape != probs.shape or counts.shape[1] != self.n_classes:
            shapes = f"label_counts {counts.shape} and class_probs {probs.shape}"
            raise ValueError(f"{shapes} must both be (N, {self.n_classes})")
        size = len(counts)
        dpe, weights = disagreement_probs, weight
        if dpe is not None:
            dpe = as_vector(dpe, size, "disagreement_probs", 0.0, 1.0)
        if weights is not None:
            weights = as_vector(weights, size, "weight", 0.0, np.finfo(np.float64).max)
        names = None if cluster is None else np.asarray(cluster)
        if names is not None and names.shape != (size,):
            raise ValueError(f"cluster must have shape ({size},), got {names.shape}")
        if self.n_cases and (names is None) != (self.cells is None):
            raise ValueError("either all cases come with a cluster or none does")
        if names is not None and self.cells is None:
            self.cells = {name: ClusterCells(self._columns(name) * self.n_bins) for name in _TABLES}
        for start in range(0, size, CHUNK):
            part = slice(start, start + CHUNK)
            y, f = counts[part], probs[part]
            phi = gini(f) if dpe is None else dpe[part]
            w = np.ones(len(y)) if weights is None else weights[part]
            self._add(y, f, phi, w, weights is None, None if names is None else names[part])

    def _add(
        self,
        y: IntArray,
        f: FloatArray,
        phi: FloatArray,
        w: FloatArray,
        plain: bool,
        names: npt.NDArray[Any] | None,
    ) -> None:
        totals = y.sum(axis=1)
        self.n_cases += len(y)
        self.n_labels += int(totals.sum())
        for table, mask in (("single", totals == 1), ("several", totals >= 2)):
            n = int(np.count_nonzero(mask))
            if n == 0:
                continue
            whole = n == len(y)
            rows = slice(None) if whole else np.flatnonzero(mask)
            columns = (y[rows], f[rows], phi[rows], w[rows], totals[rows])
            self._add_group(table, *columns, plain, None if names is None else names[rows])

    def _add_group(
        self,
        table: str,
        y: IntArray,
        f: FloatArray,
        phi: FloatArray,
        w: FloatArray,
        n: IntArray,
        plain: bool,
        names: npt.NDArray[Any] | None,
    ) -> None:
        """Add cases that all have one label, or all several."""
        weight = float(w.sum())
        freq = y / n[:, None]
        cross = np.einsum("nk,nk->n", freq, f)
        freq_sq, prob_sq = np.einsum("nk,nk->n", freq, freq), np.einsum("nk,nk->n", f, f)
        plugin = freq_sq - 2 * cross + prob_sq
        terms = {"L": plugin + 1 - freq_sq, "accuracy": y.argmax(axis=1) == f.argmax(axis=1)}
        if table == "several":
            observed = observed_disagreement(y)
            terms |= {"EL_plugin": plugin, "EL": plugin - (1 - freq_sq) / (n - 1)}
            terms["L_D"] = (observed - phi) ** 2 + observed * (1 - observed)
            self._add_table("disagreement", observed[:, None], phi[:, None], w, plain, names)
        for order in (1, 2) if table == "several" else (1,):
            self.used[order] += len(y)
            self.weight[order] += weight
        for name, values in terms.items():
            self.sums[name] += float(w @ values)
        self._add_table(table, freq, f, w, plain, names)

    def _add_table(
        self,
        table: str,
        freq: FloatArray,
        prob: FloatArray,
        w: FloatArray,
        plain: bool,
        names: npt.NDArray[Any] | None,
    ) -> None:
        slot = uniform_bin_index(prob, self.n_bins)
        slot += np.arange(prob.shape[1]) * self.n_bins
        size = self._columns(table) * self.n_bins
        self.tables[table] = self.tables[table] + _slot_sums(slot, freq, prob, w, plain, size)
        if names is not None and self.cells is not None:
            weights = np.broadcast_to(w[:, None], prob.shape)
            self.cells[table].add(names, slot, weights, weights * (freq - prob))

    def _table(self, *names: str) -> BinSums:
        """One table, or the sum of two, with its cells where there are clusters."""
        table = self.tables[names[0]]
        for name in names[1:]:
            table = table + self.tables[name]
        if self.cells is None:
            return table
        cells = ClusterCells(len(table.cases))
        for name in names:
            cells.merge(self.cells[name])
        number, weight_sq, diff_sq = cells.per_slot()
        return replace(table, cells=number, cell_weight_sq=weight_sq, cell_diff_sq=diff_sq)

    def merge(self, other: "Accumulator") -> "Accumulator":
        """Add another accumulator's sums to this one, and return this one.

        Raises:
            ValueError: another number of classes or bins, or clusters in only one of them.
        """
        if (self.n_classes, self.n_bins) != (other.n_classes, other.n_bins):
            raise ValueError(
                f"cannot merge {other.n_classes} classes in {other.n_bins} bins "
                f"into {self.n_classes} classes in {self.n_bins} bins"
            )
        if self.n_cases and other.n_cases and (self.cells is None) != (other.cells is None):
            raise ValueError("cannot merge cases with clusters and cases without")
        if other.cells is not None:
            if self.cells is None:
                self.cells = {name: ClusterCells(self._columns(name) * self.n_bins) for name in _TABLES}
            for name in _TABLES:
                self.cells[name].merge(other.cells[name])
        self.n_cases += other.n_cases
        self.n_labels += other.n_labels
        for order in (1, 2):
            self.used[order] += other.used[order]
            self.weight[order] += other.weight[order]
        for name in _MEANS:
            self.sums[name] += other.sums[name]
        for name in _TABLES:
            self.tables[name] = self.tables[name] + other.tables[name]
        return self

    def compute(self, debias: Debias = "pair") -> dict[str, float]:
        """Values of every metric over the cases seen; NaN where no case could be used."""
        values = {name: _ratio(self.sums[name], self.weight[order]) for name, order in _MEANS.items()}
        for name, order, tables in (
            ("CL", 1, ("single", "several")),
            ("CL_paired", 2, ("several",)),
            ("CL_D", 2, ("disagreement",)),
        ):
            table = self._table(*tables)
            for form, suffix in ((debias, ""), (None, "_plugin")):
                total = float(contributions(table, form).sum())
                values[name + suffix] = _ratio(total, self.weight[order])
        if debias is None:
            values["EL"] = values["EL_plugin"]
        values["DL"] = values["EL"] - values["CL_paired"]
        values["DL_plugin"] = values["EL_plugin"] - values.pop("CL_paired_plugin")
        values["CE"] = float(np.sqrt(np.maximum(values["CL"], 0.0)))
        values["CE_D"] = float(np.sqrt(np.maximum(values["CL_D"], 0.0)))
        return values

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as JSON values; ``from_dict`` reads them back to the last bit."""
        return {
            "n_classes": self.n_classes,
            "n_bins": self.n_bins,
            "n_cases": self.n_cases,
            "n_labels": self.n_labels,
            "used": [self.used[1], self.used[2]],
            "weight": [self.weight[1], self.weight[2]],
            "sums": dict(self.sums),
            "tables": {
                name: {f.name: getattr(table, f.name).tolist() for f in fields(BinSums)}
                for name, table in self.tables.items()
            },
            "cells": None if self.cells is None else {name: self.cells[name].to_dict() for name in _TABLES},
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> "Accumulator":
        """Read back what ``to_dict`` wrote.

        Raises:
            ValueError: a field is missing or has another shape.
        """
        try:
            acc = cls(document["n_classes"], document["n_bins"])
            acc.n_cases, acc.n_labels = document["n_cases"], document["n_labels"]
            acc.used = dict(zip((1, 2), document["used"], strict=True))
            acc.weight = dict(zip((1, 2), document["weight"], strict=True))
            acc.sums = {name: float(document["sums"][name]) for name in _MEANS}
            for name, empty in acc.tables.items():
                acc.tables[name] = _read_table(document["tables"][name], empty)
            if document["cells"] is not None:
                acc.cells = {
                    name: ClusterCells.from_dict(document["cells"][name], len(table.cases))
                    for name, table in acc.tables.items()
                }
        except (KeyError, TypeError) as exc:
            raise ValueError(f"not an accumulator document: {exc!r}") from exc
        return acc


def _slot_sums(
    slot: npt.NDArray[np.intp], freq: FloatArray, prob: FloatArray, w: FloatArray, plain: bool, size: int
) -> BinSums:
    """Sums over cases in each slot; with unit weights four of them are the number of cases.

    Frequencies are mostly zero, so their sums visit only the cells with labels.
    """
    at = slot.ravel()
    cases = np.bincount(at, minlength=size)
    labels = np.flatnonzero(freq.ravel() != 0)
    labelled, mu = at[labels], freq.ravel()[labels]
    if plain:
        weight = weight_sq = cases.astype(np.float64)
        prob_sum, square = sums_by_slot(at, prob, size), sums_by_slot(at, (freq - prob) ** 2, size)
        scaled = mu
    else:
        spread = np.broadcast_to(w[:, None], prob.shape)
        weight, weight_sq = sums_by_slot(at, spread, size), sums_by_slot(at, spread**2, size)
        prob_sum, square = sums_by_slot(at, spread * prob, size), sums_by_slot(at, (spread * (freq - prob)) ** 2, size)
        scaled = w[labels // freq.shape[1]] * mu
    freq_sum, freq_sq = sums_by_slot(labelled, scaled, size), sums_by_slot(labelled, scaled * mu, size)
    return BinSums(
        cells=cases,
        cases=cases,
        weight=weight,
        freq=freq_sum,
        prob=prob_sum,
        diff=freq_sum - prob_sum,
        freq_sq=freq_sq,
        weight_sq=weight_sq,
        cell_weight_sq=weight_sq,
        cell_diff_sq=square,
    )


def _read_table(document: dict[str, Any], empty: BinSums) -> BinSums:
    columns: dict[str, Any] = {
        f.name: np.array(document[f.name], getattr(empty, f.name).dtype) for f in fields(BinSums)
    }
    for name, column in columns.items():
        if column.shape != empty.cases.shape:
            raise ValueError(f"table field {name!r} must have shape {empty.cases.shape}, got {column.shape}")
    return BinSums(**columns)


def _ratio(total: float, weight: float) -> float:
    return total / weight if weight > 0 else float("nan")
