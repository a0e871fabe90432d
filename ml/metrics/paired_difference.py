"""Paired differences of metrics between two predictions of the same cases."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from ml.dataframes import same_rows
from ml.metrics.crossed_effects import CrossedEffects, Readings
from ml.metrics.histograms import (
    agreement_terms,
    class_frequencies,
    observed_disagreement,
    squared_terms,
    statistic_terms,
)
from ml.metrics.inputs import check_inputs, first_labels
from ml.metrics.intervals import ReaderPart
from ml.metrics.jackknife import Estimate, EstimateDocument, Sample, mean_replicates, to_estimate
from ml.metrics.model_assisted import TwoPhaseSample, prediction_features
from ml.metrics.reader_jackknife import LeftOut, OfLabels
from ml.metrics.reader_variance import ReadTerms
from ml.metrics.reliability import Binned
from ml.util.arrays import EqualByValue, FloatArray, IntArray, as_vector


class ChangeDocument(TypedDict):
    """A ``Change`` as JSON values."""

    L: EstimateDocument
    L_D: EstimateDocument


@dataclass(frozen=True, eq=False)
class Change(EqualByValue):
    """Change of the proper scores from one prediction of the same cases to another; negative is better.

    Attributes:
        loss: of L, on cases with a label.
        disagreement_loss: of L_φ, on cases with two.
        parts: (2, N) what each case adds to either, less its share of the mean: w(x − x̄)/Σw.
        chance: (2,) standard error that labels alone would give either, if they came as the prediction before says.
    """

    loss: Estimate
    disagreement_loss: Estimate
    parts: FloatArray = field(repr=False, compare=False)
    chance: FloatArray = field(repr=False, compare=False)

    def to_dict(self) -> ChangeDocument:
        """Return it as JSON values."""
        return {"L": self.loss.to_dict(), "L_D": self.disagreement_loss.to_dict()}


def paired_change(
    label_counts: npt.ArrayLike,
    before: tuple[FloatArray, FloatArray],
    after: tuple[FloatArray, FloatArray],
    *,
    first_label_counts: npt.ArrayLike | None = None,
    weights: npt.ArrayLike | None = None,
    weights2: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Change:
    """Change of L and of L_φ, case by case, with patient-clustered intervals.

    Args:
        label_counts: (N, K).
        before: class probabilities (N, K) and DPEs (N,).
        after: the same of the candidate.
        first_label_counts: (N, K) those of the labels that L uses; all where left out.
        weights: (N,) order-1 weights.
        weights2: (N,) order-2 weights.
        cluster: (N,) patients.

    Raises:
        ValueError: shapes that do not match or values out of range.
    """
    pair = _Pair.of(label_counts, before, after, first_label_counts, weights, weights2, cluster)
    return Change(pair.loss(), pair.disagreement_loss(), pair.parts(), pair.chance())


@dataclass(frozen=True)
class Shift:
    """Difference between a loss's change by some labels and by all, with standard error by patient."""

    value: float
    se: float


def shifts_of(some: Change, everything: Change, cluster: npt.ArrayLike) -> dict[str, Shift]:
    """Compare a change by some labels (and a candidate fitted on such) with that by all labels of the same cases.

    The two are judged by mostly the same labels, so the error of their difference is found case by case: it is much
    smaller than that of either.

    Args:
        some: the change by some of the labels.
        everything: the change by all.
        cluster: (N,) patients.

    Returns:
        Shifts of ``L`` and of ``L_D``; NaN where a change could not be estimated.

    Raises:
        ValueError: other cases.
    """
    names = np.asarray(cluster)
    if not some.parts.shape == everything.parts.shape == (2, len(names)):
        raise ValueError("changes are compared over the same cases")
    numbers = np.unique(names, return_inverse=True)[1]
    n = int(numbers.max(initial=-1)) + 1
    totals = [np.bincount(numbers, weights=part, minlength=n) for part in some.parts - everything.parts]
    factor = n / (n - 1) if n > 1 else np.nan
    pairs = ((some.loss, everything.loss), (some.disagreement_loss, everything.disagreement_loss))
    return {
        name: Shift(float(less.value - more.value), float(np.sqrt(factor * np.square(total).sum())))
        for name, (less, more), total in zip(("L", "L_D"), pairs, totals, strict=True)
    }


def paired_changes(
    label_counts: npt.ArrayLike,
    before: tuple[FloatArray, FloatArray],
    after: tuple[FloatArray, FloatArray],
    *,
    first_label_counts: npt.ArrayLike | None = None,
    readings: Readings | None = None,
    n_bins: int = 15,
    weights: npt.ArrayLike | None = None,
    weights2: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> dict[str, Estimate]:
    """Change of agreement, L, EL, CL, L_φ and CL_φ (pair form), with intervals of the differences.

    Each is the difference of what ``evaluate`` says of either prediction; errors are those of the difference, which
    are smaller than two intervals side by side suggest, since both are judged by the same labels.

    Args:
        label_counts: (N, K).
        before: class probabilities (N, K) and DPEs (N,).
        after: the same of the other prediction.
        first_label_counts: (N, K) those of the labels that metrics which need one label use; all where left out.
        readings: who gave which label, for the intervals for new readers.
        n_bins: equal-width bins of [0, 1].
        weights: (N,) order-1 weights.
        weights2: (N,) order-2 weights.
        cluster: (N,) patients.

    Raises:
        ValueError: shapes that do not match or values out of range.
    """
    pair = _Pair.of(label_counts, before, after, first_label_counts, weights, weights2, cluster, readings)
    return {
        "agreement": pair.agreement(),
        "L": pair.loss(),
        "EL": pair.epistemic_loss(),
        "CL": pair.calibration_loss(n_bins),
        "L_D": pair.disagreement_loss(),
        "CL_D": pair.disagreement_calibration_loss(n_bins),
    }


@dataclass(frozen=True)
class _Pair:
    """Two predictions of the same cases."""

    counts: IntArray
    # (N, K) those of them that metrics which need one label use
    first_counts: IntArray
    # class probabilities (N, K), before and after
    probs: tuple[FloatArray, FloatArray]
    # (N,), before and after
    dpe: tuple[FloatArray, FloatArray]
    # cases with a label
    labelled: Sample
    paired: Sample
    # what is known of all cases, where there were weights
    known: TwoPhaseSample | None
    # who gave which label, judging either prediction by one label; None where that is not known
    reads: tuple[ReadTerms, ReadTerms] | None = None
    # the same by two
    reads2: tuple[ReadTerms, ReadTerms] | None = None

    @classmethod
    def of(
        cls,
        label_counts: npt.ArrayLike,
        before: tuple[FloatArray, FloatArray],
        after: tuple[FloatArray, FloatArray],
        first_label_counts: npt.ArrayLike | None,
        weights: npt.ArrayLike | None,
        weights2: npt.ArrayLike | None,
        cluster: npt.ArrayLike | None,
        readings: Readings | None = None,
    ) -> "_Pair":
        same_rows(
            **{"label_counts": label_counts, "weights": weights, "weights2": weights2, "cluster": cluster},
            **{"first_label_counts": first_label_counts},
            **{"class_probs before": before[0], "disagreement_probs before": before[1]},
            **{"class_probs after": after[0], "disagreement_probs after": after[1]},
        )
        first = check_inputs(label_counts, before[0], weights, cluster)
        second = check_inputs(label_counts, after[0], weights if weights2 is None else weights2, cluster)
        n = len(first.counts)
        dpe = [as_vector(prediction[1], n, "disagreement_probs", 0.0, 1.0) for prediction in (before, after)]
        counts = first.counts
        if first_label_counts is not None:
            first = first_labels(first, first_label_counts, before[0], None)
        labelled, paired, probs = first.sample(1), second.sample(2), (first.probs, second.probs)
        reads, reads2 = (
            None if readings is None else _both(readings.check(*counts.shape), data.counts, probs, sample, order)
            for data, sample, order in ((first, labelled, 1), (second, paired, 2))
        )
        pair = cls(counts, first.counts, probs, (dpe[0], dpe[1]), labelled, paired, None, reads, reads2)
        if n == 0 or (weights is None and weights2 is None):
            return pair
        old, new = (prediction_features(f, phi) for f, phi in zip(probs, dpe, strict=True))
        everyone = replace(first, weight=None).sample(0)
        first_change = pair._squared_change(first.counts, labelled)
        return replace(pair, known=TwoPhaseSample(new - old, everyone, labelled, first_change, paired))

    def parts(self) -> FloatArray:
        """Contributions of each case to the changes of L and L_φ (2, N), centred."""
        parts = np.zeros((2, len(self.counts)))
        changes = (
            (self._squared_change(self.first_counts, self.labelled), self.labelled),
            (self._disagreement_change(), self.paired),
        )
        for part, (terms, sample) in zip(parts, changes, strict=True):
            total = float(sample.weight.sum())
            if total > 0:
                share = sample.weight / total
                part[sample.rows] = share * (terms - share @ terms)
        return parts

    def chance(self) -> FloatArray:
        """Standard errors (2,) of the changes of L and of L_φ by labels alone, if the prediction before were right."""
        # Labels that happen to be all alike show no spread, however few they are; what was predicted says how much they
        # could have differed. With d = f′ − f a case of n labels has the variance 4 (Σ_k f_k d_k² − (Σ_k f_k d_k)²)/n
        # in L, and 4 (φ′ − φ)² φ(1 − φ) · 2/n in L_φ, which is exact for two labels and for a rare dissent.
        rows, (before, after) = self.labelled.rows, self.probs
        f, d = before[rows], after[rows] - before[rows]
        spread = 4 * ((f * d**2).sum(axis=1) - (f * d).sum(axis=1) ** 2) / self.first_counts[rows].sum(axis=1)
        rows, (phi, other) = self.paired.rows, self.dpe
        a, b = phi[rows], other[rows]
        pairs = 4 * (b - a) ** 2 * a * (1 - a) * 2 / self.counts[rows].sum(axis=1)
        return np.array([_error(spread, self.labelled), _error(pairs, self.paired)])

    def _squared_change(self, counts: IntArray, sample: Sample) -> FloatArray:
        """Change of the squared loss (n,) of a sample's cases."""
        rows = sample.rows
        before, after = (squared_terms(counts[rows], probs[rows]).sum(axis=1) for probs in self.probs)
        change: FloatArray = after - before
        return change

    def _disagreement_change(self) -> FloatArray:
        """Change of the squared loss (n,) of the DPE of cases with two labels."""
        rows = self.paired.rows
        observed = observed_disagreement(self.counts[rows])
        before, after = (statistic_terms(observed, dpe[rows]) for dpe in self.dpe)
        change: FloatArray = after - before
        return change

    def _readers(self, of_one: Callable[[ReadTerms, FloatArray], FloatArray], order: int) -> ReaderPart | None:
        """Readers' part of the variance of a change, for terms of readings by about that many readers."""
        reads = self.reads if order == 1 else self.reads2
        if reads is None:
            return None
        dpe = [values[reads[0].crossed.sample.rows] for values in self.dpe]
        before, after = (of_one(*side) for side in zip(reads, dpe, strict=True))
        return reads[0].crossed.part(after - before, order)

    def _mean_of_order_2(self, terms: FloatArray, readers: ReaderPart | None) -> Estimate:
        estimate = to_estimate(mean_replicates(terms, self.paired), self.paired, readers=readers)
        return (
            estimate
            if self.known is None
            else replace(estimate, model_assisted=self.known.of_order_2((terms, None))[0])
        )

    def agreement(self) -> Estimate:
        rows = self.labelled.rows
        freqs = class_frequencies(self.first_counts[rows])
        before, after = (agreement_terms(freqs, probs[rows]) for probs in self.probs)
        readers = self._readers(lambda reads, _: reads.agreement(), 1)
        return to_estimate(mean_replicates(after - before, self.labelled), self.labelled, readers=readers)

    def loss(self) -> Estimate:
        terms = self._squared_change(self.first_counts, self.labelled)
        readers = self._readers(lambda reads, _: reads.squared, 1)
        estimate = to_estimate(mean_replicates(terms, self.labelled), self.labelled, readers=readers)
        return estimate if self.known is None else replace(estimate, model_assisted=self.known.of_order_1(terms))

    def epistemic_loss(self) -> Estimate:
        """L and EL differ by what no prediction can change, so on the same cases their changes are equal."""
        reads = self.reads2
        readers = None if reads is None else reads[0].crossed.part(reads[1].squared - reads[0].squared)
        return self._mean_of_order_2(self._squared_change(self.counts, self.paired), readers)

    def calibration_loss(self, n_bins: int) -> Estimate:
        rows = self.labelled.rows
        freqs = class_frequencies(self.first_counts[rows])
        probs = [probs[rows] for probs in self.probs]
        return self._calibration(freqs, probs, n_bins, 1, lambda counts, case: class_frequencies(counts))

    def disagreement_loss(self) -> Estimate:
        readers = self._readers(ReadTerms.statistic, 2)
        return self._mean_of_order_2(self._disagreement_change(), readers)

    def disagreement_calibration_loss(self, n_bins: int) -> Estimate:
        rows = self.paired.rows
        observed = observed_disagreement(self.counts[rows])[:, None]
        dpe = [dpe[rows][:, None] for dpe in self.dpe]
        return self._calibration(observed, dpe, n_bins, 2, lambda counts, case: observed_disagreement(counts)[:, None])

    def _calibration(
        self, freqs: FloatArray, probs: list[FloatArray], n_bins: int, order: int, of_labels: OfLabels
    ) -> Estimate:
        sample, reads = (self.labelled, self.reads) if order == 1 else (self.paired, self.reads2)
        binned = [Binned.of(freqs, z, sample, n_bins, "uniform", "pair", joining=True) for z in probs]
        before, after = (side.replicates("pair") for side in binned)
        change = after - before
        error, readers = change.standard_error(), None
        if reads is not None and error is not None:
            left = LeftOut.of(reads[0].crossed, reads[0].counts, reads[0].probs)
            without = [
                left.calibration(of_labels, z, order, side.slots, side.bins, "pair")
                for z, side in zip(probs, binned, strict=True)
            ]
            readers = left.part(without[1] - without[0], error**2)
        return to_estimate(change, sample, readers=readers)


def _both(
    readings: Readings, counts: IntArray, probs: tuple[FloatArray, FloatArray], sample: Sample, order: int
) -> tuple[ReadTerms, ReadTerms] | None:
    """Readings of a sample's cases, judging either prediction."""
    crossed = CrossedEffects.of(readings, sample, len(counts), first=order == 1)
    if crossed is None:
        return None
    before, after = (ReadTerms(crossed, sample.take(counts), sample.take(side)) for side in probs)
    return before, after


def _error(variance: FloatArray, sample: Sample) -> float:
    """Standard error of a weighted mean of independent terms with these variances (n,)."""
    total = float(sample.weight.sum())
    return float(np.sqrt((sample.weight**2 * np.maximum(variance, 0.0)).sum())) / total if total > 0 else 0.0
