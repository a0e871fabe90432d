"""Mergeable sums from which the label-histogram metrics follow: memory O(K · bins), independent of N."""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ml.dataframes import by_class, same_rows
from ml.distributions.families import gini
from ml.metrics.binning import SUMMED, BinIndex, BinSums, Debias, calibration_sum, merge_map, usable_bins
from ml.metrics.cluster_bin_sums import Batch
from ml.metrics.cluster_sums import ClusterCells
from ml.metrics.histograms import CaseTerms, class_frequencies, statistic_terms
from ml.metrics.inputs import check_clusters
from ml.metrics.skill import skill_score
from ml.util.arrays import FloatArray, IntArray, as_class_probs, as_label_counts, as_vector

#: Names of the means, each with the number of labels a case needs.
MEANS = {
    "agreement": 1,
    "L": 1,
    "EL": 2,
    "EL_plugin": 2,
    "L_D": 2,
    "L_D_minus_max": 2,
    "L_D_minus_gini": 2,
    "accuracy": 3,
}
_VERSION = 2
#: Binned tables: classes of cases with one label, with several, and their disagreement.
TABLES = ("single", "several", "disagreement")


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
        self.n_classes = n_classes
        self.n_bins = n_bins
        self.n_cases = 0
        self.n_labels = 0
        self.used = {1: 0, 2: 0, 3: 0}
        self.weight = {1: 0.0, 2: 0.0, 3: 0.0}
        self.sums = dict.fromkeys(MEANS, 0.0)
        classes, disagreement = (BinIndex.of(np.empty((0, columns)), n_bins, "uniform") for columns in (n_classes, 1))
        self.slots = {"single": classes, "several": classes, "disagreement": disagreement}
        self.tables = {name: BinSums.zeros(len(slots)) for name, slots in self.slots.items()}
        #: names of the classes, in their order in the sums, once tables have named them
        self.classes: list[str] | None = None
        #: None until the first update decides whether cases come with clusters
        self.cells: dict[str, ClusterCells] | None = None

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
            class_probs: (N, K) class probability estimates; where both are tables, classes are matched by name.
            disagreement_probs: (N,) DPEs; 1 − Σf² where left out.
            weight: (N,) instance weights.
            cluster: (N,) patient of each case; all updates have one or none has.

        Raises:
            ValueError: shapes or class names that do not match, or values out of range; nothing is added then.
        """
        columns = {"label_counts": label_counts, "class_probs": class_probs, "disagreement_probs": disagreement_probs}
        same_rows(**columns, weight=weight, cluster=cluster)
        counted, predicted, classes = by_class(label_counts, class_probs)
        if self.n_cases and classes != self.classes:
            raise ValueError(f"the classes are {classes}, and those of the cases before are {self.classes}")
        counts, probs = as_label_counts(counted), as_class_probs(predicted)
        if counts.shape != probs.shape or counts.shape[1] != self.n_classes:
            shapes = f"label_counts {counts.shape} and class_probs {probs.shape}"
            raise ValueError(f"{shapes} must both be (N, {self.n_classes})")
        size = len(counts)
        data = _Cases(
            counts,
            probs,
            None if disagreement_probs is None else as_vector(disagreement_probs, size, "disagreement_probs", 0.0, 1.0),
            None if weight is None else as_vector(weight, size, "weight", 0.0, np.finfo(np.float64).max),
            check_clusters(cluster, size),
        )
        if self.n_cases and (data.names is None) != (self.cells is None):
            raise ValueError("either all cases come with a cluster or none does")
        self.classes = classes
        if data.names is not None and self.cells is None:
            self.cells = {name: ClusterCells(len(self.slots[name])) for name in TABLES}
        for part in self.slots["single"].chunks(size, None, SUMMED):
            self._add(data.take(part))

    def _add(self, cases: "_Cases") -> None:
        totals = cases.n_labels
        self.n_cases += len(totals)
        self.n_labels += int(totals.sum())
        for table, used in (("single", totals == 1), ("several", totals >= 2)):
            if used.any():
                self._add_group(table, cases if used.all() else cases.take(np.flatnonzero(used)))

    def _add_group(self, table: str, cases: "_Cases") -> None:
        """Add cases that all have one label, or all several."""
        freqs, weight = class_frequencies(cases.counts, cases.n_labels), cases.weights
        gap = self._add_table(table, cases, freqs, cases.probs).gap
        terms = CaseTerms.of(cases.counts, cases.probs, freqs, gap, cases.n_labels)
        values = values_of_cases(terms, cases.disagreement_probs if table == "several" else None)
        if table == "several":
            dpe = cases.disagreement_probs[:, None]
            self._add_table("disagreement", cases, terms.observed_disagreement[:, None], dpe)
        for order in (1, 2, 3) if table == "several" else (1,):
            enough = terms.n_labels >= order
            self.used[order] += int(enough.sum())
            self.weight[order] += float(weight @ enough)
        for name, term in values.items():
            self.sums[name] += float(weight @ term)

    def _add_table(self, table: str, cases: "_Cases", freqs: FloatArray, probs: FloatArray) -> Batch:
        """Add frequencies and probabilities (n, C) of cases to a table, and return the batch."""
        names, number = cases.clusters
        batch = Batch(freqs, probs, cases.weights, self.slots[table], number, alone=self.cells is None)
        self.tables[table] = self.tables[table] + batch.sums()
        if self.cells is not None:
            self.cells[table].add(names, batch.cells())
        return batch

    def _table(self, *names: str, paired: bool = False) -> BinSums:
        """One table, or the sum of two, with its cells where there are clusters; joined as ``Binned`` joins bins."""
        table = self.tables[names[0]]
        for name in names[1:]:
            table = table + self.tables[name]
        cells, owner = None, np.where(table.weight > 0, np.arange(table.weight.size), -1)
        if self.cells is not None:
            cells = ClusterCells(len(table.cases))
            for name in names:
                cells.merge(self.cells[name])
            table, owner = cells.within(table), cells.owners()
        # all cases weigh the same where Σw² · n is not above (Σw)²
        even = table.weight_sq.sum() * table.cases.sum() <= table.weight.sum() ** 2 * (1 + 1e-12)
        if not paired or even:
            return table
        target = merge_map(usable_bins(table), owner, self.slots[names[0]].first)
        table = table.merged(target)
        return table if cells is None else cells.merged(target).within(table)

    def merge(self, other: "Accumulator") -> "Accumulator":
        """Add another accumulator's sums to this one, and return this one.

        Raises:
            ValueError: other classes, another number of bins, or clusters in only one of them.
        """
        if (self.n_classes, self.n_bins) != (other.n_classes, other.n_bins):
            raise ValueError(
                f"cannot merge {other.n_classes} classes in {other.n_bins} bins "
                f"into {self.n_classes} classes in {self.n_bins} bins"
            )
        if self.n_cases and other.n_cases and self.classes != other.classes:
            raise ValueError(f"cannot merge cases of classes {other.classes} into cases of classes {self.classes}")
        if self.n_cases and other.n_cases and (self.cells is None) != (other.cells is None):
            raise ValueError("cannot merge cases with clusters and cases without")
        if other.cells is not None:
            if self.cells is None:
                self.cells = {name: ClusterCells(len(self.slots[name])) for name in TABLES}
            for name in TABLES:
                self.cells[name].merge(other.cells[name])
        self.classes = self.classes or other.classes
        self.n_cases += other.n_cases
        self.n_labels += other.n_labels
        for order in (1, 2, 3):
            self.used[order] += other.used[order]
            self.weight[order] += other.weight[order]
        for name in MEANS:
            self.sums[name] += other.sums[name]
        for name in TABLES:
            self.tables[name] = self.tables[name] + other.tables[name]
        return self

    def compute(self, debias: Debias = "pair") -> dict[str, float]:
        """Values of every metric over the cases seen; NaN where no case could be used."""
        values = {name: _ratio(self.sums[name], self.weight[order]) for name, order in MEANS.items()}
        for name, order, tables in (
            ("CL", 1, ("single", "several")),
            ("CL_paired", 2, ("several",)),
            ("CL_D", 2, ("disagreement",)),
        ):
            for form, suffix in ((debias, ""), ("none", "_plugin")):
                table = self._table(*tables, paired=form == "pair")
                values[name + suffix] = _ratio(calibration_sum(table, form), self.weight[order])
        if debias == "none":
            values["EL"] = values["EL_plugin"]
        values["DL"] = values["EL"] - values["CL_paired"]
        values["DL_plugin"] = values["EL_plugin"] - values.pop("CL_paired_plugin")
        values["CE"] = float(np.sqrt(np.maximum(values["CL"], 0.0)))
        values["CE_D"] = float(np.sqrt(np.maximum(values["CL_D"], 0.0)))
        return values | self._skills(values)

    def _skills(self, values: dict[str, float]) -> dict[str, float]:
        """Skill of both predictions over the constants that the frequencies in the tables say."""
        freqs = self.tables["single"].freq + self.tables["several"].freq
        by_class = freqs.reshape(self.n_classes, self.n_bins).sum(axis=1)
        shares = by_class / self.weight[1] if self.weight[1] > 0 else np.full(self.n_classes, np.nan)
        rate = _ratio(float(self.tables["disagreement"].freq.sum()), self.weight[2])
        return {
            "skill": skill_score(values["L"], float(1 - shares @ shares)),
            "skill_D": skill_score(values["L_D"], rate * (1 - rate)),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as JSON values; ``from_dict`` reads them back to the last bit."""
        return {
            "version": _VERSION,
            "n_classes": self.n_classes,
            "n_bins": self.n_bins,
            "classes": self.classes,
            "n_cases": self.n_cases,
            "n_labels": self.n_labels,
            "used": list(self.used.values()),
            "weight": [_known(value) for value in self.weight.values()],
            "sums": {name: _known(value) for name, value in self.sums.items()},
            "tables": {
                name: {f.name: getattr(table, f.name).tolist() for f in fields(BinSums)}
                for name, table in self.tables.items()
            },
            "cells": None if self.cells is None else {name: self.cells[name].to_dict() for name in TABLES},
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> "Accumulator":
        """Read back what ``to_dict`` wrote.

        Raises:
            ValueError: a field is missing or has another shape, or another version wrote it.
        """
        try:
            acc = cls(document["n_classes"], document["n_bins"])
            if document["version"] != _VERSION:
                raise ValueError(f"version {document['version']} is not {_VERSION}, which this code reads")
            acc.classes = document["classes"]
            acc.n_cases, acc.n_labels = document["n_cases"], document["n_labels"]
            acc.used = dict(zip((1, 2, 3), document["used"], strict=True))
            acc.weight = {n: _number(value) for n, value in zip((1, 2, 3), document["weight"], strict=True)}
            acc.sums = {name: _number(document["sums"][name]) for name in MEANS}
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


def values_of_cases(terms: CaseTerms, disagreement_probs: FloatArray | None) -> dict[str, FloatArray]:
    """Per-case values (n,) behind the means of ``MEANS``.

    Args:
        terms: of n cases.
        disagreement_probs: (n,) of cases with two labels or more; None for those with one, which have no other terms.
    """
    values = {"agreement": terms.agreement, "L": terms.loss}
    if disagreement_probs is None:
        return values
    observed = terms.observed_disagreement
    loss = statistic_terms(observed, disagreement_probs)
    values |= {"EL_plugin": terms.plugin, "EL": terms.epistemic, "L_D": loss}
    for name, rule in terms.simple_rules().items():
        values[f"L_D_minus_{name}"] = loss - statistic_terms(observed, rule)
    return values | {"accuracy": terms.hits}


@dataclass(frozen=True)
class _Cases:
    """Checked cases: label counts and probabilities (n, K), and (n,) DPEs, weights and cluster names where given."""

    counts: IntArray
    probs: FloatArray
    dpe: FloatArray | None
    weight: FloatArray | None
    names: npt.NDArray[Any] | None

    def take(self, rows: slice | npt.NDArray[np.intp]) -> "_Cases":
        """Some of the cases."""
        columns = (self.dpe, self.weight, self.names)
        return _Cases(self.counts[rows], self.probs[rows], *(None if c is None else c[rows] for c in columns))

    @cached_property
    def n_labels(self) -> IntArray:
        """Labels (n,) of each case."""
        return np.asarray(np.einsum("nk->n", self.counts))

    @cached_property
    def disagreement_probs(self) -> FloatArray:
        """DPEs (n,): 1 − Σf² where none were given."""
        return gini(self.probs) if self.dpe is None else self.dpe

    @cached_property
    def weights(self) -> FloatArray:
        """Weights (n,): ones where none were given."""
        return np.ones(len(self.counts)) if self.weight is None else self.weight

    @cached_property
    def clusters(self) -> tuple[npt.NDArray[Any], npt.NDArray[np.intp]]:
        """Distinct names, and which of them each case (n,) has; cases number themselves where there are none."""
        if self.names is None:
            return np.empty(0), np.arange(len(self.counts))
        names, number = np.unique(self.names, return_inverse=True)
        return names, number


def _read_table(document: dict[str, list[float]], empty: BinSums) -> BinSums:
    columns: dict[str, npt.NDArray[Any]] = {
        f.name: np.array(document[f.name], getattr(empty, f.name).dtype) for f in fields(BinSums)
    }
    for name, column in columns.items():
        if column.shape != empty.cases.shape:
            raise ValueError(f"table field {name!r} must have shape {empty.cases.shape}, got {column.shape}")
    return BinSums(**columns)


def _known(value: float) -> float | None:
    """A sum as a JSON value: None where it is unknown."""
    return None if np.isnan(value) else value


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _ratio(total: float, weight: float) -> float:
    return total / weight if weight > 0 else float("nan")
