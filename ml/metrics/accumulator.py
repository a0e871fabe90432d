"""Mergeable sums of units of cases, for every metric.

A unit is what a jackknife leaves out, or all cases together. Groups
of patients stand for patients, who would be too many to keep.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ml.dataframes import same_rows
from ml.distributions.families import gini
from ml.documents import from_document, to_document
from ml.metrics.binned import Binned
from ml.metrics.cases import MEANS, Inputs, Sample, case_terms, check_inputs, class_frequencies
from ml.metrics.definitions import BinnedSource, Bins, metric_values
from ml.metrics.jackknife import Replicates
from ml.metrics.sums import SUMMED, Batch, BinIndex, BinSums, Debias, NamedCells, sums_by_slot
from ml.util.arrays import FloatArray, IntArray, as_vector, require_whole

#: Groups of patients: a standard error by them varies by 1/√(2 · 399), 3.5 %, about the one by patients.
N_GROUPS = 400
#: Numbers of labels that estimators need.
ORDERS = (1, 2, 3)
#: Binned tables: classes of cases with one label, with several, and their disagreement.
TABLES = ("single", "several", "disagreement")
#: Tables that hold the cases with so many labels.
TABLES_OF: dict[tuple[Bins, int], tuple[str, ...]] = {
    ("classes", 1): ("single", "several"),
    ("classes", 2): ("several",),
    ("disagreement", 2): ("disagreement",),
}
_VERSION = 2


def group_numbers(names: Iterable[object], n_groups: int = N_GROUPS) -> npt.NDArray[np.intp]:
    """Group (N,) of each patient or case, by a digest of its name."""
    texts = [str(name) for name in names]
    # each name once: a digest is slow
    digests = {text: hashlib.blake2b(text.encode(), digest_size=8).digest() for text in set(texts)}
    groups = {text: int.from_bytes(digest) % n_groups for text, digest in digests.items()}
    return np.array([groups[text] for text in texts], dtype=np.intp)


@dataclass(frozen=True)
class _UnitBinIndex(BinIndex):
    unit: npt.NDArray[np.intp]
    n_units: int

    def __len__(self) -> int:
        return self.n_units * super().__len__()

    def index(self, probs: FloatArray) -> npt.NDArray[np.intp]:
        index = super().index(probs)
        return index if self.n_units == 1 else np.asarray(index + self.unit[:, None] * super().__len__())


@dataclass(frozen=True)
class _Cases:
    counts: IntArray
    probs: FloatArray
    n_labels: IntArray
    dpe: FloatArray
    weight: FloatArray
    unit: npt.NDArray[np.intp]

    def take(self, rows: slice | npt.NDArray[np.intp]) -> "_Cases":
        return _Cases(*(getattr(self, f.name)[rows] for f in fields(self)))


class UnitSums:
    """Sums of U units over cases; two objects can be merged."""

    def __init__(self, n_classes: int, n_bins: int, n_units: int) -> None:
        require_whole(n_classes, "n_classes", 2)
        self.n_classes, self.n_bins, self.n_units = n_classes, n_bins, n_units
        self.n_cases = 0
        self.n_labels = 0
        # (U,) by order: cases with so many labels, Σw and Σw²
        self.used = {order: np.zeros(n_units, dtype=np.int64) for order in ORDERS}
        self.weight = {order: np.zeros(n_units) for order in ORDERS}
        self.weight_sq = {order: np.zeros(n_units) for order in ORDERS}
        self.sums = {name: np.zeros(n_units) for name in MEANS}  # Σw of terms
        classes, disagreement = (BinIndex.of(np.empty((0, columns)), n_bins, "uniform") for columns in (n_classes, 1))
        self.slots = {"single": classes, "several": classes, "disagreement": disagreement}
        self.tables = {name: BinSums.zeros(n_units * len(slots)) for name, slots in self.slots.items()}

    def _check(
        self,
        label_counts: npt.ArrayLike,
        class_probs: npt.ArrayLike,
        disagreement_probs: npt.ArrayLike | None,
        sample_weight: npt.ArrayLike | None,
        units: npt.ArrayLike | None,
    ) -> tuple[Inputs, _Cases]:
        same_rows(label_counts=label_counts, disagreement_probs=disagreement_probs)
        data = check_inputs(label_counts, class_probs, sample_weight, units)
        size, n_classes = data.counts.shape
        if n_classes != self.n_classes:
            raise ValueError(f"label_counts and class_probs must both be (N, {self.n_classes}), got (N, {n_classes})")
        phi = gini(data.probs) if disagreement_probs is None else disagreement_probs
        dpe = as_vector(phi, size, "disagreement_probs", 0.0, 1.0)
        weight = np.ones(size) if data.weight is None else data.weight
        return data, _Cases(data.counts, data.probs, data.n_labels, dpe, weight, np.zeros(size, dtype=np.intp))

    def _add(self, cases: _Cases) -> None:
        # larger chunks of many units: each touches the sums of all
        size, entries = len(cases.counts), SUMMED if self.n_units == 1 else 8 * SUMMED
        step = max(1, entries // len(self.slots["single"]))
        self.n_cases += size
        self.n_labels += int(cases.n_labels.sum())
        for start in range(0, size, step):
            part = cases.take(slice(start, start + step))
            for table, used in (("single", part.n_labels == 1), ("several", part.n_labels >= 2)):
                if used.any():
                    self._add_labelled(table, part if used.all() else part.take(np.flatnonzero(used)))

    def _add_labelled(self, table: str, cases: _Cases) -> None:
        freqs, weight, several = class_frequencies(cases.counts, cases.n_labels), cases.weight, table == "several"
        gap = self._add_table(table, cases, freqs, cases.probs).gap
        terms = case_terms(freqs, cases.probs, gap, cases.n_labels, cases.dpe)
        if several:
            self._add_table("disagreement", cases, terms["disagreement"][:, None], cases.dpe[:, None])
        for name, order in MEANS.items():
            if order == 1 or several:
                self.sums[name] += self._by_unit(cases, weight * terms[name])
        for order in ORDERS if several else (1,):
            enough = (cases.n_labels >= order).astype(np.float64)
            self.used[order] += self._by_unit(cases, enough).astype(np.int64)
            self.weight[order] += self._by_unit(cases, weight * enough)
            self.weight_sq[order] += self._by_unit(cases, weight**2 * enough)

    def _by_unit(self, cases: _Cases, values: FloatArray) -> FloatArray:
        return sums_by_slot(cases.unit, values, self.n_units)

    def _add_table(self, table: str, cases: _Cases, freqs: FloatArray, probs: FloatArray) -> Batch:
        slots = self.slots[table]
        index = _UnitBinIndex(slots.edges, slots.first, slots.uniform, cases.unit, self.n_units)
        batch = Batch(freqs, probs, cases.weight, index, np.arange(len(freqs)), alone=True)
        self.tables[table] = self.tables[table] + batch.sums()
        return batch

    def _merge(self, other: "UnitSums") -> None:
        self.n_cases += other.n_cases
        self.n_labels += other.n_labels
        both = ({**sums._columns(), "tables": sums.tables}.values() for sums in (self, other))
        for mine, others in zip(*both, strict=True):
            mine |= {key: mine[key] + values for key, values in others.items()}

    def _columns(self) -> dict[str, dict[Any, Any]]:
        return {"used": self.used, "weight": self.weight, "weight_sq": self.weight_sq, "sums": self.sums}


def table_of(sums: UnitSums, bins: Bins, order: int) -> BinSums:
    """Sums of the bins of the cases with so many labels."""
    first, *others = (sums.tables[name] for name in TABLES_OF[bins, order])
    return sum(others, start=first)


def weights_differ(table: BinSums) -> bool:
    """Whether the cases of a table weigh differently."""
    n, weight, square = float(table.cases.sum()), float(table.weight.sum()), float(table.weight_sq.sum())
    return square * n > weight**2 * (1 + 1e-12)


class GroupSums(UnitSums):
    """Sums of G groups of patients, or of cases.

    With patients (``by_patient``) the pair form of CL pairs no two cases of a group; else it pairs all of them.

    >>> sums = GroupSums(2, n_bins=5, by_patient=True)
    >>> sums.add([[2, 1], [0, 3]], [[0.7, 0.3], [0.2, 0.8]], units=["p1", "p2"])
    >>> int(sums.used[2].sum())
    2
    """

    def __init__(self, n_classes: int, n_bins: int = 15, *, by_patient: bool, n_groups: int = N_GROUPS) -> None:
        if n_groups < 2:
            raise ValueError(f"n_groups must be at least 2, got {n_groups}")
        super().__init__(n_classes, n_bins, n_groups)
        self.by_patient = by_patient
        #: cases of which nobody knows whether the release was trained on them
        self.n_unknown = 0

    def add(
        self,
        label_counts: npt.ArrayLike,
        class_probs: npt.ArrayLike,
        disagreement_probs: npt.ArrayLike | None = None,
        sample_weight: npt.ArrayLike | None = None,
        *,
        units: npt.ArrayLike,
    ) -> None:
        """Add cases."""
        data, cases = self._check(label_counts, class_probs, disagreement_probs, sample_weight, units)
        numbers = group_numbers([] if data.cluster is None else data.cluster.tolist(), self.n_units)
        self._add(replace(cases, unit=numbers))

    def merge(self, other: "GroupSums") -> "GroupSums":
        """Add another's sums to these, and return these."""
        kinds = [(s.n_classes, s.n_bins, s.n_units, s.by_patient) for s in (self, other)]
        if kinds[0] != kinds[1]:
            names = "classes, bins, groups and whether cases come with patients"
            raise ValueError(f"cannot merge sums that differ in {names}: {kinds[1]} into {kinds[0]}")
        self._merge(other)
        self.n_unknown += other.n_unknown
        return self

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the sums as arrays by name, exactly."""
        kind = (
            self.n_classes,
            self.n_bins,
            self.n_units,
            int(self.by_patient),
            self.n_cases,
            self.n_labels,
            self.n_unknown,
        )
        arrays: dict[str, npt.NDArray[Any]] = {"kind": np.array(kind)}
        for name, column in self._columns().items():
            arrays |= {f"{name}/{key}": values for key, values in column.items()}
        for name, table in self.tables.items():
            arrays |= {f"tables/{name}/{f.name}": getattr(table, f.name) for f in fields(table)}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> "GroupSums":
        """Read back what ``to_arrays`` returned."""
        try:
            n_classes, n_bins, n_groups, by_patient, n_cases, n_labels, n_unknown = arrays["kind"].tolist()
            sums = cls(n_classes, n_bins, by_patient=bool(by_patient), n_groups=n_groups)
            sums.n_cases, sums.n_labels, sums.n_unknown = n_cases, n_labels, n_unknown
            for name, array in sums.to_arrays().items():
                if arrays[name].shape != array.shape or arrays[name].dtype != array.dtype:
                    raise ValueError(
                        f"{name} must be {array.dtype} {array.shape}, got {arrays[name].dtype} {arrays[name].shape}"
                    )
            for name, column in sums._columns().items():
                column |= {key: arrays[f"{name}/{key}"] for key in column}
            for name in TABLES:
                sums.tables[name] = BinSums(**{f.name: arrays[f"tables/{name}/{f.name}"] for f in fields(BinSums)})
        except (KeyError, TypeError) as exc:
            raise ValueError(f"not sums over groups: {exc!r}") from exc
        return sums


class Accumulator(UnitSums):
    """Values of every metric over cases, mergeable.

    With clusters the sums of every (cluster, bin) cell are kept as well, so memory grows with the cells seen.

    Args:
        n_classes: K.
        n_bins: equal-width bins of [0, 1].

    Examples:
        >>> from secondread import Accumulator
        >>> acc = Accumulator(2, n_bins=5)
        >>> acc.update([[2, 1], [0, 3]], [[0.7, 0.3], [0.2, 0.8]])
        >>> round(acc.compute()["L"], 4)
        0.2633
    """

    def __init__(self, n_classes: int, n_bins: int = 15) -> None:
        super().__init__(n_classes, n_bins, 1)
        #: names of the classes, in their order in the sums, once tables have named them
        self.classes: list[str] | None = None
        #: None until the first update decides whether cases come with clusters
        self.cells: dict[str, NamedCells] | None = None
        # names of the clusters of the cases that are being added
        self._names: npt.NDArray[Any] = np.empty(0)

    def update(
        self,
        label_counts: npt.ArrayLike,
        class_probs: npt.ArrayLike,
        disagreement_probs: npt.ArrayLike | None = None,
        sample_weight: npt.ArrayLike | None = None,
        cluster: npt.ArrayLike | None = None,
    ) -> None:
        """Add cases; arguments as in ``evaluate``.

        Raises:
            ValueError: arrays or class names that do not match; nothing is added.
        """
        data, cases = self._check(label_counts, class_probs, disagreement_probs, sample_weight, cluster)
        classes, names = data.classes, data.cluster
        if self.n_cases and classes != self.classes:
            raise ValueError(f"the classes are {classes}, and those of the cases before are {self.classes}")
        if self.n_cases and (names is None) != (self.cells is None):
            raise ValueError("either all cases come with a cluster or none does")
        self.classes = classes
        if names is not None:
            self.cells = self.cells or {name: NamedCells(len(self.slots[name])) for name in TABLES}
            self._names, numbers = np.unique(names, return_inverse=True)
            cases = replace(cases, unit=numbers)
        self._add(cases)

    def _by_unit(self, cases: _Cases, values: FloatArray) -> FloatArray:
        return np.array([values.sum()])

    def _add_table(self, table: str, cases: _Cases, freqs: FloatArray, probs: FloatArray) -> Batch:
        # cells are numbered in memory of all slots for each cluster
        present, number = np.unique(cases.unit, return_inverse=True)
        batch = Batch(freqs, probs, cases.weight, self.slots[table], number, alone=self.cells is None)
        self.tables[table] = self.tables[table] + batch.sums()
        if self.cells is not None:
            self.cells[table].add(self._names[present], batch.cells())
        return batch

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
            self.cells = self.cells or {name: NamedCells(len(self.slots[name])) for name in TABLES}
            for name in TABLES:
                self.cells[name].merge(other.cells[name])
        self.classes = self.classes or other.classes
        self._merge(other)
        return self

    def compute(self, debias: Debias = "pair") -> dict[str, float]:
        """Values of every metric; NaN without usable cases."""
        return metric_values(_Totals(self), debias)

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as JSON values, exactly."""
        return {
            "version": _VERSION,
            "n_classes": self.n_classes,
            "n_bins": self.n_bins,
            "classes": self.classes,
            "n_cases": self.n_cases,
            "n_labels": self.n_labels,
            "used": [int(self.used[order][0]) for order in ORDERS],
            "weight": [_known(self.weight[order]) for order in ORDERS],
            "sums": {name: _known(values) for name, values in self.sums.items()},
            "tables": {name: to_document(table) for name, table in self.tables.items()},
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
            for order, used, weight in zip(ORDERS, document["used"], document["weight"], strict=True):
                acc.used[order][0], acc.weight[order][0] = used, np.nan if weight is None else weight
            for name in MEANS:
                total = document["sums"][name]
                acc.sums[name][0] = np.nan if total is None else total
            for name, empty in acc.tables.items():
                acc.tables[name] = table = from_document(BinSums, document["tables"][name])
                if any(getattr(table, f.name).shape != empty.cases.shape for f in fields(table)):
                    raise ValueError(f"the columns of table {name!r} must have shape {empty.cases.shape}")
            if document["cells"] is not None:
                acc.cells = {
                    name: NamedCells.from_dict(document["cells"][name], len(table.cases))
                    for name, table in acc.tables.items()
                }
        except (KeyError, TypeError) as exc:
            raise ValueError(f"not an accumulator document: {exc!r}") from exc
        return acc


class _Totals(BinnedSource):
    def __init__(self, sums: Accumulator) -> None:
        self.sums = sums
        self._tables: dict[tuple[Bins, int], Binned] = {}

    def sample(self, order: int) -> Sample:
        one, dropped = np.zeros(1, dtype=np.intp), self.sums.n_cases - int(self.sums.used[order][0])
        return Sample(one, self.sums.weight[order], None if self.sums.cells is None else one, 1, dropped, whole=True)

    def mean(self, name: str) -> Replicates:
        total, weight = float(self.sums.sums[name][0]), float(self.sums.weight[MEANS[name]][0])
        return Replicates(total / weight if weight > 0 else float("nan"), np.empty(0))

    def calibration(self, bins: Bins, order: int, debias: Debias) -> Replicates:
        return Replicates(self.binned(bins, order).value(debias), np.empty(0))

    def disagreements(self) -> float:
        return float(table_of(self.sums, "disagreement", 2).freq.sum())

    def constant_loss(self, bins: Bins, order: int) -> Replicates:
        weight = float(self.sums.weight[order][0])
        if weight <= 0:
            return Replicates(float("nan"), np.empty(0))
        rates = table_of(self.sums, bins, order).freq.reshape(-1, self.sums.n_bins).sum(axis=1) / weight
        loss = 1 - rates @ rates if bins == "classes" else rates[0] * (1 - rates[0])
        return Replicates(float(loss), np.empty(0))

    def binned(self, bins: Bins, order: int) -> Binned:
        if (bins, order) not in self._tables:
            self._tables[bins, order] = self._bin(bins, order)
        return self._tables[bins, order]

    def _bin(self, bins: Bins, order: int) -> Binned:
        table, names = table_of(self.sums, bins, order), TABLES_OF[bins, order]
        slots, cells = self.sums.slots[names[0]], []
        if self.sums.cells is not None:
            joined = NamedCells(len(slots))
            for name in names:
                joined.merge(self.sums.cells[name])
            cells = [joined.gathered()]
            by_slot = cells[0].sums(len(slots))
            table = replace(
                table, cells=by_slot.cells, cell_weight_sq=by_slot.cell_weight_sq, cell_diff_sq=by_slot.cell_diff_sq
            )
        return Binned(self.sample(order), slots, set(), table, cells, joins=weights_differ(table))


def _known(total: FloatArray) -> float | None:
    return None if np.isnan(total[0]) else float(total[0])
