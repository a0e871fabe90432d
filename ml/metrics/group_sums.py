"""Mergeable sums over groups of patients for every metric and interval: memory O(G · K · bins).

Cases are too many to keep, and the jackknife needs what the value would be without each patient. Groups of patients
stand for them: a patient's cells are all in one group, so that what belongs together is left out together.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ml.dataframes import same_rows
from ml.distributions.families import gini
from ml.metrics.accumulator import MEANS, TABLES, values_of_cases
from ml.metrics.binning import BinIndex, BinSums
from ml.metrics.cluster_bin_sums import Batch
from ml.metrics.histograms import CaseTerms, class_frequencies
from ml.metrics.inputs import check_clusters, check_weights
from ml.util.arrays import FloatArray, IntArray, as_class_probs, as_label_counts, as_vector

#: Groups of patients: a standard error by them varies by 1/√(2 · 399), 3.5 %, about the one by patients.
N_GROUPS = 400
#: Numbers of labels that estimators need.
ORDERS = (1, 2, 3)

# (case, slot) pairs worked on at once: more than an accumulator's, since each chunk touches the sums of all groups
_CHUNK = 2**22


def group_numbers(names: Iterable[object], n_groups: int = N_GROUPS) -> npt.NDArray[np.intp]:
    """Group (N,) of each patient or case, by a digest of its name: the same in every run, shard and program.

    >>> group_numbers(["p1", "p2", "p1"]).tolist()
    [385, 52, 385]
    """
    digests = (hashlib.blake2b(str(name).encode(), digest_size=8).digest() for name in names)
    return np.array([int.from_bytes(digest) % n_groups for digest in digests], dtype=np.intp)


@dataclass(frozen=True)
class _GroupBinIndex(BinIndex):
    """Bins of each group, numbered through: those of the first group, then those of the next."""

    group: npt.NDArray[np.intp]
    n_groups: int

    def __len__(self) -> int:
        return self.n_groups * super().__len__()

    def index(self, probs: FloatArray) -> npt.NDArray[np.intp]:
        """Slot (n, C) of each probability in its case's group."""
        return np.asarray(super().index(probs) + self.group[:, None] * super().__len__())


@dataclass(frozen=True)
class _Cases:
    """Checked cases: (n, K) label counts and probabilities, (n,) DPEs, weights and groups."""

    counts: IntArray
    probs: FloatArray
    dpe: FloatArray
    weight: FloatArray
    group: npt.NDArray[np.intp]

    def take(self, rows: slice | npt.NDArray[np.intp]) -> "_Cases":
        """Some of the cases."""
        return _Cases(*(getattr(self, f.name)[rows] for f in fields(self)))


class GroupSums:
    """Sums of G groups over the cases seen so far; merging two equals adding the cases of both.

    Args:
        n_classes: K.
        n_bins: equal-width bins of [0, 1].
        by_patient: whether cases of one group may be of one patient. The pair form of CL then pairs no two of them;
            else it pairs all cases, as without clusters.
        n_groups: G.

    >>> sums = GroupSums(2, n_bins=5, by_patient=True)
    >>> sums.add([[2, 1], [0, 3]], [[0.7, 0.3], [0.2, 0.8]], units=["p1", "p2"])
    >>> int(sums.used[2].sum())
    2
    """

    def __init__(self, n_classes: int, n_bins: int = 15, *, by_patient: bool, n_groups: int = N_GROUPS) -> None:
        if n_classes < 2 or n_groups < 2:
            raise ValueError(f"n_classes and n_groups must be at least 2, got {n_classes} and {n_groups}")
        self.n_classes, self.n_bins, self.n_groups, self.by_patient = n_classes, n_bins, n_groups, by_patient
        self.n_cases = 0
        self.n_labels = 0
        self.used = {order: np.zeros(n_groups, dtype=np.int64) for order in ORDERS}
        self.weight = {order: np.zeros(n_groups) for order in ORDERS}
        self.weight_sq = {order: np.zeros(n_groups) for order in ORDERS}
        self.sums = {name: np.zeros(n_groups) for name in MEANS}
        classes, disagreement = (BinIndex.of(np.empty((0, columns)), n_bins, "uniform") for columns in (n_classes, 1))
        self.slots = {"single": classes, "several": classes, "disagreement": disagreement}
        #: sums of (group, slot), numbered through
        self.tables = {name: BinSums.zeros(n_groups * len(slots)) for name, slots in self.slots.items()}

    def add(
        self,
        label_counts: npt.ArrayLike,
        class_probs: npt.ArrayLike,
        disagreement_probs: npt.ArrayLike | None = None,
        weight: npt.ArrayLike | None = None,
        *,
        units: npt.ArrayLike,
    ) -> None:
        """Add cases.

        Args:
            label_counts: (N, K) label histograms.
            class_probs: (N, K) class probability estimates.
            disagreement_probs: (N,) DPEs; 1 − Σf² where left out.
            weight: (N,) instance weights.
            units: (N,) patient of each case, or the case's own name; it decides the group.

        Raises:
            ValueError: shapes that do not match, or values out of range; nothing is added then.
        """
        same_rows(label_counts=label_counts, class_probs=class_probs, disagreement_probs=disagreement_probs)
        counts, probs = as_label_counts(label_counts), as_class_probs(class_probs)
        if counts.shape != probs.shape or counts.shape[1] != self.n_classes:
            shapes = f"label_counts {counts.shape} and class_probs {probs.shape}"
            raise ValueError(f"{shapes} must both be (N, {self.n_classes})")
        size, names, weights = len(counts), check_clusters(units, len(counts)), check_weights(weight, len(counts))
        dpe = gini(probs) if disagreement_probs is None else disagreement_probs
        cases = _Cases(
            counts,
            probs,
            as_vector(dpe, size, "disagreement_probs", 0.0, 1.0),
            np.ones(size) if weights is None else weights,
            group_numbers([] if names is None else names.tolist(), self.n_groups),
        )
        for part in self._chunks(size):
            self._add(cases.take(part))

    def _chunks(self, size: int) -> Iterator[slice]:
        step = max(1, _CHUNK // len(self.slots["single"]))
        return (slice(start, start + step) for start in range(0, size, step))

    def _add(self, cases: _Cases) -> None:
        totals = np.einsum("nk->n", cases.counts)
        self.n_cases += len(totals)
        self.n_labels += int(totals.sum())
        for table, used in (("single", totals == 1), ("several", totals >= 2)):
            if used.any():
                self._add_labelled(table, cases if used.all() else cases.take(np.flatnonzero(used)))

    def _add_labelled(self, table: str, cases: _Cases) -> None:
        """Add cases that all have one label, or all several."""
        freqs, weight = class_frequencies(cases.counts), cases.weight
        gap = self._add_table(table, cases, freqs, cases.probs).gap
        terms = CaseTerms.of(cases.counts, cases.probs, freqs, gap)
        if table == "several":
            self._add_table("disagreement", cases, terms.observed_disagreement[:, None], cases.dpe[:, None])
        for name, term in values_of_cases(terms, cases.dpe if table == "several" else None).items():
            self.sums[name] += self._by_group(cases, weight * term)
        for order in ORDERS if table == "several" else (1,):
            enough = (terms.n_labels >= order).astype(np.float64)
            self.used[order] += self._by_group(cases, enough).astype(np.int64)
            self.weight[order] += self._by_group(cases, weight * enough)
            self.weight_sq[order] += self._by_group(cases, weight**2 * enough)

    def _by_group(self, cases: _Cases, values: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(cases.group, values, self.n_groups), dtype=np.float64)

    def _add_table(self, table: str, cases: _Cases, freqs: FloatArray, probs: FloatArray) -> Batch:
        slots = self.slots[table]
        grouped = _GroupBinIndex(slots.edges, slots.first, slots.uniform, cases.group, self.n_groups)
        batch = Batch(freqs, probs, cases.weight, grouped, np.arange(len(freqs)), alone=True)
        self.tables[table] = self.tables[table] + batch.sums()
        return batch

    def merge(self, other: "GroupSums") -> "GroupSums":
        """Add another's sums to these, and return these.

        Raises:
            ValueError: other classes, bins or groups, or patients in only one of them.
        """
        kinds = [(s.n_classes, s.n_bins, s.n_groups, s.by_patient) for s in (self, other)]
        if kinds[0] != kinds[1]:
            names = "classes, bins, groups and whether cases come with patients"
            raise ValueError(f"cannot merge sums that differ in {names}: {kinds[1]} into {kinds[0]}")
        self.n_cases += other.n_cases
        self.n_labels += other.n_labels
        for order in ORDERS:
            self.used[order] += other.used[order]
            self.weight[order] += other.weight[order]
            self.weight_sq[order] += other.weight_sq[order]
        for name in MEANS:
            self.sums[name] += other.sums[name]
        for name in TABLES:
            self.tables[name] = self.tables[name] + other.tables[name]
        return self

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the sums as arrays by name; ``from_arrays`` reads them back to the last bit."""
        kind = (self.n_classes, self.n_bins, self.n_groups, int(self.by_patient), self.n_cases, self.n_labels)
        arrays: dict[str, npt.NDArray[Any]] = {"kind": np.array(kind)}
        for order in ORDERS:
            arrays |= {f"used/{order}": self.used[order], f"weight/{order}": self.weight[order]}
            arrays[f"weight_sq/{order}"] = self.weight_sq[order]
        arrays |= {f"sums/{name}": values for name, values in self.sums.items()}
        for name, table in self.tables.items():
            arrays |= {f"tables/{name}/{f.name}": getattr(table, f.name) for f in fields(table)}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> "GroupSums":
        """Read back what ``to_arrays`` returned.

        Raises:
            ValueError: an array is missing or has another shape.
        """
        try:
            n_classes, n_bins, n_groups, by_patient, n_cases, n_labels = arrays["kind"].tolist()
            sums = cls(n_classes, n_bins, by_patient=bool(by_patient), n_groups=n_groups)
            sums.n_cases, sums.n_labels = n_cases, n_labels
            for name, array in sums.to_arrays().items():
                if arrays[name].shape != array.shape or arrays[name].dtype != array.dtype:
                    raise ValueError(
                        f"{name} must be {array.dtype} {array.shape}, got {arrays[name].dtype} {arrays[name].shape}"
                    )
            for order in ORDERS:
                sums.used[order] = arrays[f"used/{order}"]
                sums.weight[order] = arrays[f"weight/{order}"]
                sums.weight_sq[order] = arrays[f"weight_sq/{order}"]
            sums.sums = {name: arrays[f"sums/{name}"] for name in MEANS}
            for name in TABLES:
                sums.tables[name] = BinSums(**{f.name: arrays[f"tables/{name}/{f.name}"] for f in fields(BinSums)})
        except (KeyError, TypeError) as exc:
            raise ValueError(f"not sums over groups: {exc!r}") from exc
        return sums
