"""Mergeable sums from which the label-histogram metrics follow: memory O(K · bins), independent of N."""

from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ml.arrays import FloatArray, IntArray, as_class_probs, as_label_counts, as_vector
from ml.binning import BinSums, Debias, bin_edges, bin_index, case_sums, contributions
from ml.distributions import gini
from ml.histograms import class_frequencies, epistemic_terms, observed_disagreement, squared_terms

# names of the means, each with the number of labels a case needs
_MEANS = {"L": 1, "accuracy": 1, "EL": 2, "EL_plugin": 2, "L_D": 2}
# names of the binned tables, each with the number of labels a case needs
_TABLES = {"classes": 1, "classes_paired": 2, "disagreement": 2}


class Accumulator:
    """Sums over cases seen so far; merging two equals accumulating both.

    Counts are exact (int64), sums float64. Weights belong to one order: use one accumulator per order where
    inverse selection probabilities of one and of two labels differ.

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
        self.edges = bin_edges(np.empty(0), n_bins, "uniform")
        self.n_cases = 0
        self.n_labels = 0
        self.used = {1: 0, 2: 0}
        self.weight = {1: 0.0, 2: 0.0}
        self.sums = dict.fromkeys(_MEANS, 0.0)
        self.tables = {name: _empty(1 if name == "disagreement" else n_classes, n_bins) for name in _TABLES}

    def update(
        self,
        label_counts: npt.ArrayLike,
        class_probs: npt.ArrayLike,
        disagreement_probs: npt.ArrayLike | None = None,
        weight: npt.ArrayLike | None = None,
    ) -> None:
        """Add cases.

        Args:
            label_counts: (N, K) label histograms.
            class_probs: (N, K) class probability estimates.
            disagreement_probs: (N,) DPEs; 1 − Σf² where left out.
            weight: (N,) instance weights.

        Raises:
            ValueError: shapes that do not match or values out of range; nothing is added then.
        """
        counts, probs = as_label_counts(label_counts), as_class_probs(class_probs)
        if counts.shape != probs.shape or counts.shape[1] != self.n_classes:
            shapes = f"label_counts {counts.shape} and class_probs {probs.shape}"
            raise ValueError(f"{shapes} must both be (N, {self.n_classes})")
        dpe = gini(probs) if disagreement_probs is None else disagreement_probs
        dpe = as_vector(dpe, len(counts), "disagreement_probs", 0.0, 1.0)
        weights = np.ones(len(counts)) if weight is None else weight
        weights = as_vector(weights, len(counts), "weight", 0.0, np.finfo(np.float64).max)
        self.n_cases += len(counts)
        self.n_labels += int(counts.sum())
        totals = counts.sum(axis=1)
        for order in (1, 2):
            rows = np.flatnonzero(totals >= order)
            self._add(order, counts[rows], probs[rows], dpe[rows], weights[rows])

    def _add(self, order: int, counts: IntArray, probs: FloatArray, dpe: FloatArray, weight: FloatArray) -> None:
        freqs = class_frequencies(counts)
        self.used[order] += len(counts)
        self.weight[order] += float(weight.sum())
        if order == 1:
            hits = counts.argmax(axis=1) == probs.argmax(axis=1)
            terms = {"L": squared_terms(counts, probs).sum(axis=1), "accuracy": hits}
            columns = {"classes": (freqs, probs)}
        else:
            observed = observed_disagreement(counts)
            terms = {
                "EL": epistemic_terms(counts, probs, True).sum(axis=1),
                "EL_plugin": epistemic_terms(counts, probs, False).sum(axis=1),
                "L_D": (observed - dpe) ** 2 + observed * (1 - observed),
            }
            columns = {"classes_paired": (freqs, probs), "disagreement": (observed[:, None], dpe[:, None])}
        for name, values in terms.items():
            self.sums[name] += float(weight @ values)
        for name, (truth, estimate) in columns.items():
            self.tables[name] = self.tables[name] + self._table(truth, estimate, weight)

    def _table(self, freqs: FloatArray, probs: FloatArray, weight: FloatArray) -> BinSums:
        width = freqs.shape[1]
        column = np.arange(width) * self.n_bins
        index = bin_index(probs, self.edges) + column
        cases = case_sums(freqs.ravel(), probs.ravel(), np.repeat(weight, width))
        return cases.grouped(index.ravel(), width * self.n_bins)

    def merge(self, other: "Accumulator") -> "Accumulator":
        """Add another accumulator's sums to this one, and return this one.

        Raises:
            ValueError: another number of classes or bins.
        """
        if (self.n_classes, self.n_bins) != (other.n_classes, other.n_bins):
            raise ValueError(
                f"cannot merge {other.n_classes} classes in {other.n_bins} bins "
                f"into {self.n_classes} classes in {self.n_bins} bins"
            )
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
        for name, table, form in (
            ("CL", "classes", debias),
            ("CL_plugin", "classes", None),
            ("CL_paired", "classes_paired", debias),
            ("CL_paired_plugin", "classes_paired", None),
            ("CL_D", "disagreement", debias),
            ("CL_D_plugin", "disagreement", None),
        ):
            total = float(contributions(self.tables[table], form).sum())
            values[name] = _ratio(total, self.weight[_TABLES[table]])
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
        except (KeyError, TypeError) as exc:
            raise ValueError(f"not an accumulator document: {exc!r}") from exc
        return acc


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


def _empty(columns: int, n_bins: int) -> BinSums:
    size = columns * n_bins
    counts, sums = np.zeros(size, dtype=np.int64), np.zeros(size)
    return BinSums(counts, counts, *[sums] * (len(fields(BinSums)) - 2))
