"""Paired differences of metrics between two predictions of the same cases."""

from dataclasses import dataclass, field, replace
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from ml.documents import LEFT_OUT, AsDocument, named
from ml.messages import Message
from ml.metrics.cases import MEANS, Sample, SampleWeight, check_both_orders, weights_by_order
from ml.metrics.definitions import BY_NAME, Estimates, Metric, metric_replicates
from ml.metrics.jackknife import (
    Estimate,
    EstimateDocument,
    ModelAssisted,
    ReaderPart,
    Replicates,
    mean_replicates,
    to_estimate,
)
from ml.metrics.model_assisted import TwoPhaseSample, prediction_features
from ml.metrics.reader_variance import Readings
from ml.metrics.sources import ArraySource
from ml.metrics.sums import Debias
from ml.util.arrays import EqualByValue, FloatArray, as_vector


class ChangeDocument(TypedDict):
    """A ``Change`` as JSON values."""

    L: EstimateDocument
    L_D: EstimateDocument


@dataclass(frozen=True, eq=False)
class Change(EqualByValue, AsDocument[ChangeDocument]):
    """Change of the proper scores; negative is better.

    Attributes:
        loss: of L, on cases with a label.
        disagreement_loss: of L_φ, on cases with two.
        parts: (2, N) what each case adds to either, less its share of the mean: w(x − x̄)/Σw.
        chance: (2,) standard error that labels alone would give either, if they came as the prediction before says.
    """

    loss: Estimate = field(metadata=named("L"))
    disagreement_loss: Estimate = field(metadata=named("L_D"))
    parts: FloatArray = field(repr=False, compare=False, metadata=LEFT_OUT)
    chance: FloatArray = field(repr=False, compare=False, metadata=LEFT_OUT)


def paired_change(
    label_counts: npt.ArrayLike,
    before: tuple[FloatArray, FloatArray],
    after: tuple[FloatArray, FloatArray],
    *,
    first_label_counts: npt.ArrayLike | None = None,
    sample_weight: SampleWeight = None,
    cluster: npt.ArrayLike | None = None,
) -> Change:
    """Change of L and of L_φ; arguments as in ``paired_changes``."""
    pair = _Pair.of(label_counts, before, after, first_label_counts, sample_weight, cluster)
    loss, disagreement_loss = (pair.change(metric) for metric in _PROPER_SCORES)
    return Change(loss, disagreement_loss, pair.parts(), pair.chance())


@dataclass(frozen=True)
class Shift:
    """Difference of a loss's change by some labels and by all."""

    value: float
    se: float


def shifts_of(some: Change, everything: Change, cluster: npt.ArrayLike) -> dict[str, Shift]:
    """Compare a change by some labels with that by all labels."""
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
    debias: Debias = "pair",
    sample_weight: SampleWeight = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimates:
    """Changes of the metrics of two predictions, with intervals.

    Each is the difference of what ``evaluate`` returns for either, which
    takes the same arguments. EL changes as L does.

    Args:
        label_counts: (N, K).
        before: class probabilities (N, K) and DPEs (N,).
        after: the same of the other prediction.
        first_label_counts: as in ``evaluate``.
        readings: as in ``evaluate``.
        n_bins: equal-width bins of [0, 1].
        debias: form of CL.
        sample_weight: as in ``evaluate``.
        cluster: (N,) patients.

    Raises:
        ValueError: shapes that do not match or values out of range.
    """
    pair = _Pair.of(label_counts, before, after, first_label_counts, sample_weight, cluster, readings, n_bins, debias)
    return Estimates({metric.name: pair.change(metric) for metric in _CHANGES})


_PROPER_SCORES = (BY_NAME["L"], BY_NAME["L_D"])
#: L and EL differ by what no prediction can change, so on the same cases their changes are equal.
_CHANGES = (
    BY_NAME["agreement"],
    BY_NAME["L"],
    replace(BY_NAME["EL"], mean="L"),
    BY_NAME["CL"],
    BY_NAME["L_D"],
    BY_NAME["CL_D"],
)


@dataclass(frozen=True)
class _Pair:
    before: ArraySource
    after: ArraySource
    known: TwoPhaseSample | None = None  # with weights alone
    debias: Debias = "pair"  # form of CL

    @classmethod
    def of(
        cls,
        label_counts: npt.ArrayLike,
        before: tuple[FloatArray, FloatArray],
        after: tuple[FloatArray, FloatArray],
        first_label_counts: npt.ArrayLike | None,
        sample_weight: SampleWeight,
        cluster: npt.ArrayLike | None,
        readings: Readings | None = None,
        n_bins: int | None = None,
        debias: Debias = "pair",
    ) -> "_Pair":
        """Check two predictions; without ``n_bins`` nothing is put into bins."""
        columns = {"class_probs before": before[0], "disagreement_probs before": before[1]}
        columns |= {"class_probs after": after[0], "disagreement_probs after": after[1]}
        sources = []
        for class_probs, disagreement_probs in (before, after):
            first, second = check_both_orders(
                label_counts, class_probs, sample_weight, cluster, None, first_label_counts, **columns
            )
            source = ArraySource(
                first,
                second,
                as_vector(disagreement_probs, len(first.counts), "disagreement_probs", 0.0, 1.0),
                {debias},
                classes_in_bins=n_bins is not None,
                n_bins=n_bins or 1,
                joining=True,
                readings=readings,
            )
            sources.append(source)
        pair = cls(sources[0], sources[1], debias=debias)
        if len(pair.before.dpe) == 0 or all(weights is None for weights in weights_by_order(sample_weight)):
            return pair
        old, new = (prediction_features(source.first.probs, source.dpe) for source in sources)
        everyone = replace(pair.before.first, weight=None).sample(0)
        samples = (pair.before.sample(1), pair.before.sample(2))
        losses = (pair._terms(replace(BY_NAME["L"], order=order)) for order in (1, 2))
        return replace(pair, known=TwoPhaseSample(new - old, everyone, *samples, *losses))

    def parts(self) -> FloatArray:
        """Parts (2, N) of each case in the changes of L and L_φ."""
        parts = np.zeros((2, len(self.before.dpe)))
        for part, metric in zip(parts, _PROPER_SCORES, strict=True):
            sample, terms = self.before.sample(metric.order), self._terms(metric)
            if sample.total_weight > 0:
                share = sample.weight / sample.total_weight
                part[sample.rows] = share * (terms - share @ terms)
        return parts

    def chance(self) -> FloatArray:
        """Standard errors (2,) of the changes by labels alone."""
        # Labels that happen to be alike show no spread, so it follows from the prediction:
        # with d = f′ − f it is 4 (Σ f_k d_k² − (Σ f_k d_k)²)/n in L,
        # and 4 (φ′ − φ)² φ(1 − φ) · 2/n in L_φ.
        labelled, paired = (self.before.sample(order) for order in (1, 2))
        f, after = (source.first.probs[labelled.rows] for source in (self.before, self.after))
        d = after - f
        n_labels, n_labels2 = self.before.first.n_labels[labelled.rows], self.before.second.n_labels[paired.rows]
        spread = 4 * ((f * d**2).sum(axis=1) - (f * d).sum(axis=1) ** 2) / n_labels
        a, b = (source.dpe[paired.rows] for source in (self.before, self.after))
        pairs = 4 * (b - a) ** 2 * a * (1 - a) * 2 / n_labels2
        return np.array([_error(spread, labelled), _error(pairs, paired)])

    def _terms(self, metric: Metric) -> FloatArray:
        name = metric.mean_name("pair")
        if name is None:
            raise ValueError(f"{metric.name} is no mean")
        before, after = (source.terms(name, metric.order) for source in (self.before, self.after))
        return np.asarray(after - before)

    def change(self, metric: Metric) -> Estimate:
        sample = self.before.sample(metric.order)
        if metric.mean is None:
            before, after = (metric_replicates(metric, side, self.debias) for side in (self.before, self.after))
            replicates = after - before
        else:
            replicates = mean_replicates(self._terms(metric), sample)
        estimate = to_estimate(replicates, sample, readers=self._readers(metric, replicates))
        if self.known is None or metric.mean in {None, "agreement"}:
            return estimate
        terms, is_first = self._terms(metric), metric.name == "EL"  # which is L − φ̂ and changes as L does
        rest = (0 * terms if is_first else terms, None, is_first)
        assisted = self.known.of_order_1(terms) if metric.order == 1 else self.known.of_order_2(rest)[0]
        return replace(estimate, model_assisted=assisted)

    def _readers(self, metric: Metric, replicates: Replicates) -> ReaderPart | None:
        before, after = (source.readers_of(metric.order) for source in (self.before, self.after))
        if before is None or after is None:
            return None
        if metric.mean is not None:
            return before.crossed.part(after.terms[metric.mean] - before.terms[metric.mean], MEANS[metric.mean])
        error = replicates.standard_error()
        if error is None:
            return None
        bins, sides = metric.own_bins, ((before, self.before), (after, self.after))
        lost = [of.calibration_without(by.binned(bins, metric.order), bins, self.debias) for of, by in sides]
        return before.left_out.part(lost[1] - lost[0], error**2)


def _error(variance: FloatArray, sample: Sample) -> float:
    total = float(sample.weight.sum())
    return float(np.sqrt((sample.weight**2 * np.maximum(variance, 0.0)).sum())) / total if total > 0 else 0.0


#: Standard errors above which a loss counts as harmed.
HARM_LIMIT = 1.0


def losses_of(change: Change) -> tuple[tuple[str, Estimate], ...]:
    """Both losses of a change, with their names for people."""
    return ("L", change.loss), ("L_φ", change.disagreement_loss)


def is_estimated(loss: Estimate | ModelAssisted) -> bool:
    """Whether there is an estimate with a standard error."""
    return loss.se is not None and bool(np.isfinite(loss.value))


def describe_regression(name: str, loss: Estimate | ModelAssisted, when: str = "") -> list[str]:
    """Describe a loss that rises by over one error."""
    if loss.se is None or loss.value <= HARM_LIMIT * loss.se:
        return []
    return [
        Message(
            "{name} is worse{when} by {value:.4f}; {se:.4f} (one standard error) is allowed",
            name=name,
            when=when,
            value=loss.value,
            se=loss.se,
        )
    ]


def describe_regressions(change: Change) -> list[str]:
    """Describe losses that rise or cannot be estimated."""
    reasons = []
    for name, estimate in losses_of(change):
        if is_estimated(estimate.efficient):
            reasons += describe_regression(name, estimate.efficient)
        else:
            reasons.append(Message("the change of {name} cannot be estimated: too few labelled patients", name=name))
    return reasons
