"""Shared inputs of the metrics of one order, computed in one pass over the usable cases."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ml.metrics.binning import BinIndex, BinSums, Debias
from ml.metrics.crossed_effects import CrossedEffects, Readings
from ml.metrics.histograms import CaseTerms, class_frequencies, epistemic_sums
from ml.metrics.inputs import Inputs
from ml.metrics.intervals import ReaderPart
from ml.metrics.jackknife import Replicates, Sample
from ml.metrics.reader_jackknife import LeftOut, calibration_of
from ml.metrics.reader_variance import ReadTerms
from ml.metrics.reliability import Binned
from ml.util.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class MetricInputs:
    """The n usable cases of the metrics of one order, with shared intermediate results.

    Attributes:
        sample: the cases.
        binned: label frequencies and probabilities by class.
        terms: of the means over cases.
        class_terms: (2, K) sums over cases with two labels of w(μ̂ − z)² and wμ̂(1 − μ̂)/(n − 1).
        calibration: CL in the form that was asked for and as a plug-in, with its leave-one-cluster-out values.
        reads: who gave which label, None where that is not known or fewer than three did.
        order: labels that a case needs.
    """

    sample: Sample
    binned: Binned
    terms: CaseTerms
    class_terms: FloatArray
    calibration: dict[Debias, Replicates]
    reads: ReadTerms | None
    order: int

    @classmethod
    def of(
        cls, data: Inputs, order: int, n_bins: int, debias: Debias, readings: Readings | None, *, paired: bool
    ) -> "MetricInputs":
        """One pass over the cases with that many labels; of those that have two ``class_terms`` are summed too."""
        sample = data.sample(order)
        binned = Binned.empty(sample, BinIndex.of(data.probs[:0], n_bins, "uniform"), debias, joining=True)
        parts, class_terms = [], np.zeros((2, data.probs.shape[1]))
        for part in binned.chunks():
            rows, weight = part if sample.whole else sample.rows[part], sample.weight[part]
            counts, probs, totals = data.counts[rows], data.probs[rows], data.n_labels[rows]
            freqs = class_frequencies(counts, totals)
            gap = binned.add(part, freqs, probs).gap
            terms = CaseTerms.of(counts, probs, freqs, gap, totals)
            if paired:
                class_terms[0] += weight @ gap**2
                class_terms[1] += (weight / np.maximum(terms.n_labels - 1, 1)) @ (freqs * (1 - freqs))
            parts.append(terms)
        reads = reading_terms(data, sample, readings, order)
        calibration = binned.replicates_of({debias, "none"})
        return cls(sample, binned, CaseTerms.joined(parts), class_terms, calibration, reads, order)

    @classmethod
    def of_both_orders(
        cls, first: Inputs, second: Inputs, n_bins: int, debias: Debias, readings: Readings | None
    ) -> "tuple[MetricInputs, MetricInputs]":
        """Those with one label by one table and those with two by another; in one pass where they are the same."""
        alike = second.counts is first.counts and second.weight is first.weight
        if not alike or (first.n_labels == 1).any():
            return (
                cls.of(first, 1, n_bins, debias, readings, paired=False),
                cls.of(second, 2, n_bins, debias, readings, paired=True),
            )
        labelled = cls.of(first, 1, n_bins, debias, readings, paired=True)
        return labelled, replace(labelled, reads=reading_terms(second, labelled.sample, readings, 2), order=2)

    def readers(self, terms: Callable[[ReadTerms], FloatArray], degree: int = 1) -> ReaderPart | None:
        """Readers' part of the variance of a mean of terms of readings."""
        return None if self.reads is None else self.reads.crossed.part(terms(self.reads), degree)

    @cached_property
    def left_out(self) -> LeftOut | None:
        """Labels without each reader."""
        return None if self.reads is None else LeftOut.of(self.reads.crossed, self.reads.counts, self.reads.probs)

    def without(self, values: Callable[[LeftOut], FloatArray], replicates: Replicates) -> ReaderPart | None:
        """The same of what is no such mean, from its values without each reader."""
        error = replicates.standard_error()
        return None if self.left_out is None or error is None else self.left_out.part(values(self.left_out), error**2)

    @cached_property
    def _bins_left(self) -> BinSums | None:
        """Sums of every bin without each reader."""
        left, binned = self.left_out, self.binned
        return None if left is None else left.bins(_frequencies, left.probs, self.order, binned.slots, binned.bins)

    def calibration_without(self, debias: Debias) -> FloatArray:
        """CL without each reader.

        Raises:
            ValueError: it is not known who read.
        """
        if self._bins_left is None:
            raise ValueError("it is not known who read")
        return calibration_of(self._bins_left, len(self.binned.slots.edges), debias)

    def epistemic_without(self, *, debias: bool) -> FloatArray:
        """EL without each reader.

        Raises:
            ValueError: it is not known who read.
        """
        if self._epistemic_left is None:
            raise ValueError("it is not known who read")
        return np.asarray(self._epistemic_left[:, int(debias)])

    @cached_property
    def _epistemic_left(self) -> FloatArray | None:
        """EL (G, 2) without each reader, as a plug-in and unbiased."""
        left = self.left_out
        return None if left is None else left.means(lambda counts, case: epistemic_sums(counts, left.probs[case]), 2)


def reading_terms(data: Inputs, sample: Sample, readings: Readings | None, order: int) -> ReadTerms | None:
    """Reading terms of a sample; None where annotators are unknown or fewer than three."""
    if readings is None:
        return None
    crossed = CrossedEffects.of(readings.check(*data.counts.shape), sample, len(data.counts), first=order == 1)
    return None if crossed is None else ReadTerms(crossed, sample.take(data.counts), sample.take(data.probs))


def _frequencies(counts: IntArray, case: npt.NDArray[np.intp]) -> FloatArray:
    return class_frequencies(counts)
