"""Leave-one-reader-out values of metrics that are not means over readings.

Where a reader is left out, a case keeps its other labels; one that has too few of them left is left out as well. The
delete-one variance of that contains chance in the cases that a reader read; the part of the variance by patients that
is within one reader's readings of a patient is taken off, so that it does not count twice. Of many readers groups are
left out, each reader in one of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ml.metrics.binning import BinIndex, BinSums, Debias, contributions, usable_bins
from ml.metrics.crossed_effects import CrossedEffects
from ml.metrics.intervals import NO_READERS, ReaderPart
from ml.util.arrays import FloatArray, IntArray

#: Readers that are left out one by one; of more, this many groups of them.
GROUPS = 50
# entries (cases × groups that read them) that are worked on at once
_CHUNK = 2**16

#: Values (e, …) of label counts (e, K) of cases at positions (e,) of a sample.
OfLabels = Callable[[IntArray, npt.NDArray[np.intp]], FloatArray]


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Labels of a sample's cases without those of one reader, or of a group where there are many.

    Attributes:
        crossed: the readings.
        counts: (n, K) labels of the sample's cases.
        probs: (n, K) class probability estimates.
        n_groups: G, of readers.
        case: (E,) position in the sample, once for each group that read it.
        group: (E,) that is left out.
        left: (E, K) labels that remain.
    """

    crossed: CrossedEffects
    counts: IntArray
    probs: FloatArray
    n_groups: int
    case: npt.NDArray[np.intp]
    group: npt.NDArray[np.intp]
    left: IntArray

    @classmethod
    def of(cls, crossed: CrossedEffects, counts: IntArray, probs: FloatArray) -> "LeftOut":
        """Leave out readers of cases with labels, probabilities (n, K); groups get those with most labels first."""
        n_groups = min(crossed.n_readers, GROUPS)
        group = np.empty(crossed.n_readers, dtype=np.intp)
        group[np.argsort(-crossed.cells.of_reader, kind="stable")] = np.arange(crossed.n_readers) % n_groups
        keys, entry = np.unique(crossed.case * n_groups + group[crossed.reader], return_inverse=True)
        case = keys // n_groups
        left = counts[case]
        np.subtract.at(left, (entry, crossed.label), 1)
        return cls(crossed, counts, probs, n_groups, case, keys % n_groups, left)

    def means(self, terms: OfLabels, needed: int) -> FloatArray:
        """Weighted means (G, …) over cases without each group.

        Args:
            terms: (e, …) of cases.
            needed: labels that a case needs.
        """

        def columns(counts: IntArray, case: npt.NDArray[np.intp]) -> FloatArray:
            values = terms(counts, case)
            return np.column_stack([np.ones(len(values)), values])

        sums = self.sums(columns, needed)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(sums[:, 1:] / sums[:, :1])

    def sums(self, columns: OfLabels, needed: int) -> FloatArray:
        """Weighted sums (G, P) over cases without each group.

        Args:
            columns: (e, P) of cases.
            needed: labels that a case needs.
        """
        weight = self.crossed.sample.weight
        before, _ = _with_labels(columns, needed, self.counts, np.arange(len(self.counts)))
        after, _ = _with_labels(columns, needed, self.left, self.case)
        moved = weight[self.case, None] * (after - before[self.case])
        by_group = [np.bincount(self.group, column, self.n_groups) for column in moved.T]
        return np.asarray(weight @ before + np.stack(by_group, axis=1))

    def calibration(
        self, freqs: OfLabels, probs: FloatArray, needed: int, slots: BinIndex, sums: BinSums, debias: Debias
    ) -> FloatArray:
        """CL (G,) without each group, in the pair form or the plug-in; arguments as in ``bins``."""
        return calibration_of(self.bins(freqs, probs, needed, slots, sums), len(slots.edges), debias)

    def bins(self, freqs: OfLabels, probs: FloatArray, needed: int, slots: BinIndex, sums: BinSums) -> BinSums:
        """Sums (G, S) of every bin without each group, as far as CL follows from them.

        What a patient's own pairs take off is as much of a bin's weight as with all readers: an error that is the same
        whoever is left out, and so none of the variance.

        Args:
            freqs: frequencies (e, C).
            probs: (n, C) of the sample's cases.
            needed: labels that a case needs.
            slots: bins of all columns.
            sums: of all cases.
        """
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
        """Readers' part of the variance of an estimate.

        Args:
            without: (G,) the estimate without each group.
            variance: of the estimate by patients.

        Returns:
            None where the estimate cannot do without a group.
        """
        if not np.isfinite(without).all():
            return None
        cells, count = self.crossed.cells, self.n_groups
        of_patient = np.bincount(cells.patient, cells.weight)
        twice = float((cells.weight**2).sum() / (of_patient**2).sum()) * variance
        spread = (count - 1) / count * float(((without - without.mean()) ** 2).sum())
        # readers of one patient each are told from patients by nothing
        return ReaderPart(max(0.0, spread - twice), max(count - 2.0, 1.0)) if spread > 0 else NO_READERS


def calibration_of(bins: BinSums, n_columns: int, debias: Debias) -> FloatArray:
    """CL (G,) from sums (G, S) of bins of so many columns, in the pair form, or the plug-in."""
    form: Debias = "none" if debias == "none" else "pair"
    total = np.where(usable_bins(bins, form).any(axis=1), bins.weight.sum(axis=1) / n_columns, np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(contributions(bins, form).sum(axis=1) / total)


def _with_labels(
    values: OfLabels, needed: int, counts: IntArray, case: npt.NDArray[np.intp]
) -> tuple[FloatArray, FloatArray]:
    """Values (e, …) of cases with enough labels, 0 elsewhere, and which those are (e,)."""
    enough = np.einsum("nk->n", counts) >= needed
    rows = np.flatnonzero(enough)
    some = values(counts[rows], case[rows])
    result = np.zeros((len(counts), *some.shape[1:]))
    result[rows] = some
    return result, enough.astype(np.float64)
