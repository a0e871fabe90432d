"""Crossed reader and case effects: variance of an estimate over other readers of the same kind.

The intervals that leave out patients speak for the readers who read. For new readers the variance of an estimate is

    V = V_C + G σ²,    G = Σ_r p_r² − Σ_{r,c} (p_rc − p_r p_c)²,

V_C the variance by patients c, σ² that of what a reader adds to the terms of the estimate, p_rc the weight of reader
r's readings of patient c, p_r and p_c its sums. What readers add to the differences between patients is in V_C
already. σ² comes from the readers' weighted means m_r, with weights λ_r in sum one: with v_rc what patient c adds to
m_r and v̄_c = Σ_r λ_r v_rc,

    σ² = [Σ_r λ_r (m_r − m̄)² − Σ_r λ_r Σ_c (v_rc − v̄_c)²] / Σ_r λ_r (1 − λ_r)(1 − Σ_c s_rc²),    s_rc = p_rc / p_r:

products of different patients only, so that chance in the cases cancels, whether all readers read the same cases
(patients drop out of m_r − m̄) or each of them others. The λ_r are those of least variance, 1/(σ² + ν Σ_c s_rc²),
found by repeating it.

Terms of pairs of readers (EL, L_φ) are taken reader by reader: each mean over partners, who add their own part. G is
then that of a U-statistic of degree 2, p_r counting twice, and the denominator Σ_r λ_r |B_r − B̄|², B_r = e_r + the
shares of r's partners. All sums run over readings, cells of a reader and a patient, and pairs of readers who share a
case.

Sources: variance components of crossed cases and readers, Gallas 2006 (Acad. Radiol. 13:353) and Hillis 2007 (Stat.
Med. 26:596); degrees of freedom of a sum of variances, Cochran 1964 (Biometrics 20:191).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from ml.metrics.binning import sums_by_slot
from ml.metrics.intervals import NO_READERS, ReaderPart
from ml.metrics.jackknife import Sample
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

    M labels of N cases.

    Attributes:
        case: (M,) row of the case.
        annotator: (M,) number of who gave the label.
        label: (M,) its class number.
        first: (M,) whether metrics that need one label use it; None where they use all.
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

    def take(self, rows: npt.NDArray[np.intp], n_cases: int) -> "Readings":
        """Those of some cases, by their positions among the N; the cases are numbered anew."""
        place = np.full(n_cases, -1)
        place[rows] = np.arange(len(rows))
        kept = np.flatnonzero(place[self.case] >= 0)
        first = None if self.first is None else self.first[kept]
        return Readings(place[self.case[kept]], self.annotator[kept], self.label[kept], first)


@dataclass(frozen=True, eq=False)
class CrossedEffects:
    """Readings of the cases of a sample.

    Attributes:
        sample: n cases.
        case: (m,) position of each reading's case in the sample.
        label: (m,) class number.
        reader: (m,) 0..R−1.
        n_readers: R.
        weight: (m,) p of each reading, in sum one: the case's weight, shared by its readings.
    """

    sample: Sample
    case: npt.NDArray[np.intp]
    label: IntArray
    reader: npt.NDArray[np.intp]
    n_readers: int
    weight: FloatArray

    @classmethod
    def of(cls, readings: Readings, sample: Sample, n_cases: int, *, first: bool = False) -> "CrossedEffects | None":
        """Readings of a sample's cases.

        Args:
            readings: of N cases.
            sample: some of them.
            n_cases: N.
            first: only those that metrics which need one label use.

        Returns:
            None where fewer than three readers read, or fewer than three of them two patients while others read more
            than one: nothing is known of new readers.
        """
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
        """Shares of partners: Σ of the weight of r's readings by other readers, of r itself, and Σ of squared shares.

        None where there are too many pairs; readers are then taken to meet at random.
        """
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
        """Readers' part of the variance of the weighted mean of terms (m,), one per reading.

        Args:
            terms: of a degree 2, the mean over the other readers of the case.
            degree: number of readers that a term of the estimate is about, 1 or 2.

        Returns:
            None where this cannot be told.
        """
        cells, weight = self.cells, self.weight
        if (cells.spread > 1 - _NOTHING).all():  # of one patient each: readers differ where patients do
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
        """G: how much of what readers add is not in the variance by patients."""
        cells = self.cells
        of_patient = sums_by_slot(cells.patient, cells.weight, int(cells.patient.max()) + 1)
        expected = cells.of_reader[cells.reader] * of_patient[cells.patient]
        squares = float((cells.of_reader**2).sum())
        within = float((cells.weight**2).sum() - 2 * cells.weight @ expected) + squares * float((of_patient**2).sum())
        return max(squares - within, 0.0)

    def _component(self, moved: FloatArray) -> tuple[FloatArray, float]:
        """Weights λ (R,) of readers and σ² of what each cell adds to its reader's mean."""
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
    """Readings of one reader and one patient together, C of them.

    Attributes:
        cell: (m,) of each reading.
        reader: (C,).
        patient: (C,).
        weight: (C,) p_rc.
        of_reader: (R,) p_r.
        spread: (R,) Σ_c s_rc², 1 of a reader of one patient.
    """

    cell: npt.NDArray[np.intp]
    reader: npt.NDArray[np.intp]
    patient: npt.NDArray[np.intp]
    weight: FloatArray
    of_reader: FloatArray
    spread: FloatArray
