"""Sources of every metric: cases in memory, and sums over groups.

The delete-a-group jackknife leaves out each of G groups in turn, with
Student's t of G − 1 degrees of freedom (Kott 2001, J. Off. Statist.
17:521).
"""

from collections.abc import Set
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from ml.metrics.accumulator import ORDERS, TABLES_OF, GroupSums, table_of, weights_differ
from ml.metrics.binned import Binned
from ml.metrics.cases import MEANS, Inputs, Sample, case_terms, largest_share
from ml.metrics.definitions import BinnedSource, Bins, Metric
from ml.metrics.jackknife import ReaderPart, Replicates, mean_replicates, ratio_replicates
from ml.metrics.reader_variance import CrossedEffects, Readings, SampleReaders
from ml.metrics.sums import BinIndex, ClusterBinSums, Debias, Strategy
from ml.util.arrays import FloatArray


@dataclass(frozen=True, eq=False)
class CasePass:
    """The n cases with enough labels, after one pass over them."""

    sample: Sample  # the cases
    binned: Binned  # label frequencies and probabilities by class
    terms: dict[str, FloatArray]  # (n,) of the means over cases
    class_terms: FloatArray  # (2, K) sums of w(μ̂ − z)² and wμ̂(1 − μ̂)/(n − 1)


class ArraySource(BinnedSource):
    """Cases in memory."""

    def __init__(
        self,
        first: Inputs,
        second: Inputs,
        dpe: FloatArray,
        forms: Set[Debias],
        *,
        classes_in_bins: bool = True,
        n_bins: int = 15,
        strategy: Strategy | FloatArray = "uniform",
        joining: bool = False,
        readings: Readings | None = None,
    ) -> None:
        self.first, self.second, self.dpe, self.forms = first, second, dpe, forms
        self.n_bins, self.strategy, self.joining, self.classes_in_bins = n_bins, strategy, joining, classes_in_bins
        self.readings = None if readings is None else readings.check(*second.counts.shape)
        self._readers: dict[int, SampleReaders | None] = {}

    @cached_property
    def labelled(self) -> CasePass:
        """Cases with a label."""
        return self._pass(self.first, 1, paired=self._alike)

    @cached_property
    def paired(self) -> CasePass:
        """Cases with two labels; those with one where every case has two."""
        return self.labelled if self._alike else self._pass(self.second, 2, paired=True)

    @cached_property
    def _alike(self) -> bool:
        first, second = self.first, self.second
        same = second.counts is first.counts and second.weight is first.weight
        return same and not bool((first.n_labels == 1).any())

    def _pass(self, data: Inputs, order: int, *, paired: bool) -> CasePass:
        sample = data.sample(order)
        # uniform bins need no probabilities, which may be a copy
        uniform = not self.classes_in_bins or (isinstance(self.strategy, str) and self.strategy == "uniform")
        slots = BinIndex.of(data.probs[:0] if uniform else sample.take(data.probs), self.n_bins, self.strategy)
        binned = Binned.empty(sample, slots, self.forms, joining=self.joining)
        parts, class_terms = [], np.zeros((2, data.probs.shape[1]))
        for part in binned.chunks():
            rows, weight = part if sample.whole else sample.rows[part], sample.weight[part]
            probs, n_labels, freqs = data.probs[rows], data.n_labels[rows], data.frequencies(rows)
            gap = binned.add(part, freqs, probs).gap if self.classes_in_bins else freqs - probs
            if paired:
                class_terms[0] += weight @ gap**2
                class_terms[1] += (weight / np.maximum(n_labels - 1, 1)) @ (freqs * (1 - freqs))
            parts.append(case_terms(freqs, probs, gap, n_labels, self.dpe[rows]))
        none: FloatArray = np.empty(0)
        terms = {name: np.concatenate([none, *(part[name] for part in parts)]) for name in (*MEANS, "disagreement")}
        return CasePass(sample, binned, terms, class_terms)

    @cached_property
    def _many(self) -> Sample:
        return self.second.sample(3)

    @cached_property
    def disagreement(self) -> Binned:
        """Observed disagreement and its probability in bins."""
        sample, observed = self.paired.sample, self.paired.terms["disagreement"][:, None]
        predicted = sample.take(self.dpe)[:, None]
        return Binned.of(observed, predicted, sample, self.n_bins, self.strategy, self.forms, joining=self.joining)

    def sample(self, order: int) -> Sample:
        """The cases with so many labels."""
        return self._many if order == 3 else (self.labelled if order == 1 else self.paired).sample

    def disagreements(self) -> float:
        """Σφ̂ over the cases with two labels."""
        return float(self.paired.terms["disagreement"].sum())

    def terms(self, name: str, order: int) -> FloatArray:
        """Terms (n,) of a mean of the cases with so many labels."""
        cases = self.labelled if order == 1 else self.paired
        # cases with three labels stand among those with two in the same order
        return cases.terms[name][self.second.n_labels[cases.sample.rows] >= 3] if order == 3 else cases.terms[name]

    def mean(self, name: str) -> Replicates:
        """A mean among ``MEANS``."""
        return mean_replicates(self.terms(name, MEANS[name]), self.sample(MEANS[name]))

    def binned(self, bins: Bins, order: int) -> Binned:
        """Bins of the cases with so many labels."""
        if bins == "disagreement":
            return self.disagreement
        if not self.classes_in_bins:  # empty bins would pass for CL = 0
            raise ValueError("the class probabilities were not put into bins")
        return (self.labelled if order == 1 else self.paired).binned

    def readers_of(self, order: int) -> SampleReaders | None:
        """Readings of cases; None if too few read."""
        if self.readings is not None and order not in self._readers:
            data, first = self.first if order == 1 else self.second, order == 1
            crossed = CrossedEffects.of(self.readings, self.sample(order), len(data.counts), first=first)
            self._readers[order] = None if crossed is None else SampleReaders(crossed, data, self.dpe, order)
        return self._readers.get(order)

    def readers(self, metric: Metric, debias: Debias, replicates: Replicates) -> ReaderPart | None:
        """What readers add to the error of a metric in a form."""
        readers = self.readers_of(metric.order)
        binned = None if metric.bins is None or metric.skill else self.binned(metric.bins, metric.order)
        return None if readers is None else readers.part(metric, debias, replicates, binned)


@dataclass(frozen=True)
class _Groups(Sample):
    n: int
    cases_ess: float  # effective number of cases
    cases_weight: float  # largest mean weight of a group's cases

    @property
    def ess(self) -> float:
        return self.cases_ess

    @property
    def largest_weight(self) -> float:
        return self.cases_weight

    heaviest = largest_weight

    @property
    def effective_clusters(self) -> float:
        return self.cases_ess if self.cluster is None else super().effective_clusters


class GroupSource(BinnedSource):
    """Replicates of ``GroupSums``, a group left out of each."""

    def __init__(self, first: GroupSums, second: GroupSums, debias: Debias) -> None:
        self._sums = {1: first, 2: second, 3: second}
        self._debias = debias
        self._present = {order: np.flatnonzero(self._sums[order].used[order]) for order in ORDERS}
        self._samples = {order: self._sample(order) for order in ORDERS}
        self._tables: dict[tuple[Bins, int], Binned] = {}

    def _sample(self, order: int) -> _Groups:
        here, sums = self._present[order], self._sums[order]
        weight, square = sums.weight[order][here], sums.weight_sq[order][here]
        n, total = int(sums.used[order].sum()), float(square.sum())
        rows = np.arange(here.size)
        return _Groups(
            rows,
            weight,
            rows if sums.by_patient else None,
            here.size,
            sums.n_cases - n,
            whole=True,
            n=n,
            cases_ess=float(weight.sum()) ** 2 / total if total > 0 else 0.0,
            cases_weight=largest_share(square, weight),
        )

    def sample(self, order: int) -> _Groups:
        """Groups that have a case with so many labels."""
        return self._samples[order]

    def mean(self, name: str) -> Replicates:
        """A mean among ``MEANS``."""
        order = MEANS[name]
        removed = self._sums[order].sums[name][self._present[order]]
        return ratio_replicates(float(removed.sum()), removed, self._samples[order])

    def binned(self, bins: Bins, order: int) -> Binned:
        """Bins of the cases with so many labels."""
        if (bins, order) not in self._tables:
            self._tables[bins, order] = self._bin(bins, order)
        return self._tables[bins, order]

    def disagreements(self) -> float:
        """Σφ̂ over the cases with two labels, those of a group and bin weighted alike."""
        table = table_of(self._sums[2], "disagreement", 2)
        return float((table.cases * table.freq / np.where(table.weight > 0, table.weight, 1.0)).sum())

    def _bin(self, bins: Bins, order: int) -> Binned:
        sums, sample, table = self._sums[order], self._samples[order], table_of(self._sums[order], bins, order)
        slots = sums.slots[TABLES_OF[bins, order][0]]
        grid = {f.name: getattr(table, f.name).reshape(sums.n_units, -1)[self._present[order]] for f in fields(table)}
        group, slot = np.nonzero(grid["cases"])
        column = {name: values[group, slot] for name, values in grid.items()}
        cells = ClusterBinSums(
            slot.astype(np.int32),
            group.astype(np.int32),
            column["cases"].astype(np.int32),
            *(column[name] for name in ("weight", "freq", "diff", "weight_sq", "freq_sq")),
        )
        if not sums.by_patient:  # cases may pair with any other
            squares = {f"pair_{name}": column[f"cell_{name}"] for name in ("weight_sq", "diff_sq")}
            cells = replace(cells, **squares)
        return Binned(
            sample,
            slots,
            {self._debias, "none"},
            cells.sums(len(slots)),
            [cells] if slot.size else [],
            joins=weights_differ(table),
        )
