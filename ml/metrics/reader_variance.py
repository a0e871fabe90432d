"""Intervals for new readers: crossed reader and case effects.

For new readers the variance of an estimate is

    V = V_C + G σ²,    G = Σ_r p_r² − Σ_{r,c} (p_rc − p_r p_c)²,

V_C the variance by patients c, σ² that of what a reader adds, p_rc
the weight of reader r's readings of patient c, p_r and p_c its sums.
With weights λ_r in sum one, v_rc what patient c adds to the mean m_r
of a reader, v̄_c = Σ_r λ_r v_rc and s_rc = p_rc / p_r,

    σ² = [Σ_r λ_r (m_r − m̄)² − Σ_r λ_r Σ_c (v_rc − v̄_c)²]
         / Σ_r λ_r (1 − λ_r)(1 − Σ_c s_rc²).

Terms of pairs of readers (EL, L_φ) are means over partners, who add
their own part: p_r counts twice, and the denominator is that of the
shares of partners. Other metrics (CL, DL, accuracy) are computed
without each reader in turn, less the variance within a reader's
readings of a patient, which V_C holds already.

Sources: Gallas 2006 (Acad. Radiol. 13:353); Hillis 2007 (Stat. Med.
26:596); degrees of freedom, Cochran 1964 (Biometrics 20:191).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from ml.distributions.families import gini
from ml.metrics.binned import Binned, contributions, usable_bins
from ml.metrics.cases import (
    MEANS,
    Inputs,
    Sample,
    accuracy_terms,
    class_frequencies,
    epistemic_terms,
    observed_disagreement,
)
from ml.metrics.definitions import Bins, Metric
from ml.metrics.jackknife import NO_READERS, ReaderPart, Replicates
from ml.metrics.sums import BinIndex, BinSums, Debias, sums_by_slot
from ml.util.arrays import EqualByValue, FloatArray, IntArray

#: Readers with readings of two patients or more, below which nothing is said about others.
FEWEST = 3
# pairs of readings of a case, over all cases, that are worked out one by one
_PAIRS = 3 * 10**7
# times that the weights of readers are improved
_STEPS = 4
_NOTHING = 1e-12


@dataclass(frozen=True, eq=False)
class Readings(EqualByValue):
    """M labels of N cases with their annotators.

    Attributes:
        case: (M,) row of the case.
        annotator: (M,) number of who gave the label.
        label: (M,) its class number.
        first: (M,) whether metrics that need one label use it; None if they use all.
    """

    case: IntArray
    annotator: IntArray
    label: IntArray
    first: npt.NDArray[np.bool_] | None = None

    def check(self, n_cases: int, n_classes: int) -> "Readings":
        """Check the numbers.

        Raises:
            ValueError: columns of different lengths, or a case or class that does not exist.
        """
        length = len(self.case)
        for name in ("annotator", "label", "first"):
            column = getattr(self, name)
            if column is not None and len(column) != length:
                raise ValueError(f"readings.{name} must have shape ({length},), got ({len(column)},)")
        for name, column, size in (("case", self.case, n_cases), ("label", self.label, n_classes)):
            if length and not (column.min() >= 0 and column.max() < size):
                raise ValueError(f"readings.{name} must lie in 0 to {size - 1}")
        return self


@dataclass(frozen=True, eq=False)
class CrossedEffects:
    """Readings of the cases of a sample."""

    sample: Sample  # n cases
    case: npt.NDArray[np.intp]  # (m,) position of each reading's case in the sample
    label: IntArray  # (m,) class number
    reader: npt.NDArray[np.intp]  # (m,) 0..R−1
    n_readers: int  # R
    weight: FloatArray  # (m,) p of each reading, in sum one

    @classmethod
    def of(cls, readings: Readings, sample: Sample, n_cases: int, *, first: bool = False) -> "CrossedEffects | None":
        """Readings of a sample; None if too few read."""
        place = np.full(n_cases, -1)
        place[sample.rows[sample.weight > 0]] = np.flatnonzero(sample.weight > 0)
        used = place[readings.case] >= 0
        if first and readings.first is not None:
            used &= readings.first
        case = place[readings.case[used]]
        names, reader = np.unique(readings.annotator[used], return_inverse=True)
        if names.size < FEWEST:
            return None
        weight = sample.weight[case] / np.bincount(case, minlength=sample.rows.size)[case]
        crossed = cls(sample, case, readings.label[used], reader, names.size, weight / float(weight.sum()))
        several = int((crossed.cells.spread < 1 - _NOTHING).sum())
        return None if 0 < several < FEWEST else crossed

    @cached_property
    def cells(self) -> "ReaderPatientCells":
        """Readings of one reader and one patient together."""
        sample = self.sample
        patient = self.case if sample.cluster is None else sample.cluster[self.case]
        keys, cell = np.unique(patient * self.n_readers + self.reader, return_inverse=True)
        reader, patient = keys % self.n_readers, keys // self.n_readers
        weight = sums_by_slot(cell, self.weight, keys.size)
        of_reader = sums_by_slot(reader, weight, self.n_readers)
        share = weight / of_reader[reader]
        spread = sums_by_slot(reader, share**2, self.n_readers)
        return ReaderPatientCells(cell, reader, patient, weight, of_reader, spread)

    @cached_property
    def partners(self) -> tuple[csr_array, FloatArray, FloatArray] | None:
        """Shares of partners; None if pairs are too many."""
        n_labels = np.bincount(self.case, minlength=self.sample.rows.size)
        if float((n_labels.astype(np.float64) ** 2).sum()) > _PAIRS:
            return None
        shape = (self.sample.rows.size, self.n_readers)
        per_partner = self.weight / np.maximum(n_labels[self.case] - 1, 1)
        met = csr_array((np.ones(self.case.size), (self.case, self.reader)), shape=shape)
        weighed = csr_array((per_partner, (self.case, self.reader)), shape=shape)
        shared = csr_array(weighed.T @ met)
        shares = csr_array(shared.multiply(1 / self.cells.of_reader[:, None]))
        own = shares.diagonal()
        squares = np.asarray(shares.multiply(shares).sum(axis=1)).ravel() - own**2
        return shares, own, squares

    def part(self, terms: FloatArray, degree: int = 1) -> ReaderPart | None:
        """Readers' part of the variance of a mean (m,)."""
        cells, weight = self.cells, self.weight
        if (cells.spread > 1 - _NOTHING).all():  # of one patient each
            return NO_READERS
        centred = terms - float(weight @ terms)
        moved = np.bincount(cells.cell, weight * centred, cells.reader.size) / cells.of_reader[cells.reader]
        shares, variance = self._component(moved)
        usable = 1 - cells.spread
        if degree == 2:
            variance_share = float((shares * (1 - shares) * usable).sum())
            of_pairs = self._distances(shares) * float(shares @ usable)
            if of_pairs <= _NOTHING:
                return None
            variance *= variance_share / of_pairs
        return ReaderPart(degree**2 * self._exposure() * variance, max(1 / float((shares**2).sum()) - degree, 1.0))

    def _exposure(self) -> float:
        cells = self.cells
        of_patient = sums_by_slot(cells.patient, cells.weight, int(cells.patient.max()) + 1)
        expected = cells.of_reader[cells.reader] * of_patient[cells.patient]
        squares = float((cells.of_reader**2).sum())
        within = float((cells.weight**2).sum() - 2 * cells.weight @ expected) + squares * float((of_patient**2).sum())
        return max(squares - within, 0.0)

    def _component(self, moved: FloatArray) -> tuple[FloatArray, float]:
        """Weights λ (R,) of readers and their variance σ²."""
        cells = self.cells
        usable = 1 - cells.spread
        means = np.bincount(cells.reader, moved, self.n_readers)
        squares = np.bincount(cells.reader, moved**2, self.n_readers)
        variance, noise, shares = 0.0, 1.0, usable
        for _ in range(_STEPS):
            shares = usable / (variance + noise * cells.spread)
            shares = shares / shares.sum()
            by_patient = np.bincount(cells.patient, shares[cells.reader] * moved)
            by_chance = float(shares @ squares - (by_patient**2).sum())
            between = float(shares @ (means - shares @ means) ** 2)
            apart = shares * (1 - shares)
            variance = max(0.0, between - by_chance) / float(apart @ usable)
            noise = max(by_chance / max(float(apart @ cells.spread), _NOTHING) - variance, 1e-9 * variance)
            if noise <= 0:
                break
        return shares, variance

    def _distances(self, shares: FloatArray) -> float:
        """Σ_r λ_r |B_r − B̄|² for weights λ (R,)."""
        if self.partners is None:
            n = self.n_readers
            return float((shares * (1 - shares)).sum()) * ((n - 2) / (n - 1)) ** 2
        table, own, squares = self.partners
        mean = shares + shares @ table - shares * own
        return float(shares @ (1 + squares) - (mean**2).sum())


@dataclass(frozen=True, eq=False)
class ReaderPatientCells:
    """Readings of one reader and one patient together, C of them."""

    cell: npt.NDArray[np.intp]  # (m,) of each reading
    reader: npt.NDArray[np.intp]  # (C,)
    patient: npt.NDArray[np.intp]  # (C,)
    weight: FloatArray  # (C,) p_rc
    of_reader: FloatArray  # (R,) p_r
    spread: FloatArray  # (R,) Σ_c s_rc², 1 of a reader of one patient


def terms_of_readings(
    crossed: CrossedEffects, counts: IntArray, probs: FloatArray, dpe: FloatArray
) -> dict[str, FloatArray]:
    """Terms (m,) of the readings of n cases; those of pairs are means over the case's other readings."""
    case, label, weight = crossed.case, crossed.label, crossed.weight
    totals, squares = np.einsum("nk->n", counts), np.einsum("nk,nk->n", probs, probs)
    n = totals[case].astype(np.float64)
    others = np.maximum(n - 1, 1)
    leading = probs == probs.max(axis=1, keepdims=True)
    frequencies = np.bincount(label, weight, counts.shape[1]).astype(np.float64)
    loss = 1 - 2 * probs[case, label] + squares[case]  # Σ_k (y_k − z_k)²
    rest = counts - totals[:, None] * probs
    together = rest[case, label] - np.einsum("nk,nk->n", probs, rest)[case]  # Σ_k (y_k − z_k)(y′_k − z_k) over all y′
    differs = (n - counts[case, label]) / others
    rate = float(weight @ differs)

    def statistic(phi: FloatArray) -> FloatArray:
        """Terms (d − φ)², mean over other readings."""
        return np.asarray(differs * (1 - 2 * phi[case]) + phi[case] ** 2)

    def skill(loss: FloatArray, constant: float, slope: FloatArray) -> FloatArray:
        """Linearised terms of 1 − loss / constant."""
        if constant <= 0:
            return np.zeros(weight.size)
        return np.asarray(-loss / constant + float(weight @ loss) / constant**2 * slope)

    of_pairs = statistic(dpe)
    return {
        "agreement": leading[case, label] / leading.sum(axis=1)[case],
        "L": loss,
        "skill": skill(
            loss, float(1 - frequencies @ frequencies), np.asarray(-2.0 * frequencies[label], dtype=np.float64)
        ),
        "EL": (together - loss) / others,
        "EL_plugin": (together - loss / 2) / n,
        "L_D": of_pairs,
        "skill_D": skill(of_pairs, rate * (1 - rate), (1 - 2 * rate) * differs),
        "L_D_minus_max": of_pairs - statistic(1 - probs.max(axis=1)),
        "L_D_minus_gini": of_pairs - statistic(gini(probs)),
    }


#: Readers that are left out one by one; of more, this many groups of them.
GROUPS = 50
# entries (cases × groups that read them) that are worked on at once
_CHUNK = 2**16
#: Values (e, …) of label counts (e, K) of cases at positions (e,) of a sample.
OfLabels = Callable[[IntArray, npt.NDArray[np.intp]], FloatArray]


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Labels of a sample's cases without each group of readers."""

    crossed: CrossedEffects  # the readings
    counts: IntArray  # (n, K) labels of the sample's cases
    probs: FloatArray  # (n, K) class probability estimates
    n_groups: int  # G, of readers
    case: npt.NDArray[np.intp]  # (E,) position, once for each group
    group: npt.NDArray[np.intp]  # (E,) that is left out
    left: IntArray  # (E, K) labels that remain

    @classmethod
    def of(cls, crossed: CrossedEffects, counts: IntArray, probs: FloatArray) -> "LeftOut":
        """Leave out readers, or groups of them."""
        n_groups = min(crossed.n_readers, GROUPS)
        group = np.empty(crossed.n_readers, dtype=np.intp)
        group[np.argsort(-crossed.cells.of_reader, kind="stable")] = np.arange(crossed.n_readers) % n_groups
        keys, entry = np.unique(crossed.case * n_groups + group[crossed.reader], return_inverse=True)
        case = keys // n_groups
        left = counts[case]
        np.subtract.at(left, (entry, crossed.label), 1)
        return cls(crossed, counts, probs, n_groups, case, keys % n_groups, left)

    def means(self, terms: OfLabels, needed: int) -> FloatArray:
        """Weighted means (G, …) over cases without each group."""

        def columns(counts: IntArray, case: npt.NDArray[np.intp]) -> FloatArray:
            values = terms(counts, case)
            return np.column_stack([np.ones(len(values)), values])

        sums = self.sums(columns, needed)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(sums[:, 1:] / sums[:, :1])

    def sums(self, columns: OfLabels, needed: int) -> FloatArray:
        """Weighted sums (G, P) over cases without each group."""
        weight = self.crossed.sample.weight
        before, _ = _with_labels(columns, needed, self.counts, np.arange(len(self.counts)))
        after, _ = _with_labels(columns, needed, self.left, self.case)
        moved = weight[self.case, None] * (after - before[self.case])
        by_group = [np.bincount(self.group, column, self.n_groups) for column in moved.T]
        return np.asarray(weight @ before + np.stack(by_group, axis=1))

    def bins(self, freqs: OfLabels, probs: FloatArray, needed: int, slots: BinIndex, sums: BinSums) -> BinSums:
        """Sums (G, S) of every bin without each group."""
        size, weight = len(slots), self.crossed.sample.weight
        moved, gone = np.zeros(self.n_groups * size), np.zeros(self.n_groups * size)
        for start in range(0, self.case.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            case, heavy = self.case[part], weight[self.case[part], None]
            before, _ = _with_labels(freqs, needed, self.counts[case], case)
            after, has = _with_labels(freqs, needed, self.left[part], case)
            gap = probs[case]
            slot = (self.group[part, None] * size + slots.index(gap)).ravel()
            moved += np.bincount(slot, (heavy * ((after - gap) * has[:, None] - (before - gap))).ravel(), moved.size)
            gone += np.bincount(slot, np.broadcast_to(heavy * (1 - has[:, None]), gap.shape).ravel(), gone.size)
        mass = np.maximum(sums.weight - gone.reshape(-1, size), 0.0)
        share = (mass / np.where(sums.weight > 0, sums.weight, 1.0)) ** 2
        return replace(
            sums,
            weight=mass,
            diff=sums.diff + moved.reshape(-1, size),
            cell_weight_sq=share * sums.cell_weight_sq,
            cell_diff_sq=share * sums.cell_diff_sq,
        )

    def part(self, without: FloatArray, variance: float) -> ReaderPart | None:
        """Readers' part of the variance of an estimate."""
        if not np.isfinite(without).all():
            return None
        cells, count = self.crossed.cells, self.n_groups
        of_patient = np.bincount(cells.patient, cells.weight)
        twice = float((cells.weight**2).sum() / (of_patient**2).sum()) * variance
        spread = (count - 1) / count * float(((without - without.mean()) ** 2).sum())
        # readers of one patient each are told from patients by nothing
        return ReaderPart(max(0.0, spread - twice), max(count - 2.0, 1.0)) if spread > 0 else NO_READERS


def calibration_of(bins: BinSums, n_columns: int, debias: Debias) -> FloatArray:
    """CL (G,) from sums (G, S) of bins."""
    form: Debias = "none" if debias == "none" else "pair"
    total = np.where(usable_bins(bins, form).any(axis=1), bins.weight.sum(axis=1) / n_columns, np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(contributions(bins, form).sum(axis=1) / total)


def _with_labels(
    values: OfLabels, needed: int, counts: IntArray, case: npt.NDArray[np.intp]
) -> tuple[FloatArray, FloatArray]:
    enough = np.einsum("nk->n", counts) >= needed
    rows = np.flatnonzero(enough)
    some = values(counts[rows], case[rows])
    result = np.zeros((len(counts), *some.shape[1:]))
    result[rows] = some
    return result, enough.astype(np.float64)


#: Terms of the means that no sum over readings gives, by label counts and probabilities.
_OF_COUNTS: dict[str, Callable[[IntArray, FloatArray], FloatArray]] = {
    "EL": lambda counts, probs: epistemic_terms(counts, probs)[:, 1],
    "EL_plugin": lambda counts, probs: epistemic_terms(counts, probs)[:, 0],
    "accuracy": accuracy_terms,
}
#: What falls into the bins, by label counts.
_OF_LABELS: dict[Bins, Callable[[IntArray], FloatArray]] = {
    "classes": class_frequencies,
    "disagreement": lambda counts: observed_disagreement(counts)[:, None],
}


class SampleReaders:
    """Readings of the cases with so many labels."""

    def __init__(self, crossed: CrossedEffects, data: Inputs, dpe: FloatArray, order: int) -> None:
        sample = crossed.sample
        self.crossed, self.order, self.dpe = crossed, order, sample.take(dpe)
        self.counts, self.probs = sample.take(data.counts), sample.take(data.probs)
        self.terms = terms_of_readings(crossed, self.counts, self.probs, self.dpe)
        self._bins: dict[Bins, BinSums] = {}

    @cached_property
    def left_out(self) -> LeftOut:
        """Labels without each reader."""
        return LeftOut.of(self.crossed, self.counts, self.probs)

    def part(self, metric: Metric, debias: Debias, replicates: Replicates, binned: Binned | None) -> ReaderPart | None:
        """Readers' part of the error of a metric with bins or without; None if unknown."""
        name, error = metric.mean_name(debias), replicates.standard_error()
        if metric.skill:
            return self.crossed.part(self.terms[metric.name], metric.order)
        if name in self.terms and binned is None:
            return self.crossed.part(self.terms[name], MEANS[name])
        if error is None:
            return None
        without = np.float64(0.0) if name is None else self._mean_without(name)
        if binned is not None:
            calibration = self.calibration_without(binned, metric.own_bins, debias)
            without = calibration if name is None else without - calibration
        return self.left_out.part(np.asarray(without), error**2)

    def _mean_without(self, name: str) -> FloatArray:
        left = self.left_out
        return np.asarray(left.means(lambda counts, case: _OF_COUNTS[name](counts, left.probs[case]), self.order)[:, 0])

    def calibration_without(self, binned: Binned, bins: Bins, debias: Debias) -> FloatArray:
        """CL (G,) without each reader."""
        if bins not in self._bins:
            probs, of_labels = self.probs if bins == "classes" else self.dpe[:, None], _OF_LABELS[bins]
            given = (probs, self.order, binned.slots, binned.bins)
            self._bins[bins] = self.left_out.bins(lambda counts, case: of_labels(counts), *given)
        return calibration_of(self._bins[bins], len(binned.slots.edges), debias)
