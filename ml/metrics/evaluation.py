"""Complete evaluation of one set of predictions.

With inverse selection probabilities as weights the estimates are
Hájek means, Σwx / Σw, next to the Horvitz–Thompson form, which
divides by the number of all cases.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from html import escape
from math import isnan
from typing import Any, TypedDict, cast

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from ml.distributions.families import gini
from ml.documents import AsDocument, named, to_document
from ml.messages import Message, messages
from ml.metrics.accumulator import GroupSums
from ml.metrics.binned import BinDocument, PairCounts, ReliabilityBin, is_debiased
from ml.metrics.cases import Sample, SampleWeight, check_both_orders, weights_by_order
from ml.metrics.definitions import BY_NAME, METRICS, Estimates, metric_estimates, with_long_names, without_long_names
from ml.metrics.jackknife import (
    FEW_EVENTS,
    MINUS_DISAGREEMENT,
    SHARE,
    SQUARED_LOSS,
    Estimate,
    EstimateDocument,
    ModelAssisted,
)
from ml.metrics.model_assisted import TwoPhaseSample, prediction_features
from ml.metrics.reader_variance import Readings
from ml.metrics.sources import ArraySource, GroupSource
from ml.metrics.sums import Debias
from ml.util.arrays import EqualByValue, as_vector

# of a representation: more would scroll a notebook or a debugger away
_MOST_LINES = 30
#: A ``ClassEvaluation`` as JSON values.
ClassEvaluationDocument = TypedDict(
    "ClassEvaluationDocument",
    {
        "class": str,
        "CL": float | None,
        "calibration_loss": float | None,
        "EL": float | None,
        "epistemic_loss": float | None,
        "bins": list[BinDocument],
    },
)


class MetricsDocument(TypedDict):
    """Metrics and what they were computed from, as JSON values."""

    n_cases: int
    n_labels: int
    n_classes: int
    n_bins: int
    debias: str
    metrics: dict[str, EstimateDocument]
    warnings: list[str]


class EvaluationDocument(MetricsDocument):
    """An ``Evaluation`` as JSON values."""

    classes: list[ClassEvaluationDocument]
    class_bins: list[BinDocument]
    disagreement_bins: list[BinDocument]


@dataclass(frozen=True)
class ClassEvaluation(AsDocument[ClassEvaluationDocument]):
    """Evaluation of the probabilities of one class.

    Attributes:
        name: of the class.
        calibration_loss: its part of CL; None without a label, or if no bin holds two cases to compare.
        epistemic_loss: its part of EL; None without two labels of a case.
        bins: its reliability diagram.
    """

    name: str = field(metadata=named("class"))
    calibration_loss: float | None = field(metadata=named("CL"))
    epistemic_loss: float | None = field(metadata=named("EL"))
    bins: tuple[ReliabilityBin, ...]

    def to_dict(self) -> ClassEvaluationDocument:
        """Return it as JSON values, each loss under its symbol and its long name."""
        return cast(ClassEvaluationDocument, with_long_names(to_document(self)))


@dataclass(frozen=True, repr=False, eq=False)
class Evaluation(EqualByValue, AsDocument[EvaluationDocument]):
    """Every metric over one set of predictions.

    Attributes:
        n_cases: cases, with labels or without.
        n_labels: labels.
        n_classes: K.
        n_bins: equal-width bins of [0, 1].
        debias: form of CL: pair, paper or none.
        metrics: estimates by symbol or long name: ``metrics["L"]`` is ``metrics["expected_loss"]``.
        classes: one entry per class.
        class_bins: reliability diagram of all classes pooled.
        disagreement_bins: reliability diagram of the disagreement of two annotators.
        warnings: what a reader of the estimates must know.

    Examples:
        >>> from secondread import evaluate
        >>> evaluation = evaluate([[2, 1], [0, 3]], [[0.7, 0.3], [0.2, 0.8]], classes=["benign", "malignant"])
        >>> round(evaluation.metrics["L"].value, 4), evaluation.classes[1].name, evaluation.to_dict()["n_labels"]
        (0.2633, 'malignant', 6)
        >>> print(evaluation.summary().splitlines()[0])
        2 cases, 6 labels, 2 classes
    """

    n_cases: int
    n_labels: int
    n_classes: int
    n_bins: int
    debias: str
    metrics: Estimates
    classes: tuple[ClassEvaluation, ...]
    class_bins: tuple[ReliabilityBin, ...]
    disagreement_bins: tuple[ReliabilityBin, ...]
    warnings: tuple[str, ...]

    def summary(self) -> str:
        """Return the metrics and warnings as a text table."""
        return metrics_table(self.to_dict())

    def to_frame(self) -> Any:
        """Return a pandas table of the metrics.

        Raises:
            ImportError: pandas is not installed.
        """
        return estimates_frame(self.metrics)

    def __repr__(self) -> str:
        """The summary: at most 30 lines."""
        lines = self.summary().splitlines()
        if len(lines) > _MOST_LINES:
            lines[_MOST_LINES - 1 :] = [f"… {len(lines) - _MOST_LINES + 1} more lines: summary()"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        metrics = without_long_names(self.to_dict()["metrics"])
        cells = ((name, _number(m["value"]), _interval(m), f"{m['n']:,}") for name, m in metrics.items())
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in cells)
        head = "<tr><th>metric</th><th>value</th><th>95 % interval</th><th>cases</th></tr>"
        caption = f"{self.n_cases:,} cases, {self.n_labels:,} labels, {self.n_classes} classes"
        warned = "".join(f"<p>warning: {escape(text)}</p>" for text in self.warnings)
        return f"<table><caption>{caption}</caption><thead>{head}</thead><tbody>{body}</tbody></table>{warned}"


def estimates_frame(estimates: Mapping[str, Estimate]) -> Any:
    """Return a pandas table of estimates by metric."""
    import pyarrow as pa

    whole = {"n": pa.int64(), "dropped": pa.int64(), "clipped": pa.bool_()}
    columns = {"metric": pa.array(list(estimates))}
    for name in (f.name for f in fields(Estimate) if f.name not in {"model_assisted", "p_of_fall"}):
        values = [getattr(estimate, name) for estimate in estimates.values()]
        columns[name] = pa.array(values, whole.get(name, pa.float64()))
    return pa.table(columns).to_pandas().set_index("metric")


def metrics_table(document: MetricsDocument) -> str:
    """Text table of an evaluation, with intervals, for people."""
    lines = [f"{document['n_cases']:,} cases, {document['n_labels']:,} labels, {document['n_classes']} classes"]
    metrics = without_long_names(document["metrics"])
    width = max(12, 1 + max(map(len, metrics), default=0))
    others = any(row["low_new"] is not None for row in metrics.values())
    head = f"{'for new annotators':>22}" if others else ""
    lines.append(f"{'metric':<{width}}{'value':>10}{'95 % interval':>22}{head}{'cases':>9}{'dropped':>9}")
    for name, row in metrics.items():
        new = "–" if row["low_new"] is None else f"{row['low_new']:z.4f} to {row['high_new']:z.4f}"
        also = f"{new:>22}" if others else ""
        lines.append(
            f"{name:<{width}}{_number(row['value']):>10}{_interval(row):>22}{also}{row['n']:>9,}{row['dropped']:>9,}"
        )
    return "\n".join(lines + [f"warning: {text}" for text in document["warnings"]])


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:z.4f}"


def _interval(row: EstimateDocument) -> str:
    return "–" if row["low"] is None else f"{row['low']:z.4f} to {row['high']:z.4f}"


#: Below this effective sample size a weighted estimate is warned about.
SMALL_ESS = 100


def evaluate(
    label_counts: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    disagreement_probs: npt.ArrayLike | None = None,
    *,
    first_label_counts: npt.ArrayLike | None = None,
    readings: Readings | None = None,
    n_bins: int = 15,
    debias: Debias = "pair",
    sample_weight: SampleWeight = None,
    cluster: npt.ArrayLike | None = None,
    classes: list[str] | None = None,
) -> Evaluation:
    """Every metric over one set of predictions.

    Args:
        label_counts: (N, K) label histograms; a case without labels is counted as dropped.
        class_probs: (N, K) class probability estimates.
        disagreement_probs: (N,) DPEs; 1 − Σf² where left out.
        first_label_counts: (N, K) those of the labels that metrics which need one label use, such as the answers to
            the first planned read of each case; all where left out.
        readings: who gave which label, for the intervals for new readers (``low_new``, ``high_new``).
        n_bins: equal-width bins of [0, 1].
        debias: form of CL: ``pair``, ``paper``, or ``none``, which uses the plug-in for EL and DL as well.
        sample_weight: (N,) inverse probabilities of having labels, or a pair of these: of having one at least, for L,
            skill, agreement, CL and CE, and of having two at least, for all the others.
        cluster: (N,) patient of each case.
        classes: K names.

    Returns:
        Counts, metrics, reliability tables of each class and of disagreement, warnings; its ``to_dict()`` is the
        JSON document of ``secondread evaluate --json``.

    Raises:
        ValueError: shapes that do not match or values out of range.
    """
    given = (label_counts, class_probs, sample_weight, cluster, classes, first_label_counts)
    first, second = check_both_orders(*given, disagreement_probs=disagreement_probs)
    n_cases, n_classes = first.counts.shape
    names = first.classes or [str(k) for k in range(n_classes)]
    if len(names) != n_classes:
        raise ValueError(f"classes must name {n_classes} classes, got {len(names)}")
    phi = gini(first.probs) if disagreement_probs is None else disagreement_probs
    dpe = as_vector(phi, n_cases, "disagreement_probs", 0.0, 1.0)
    source = ArraySource(first, second, dpe, {debias, "none"}, n_bins=n_bins, joining=True, readings=readings)
    metrics, labelled, paired = metric_estimates(source, debias), source.labelled, source.paired
    if n_cases and (first.weight is not None or second.weight is not None):
        metrics = _with_weighted_forms(metrics, source, debias)
    return Evaluation(
        n_cases=n_cases,
        n_labels=int(second.counts.sum()),
        n_classes=n_classes,
        n_bins=n_bins,
        debias=debias,
        metrics=metrics,
        classes=_per_class(names, source, debias),
        class_bins=labelled.binned.diagram(),
        disagreement_bins=source.disagreement.diagram(),
        warnings=(
            *_warnings(labelled.sample, paired.sample, *(w is not None for w in weights_by_order(sample_weight))),
            *_too_few_readers(source),
            *evaluation_warnings(metrics, paired.sample.n_clusters, paired.sample.rows.size, source.disagreements()),
        ),
    )


def _with_weighted_forms(metrics: Estimates, source: ArraySource, debias: Debias) -> Estimates:
    totals, assisted = _horvitz_thompson(metrics, source, debias), _model_assisted(source, debias)
    weighted = {1: source.first.weight is not None, 2: True, 3: True}
    return metrics | {
        name: replace(
            estimate,
            horvitz_thompson=_finite(totals[name]) if name in totals else None,
            largest_weight=float(source.sample(min(BY_NAME[name].order, 2)).weight.max(initial=0.0)),
            model_assisted=assisted.get(name),
        )
        for name, estimate in metrics.items()
        if weighted[BY_NAME[name].order]
    }


def _horvitz_thompson(metrics: dict[str, Estimate], source: ArraySource, debias: Debias) -> dict[str, float]:
    data, n_bins, n_cases = source.first, source.n_bins, len(source.dpe)
    totals = {
        name: metrics[name].value * source.sample(BY_NAME[name].order).total_weight / n_cases
        for name in ("agreement", "L", "EL", "EL_plugin", "L_D")
    }
    if debias != "pair":
        return totals
    everyone = data.sample(0)
    by_class = PairCounts.of(everyone.take(data.probs), everyone, n_bins)
    totals["CL"] = source.labelled.binned.horvitz_thompson(by_class)
    totals["CL_paired"] = source.paired.binned.horvitz_thompson(by_class)
    by_disagreement = PairCounts.of(everyone.take(source.dpe)[:, None], everyone, n_bins)
    totals["CL_D"] = source.disagreement.horvitz_thompson(by_disagreement)
    return totals | {"DL": totals["EL"] - totals["CL_paired"]}


def _model_assisted(source: ArraySource, debias: Debias) -> dict[str, ModelAssisted | None]:
    data, labelled, paired = source.first, source.labelled, source.paired
    everyone = replace(data, weight=None).sample(0)
    features = prediction_features(data.probs, source.dpe)
    losses = labelled.terms["L"], paired.terms["L"]
    two_phase = TwoPhaseSample(features, everyone, labelled.sample, paired.sample, *losses)
    plugin, disagreement = (paired.terms["EL_plugin"], SQUARED_LOSS, False), (paired.terms["L_D"], SHARE, False)
    epistemic = (paired.terms["EL"] - losses[1], MINUS_DISAGREEMENT, True) if is_debiased(debias) else plugin
    forms: dict[str, ModelAssisted | None] = {"L": two_phase.of_order_1(losses[0], SQUARED_LOSS)}
    pairs = two_phase.of_order_2(epistemic, plugin, disagreement)
    return forms | dict(zip(("EL", "EL_plugin", "L_D"), pairs, strict=True))


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _per_class(names: list[str], source: ArraySource, debias: Debias) -> tuple[ClassEvaluation, ...]:
    binned, paired = source.labelled.binned, source.paired
    total = paired.sample.total_weight
    plugin, correction = paired.class_terms
    terms = plugin if debias == "none" else plugin - correction
    return tuple(
        ClassEvaluation(
            name,
            calibration_loss=_finite(binned.value(debias, k)),
            epistemic_loss=_finite(float(terms[k]) / total) if total > 0 else None,
            bins=binned.diagram(k),
        )
        for k, name in enumerate(names)
    )


def _too_few_readers(source: ArraySource) -> list[str]:
    known, known2 = (source.readers_of(order) is not None for order in (1, 2))
    if source.readings is None or source.sample(1).rows.size == 0 or (known and known2):
        return []
    whose = "" if not known or not source.sample(2).rows.size else Message("cells with two labels and ")
    return [
        Message(
            "fewer than three annotators labelled {whose}several cells or patients: intervals "
            "apply to these annotators only",
            whose=whose,
        )
    ]


def _warnings(labelled: Sample, paired: Sample, weighted: bool, weighted2: bool) -> tuple[str, ...]:
    texts = []
    if labelled.rows.size == 0:
        texts.append(Message("no cell has a label: every metric is empty"))
    if paired.rows.size == 0:
        texts.append(Message("no cell has two labels: EL, DL and every disagreement metric are empty"))
    if weighted and not weighted2:
        texts.append(Message("order-2 metrics use the order-1 weights, since no order-2 weights were given"))
    for sample, order in ((labelled, 1), (paired, 2)):
        if (weighted or (weighted2 and order == 2)) and 0 < sample.ess < SMALL_ESS:
            texts.append(
                Message(
                    "effective sample size {ess:.0f} of order-{order} metrics is below {small_ess} (largest "
                    "weight {largest:.3g})",
                    ess=sample.ess,
                    order=order,
                    small_ess=SMALL_ESS,
                    largest=sample.heaviest,
                )
            )
        if sample.cluster is not None and sample.n_clusters < 2:
            texts.append(Message("fewer than two clusters for order-{order} metrics: no standard error", order=order))
    return tuple(texts)


#: Groups with cases below which a warning is given: an interval does not hold.
FEW_GROUPS = 10


@dataclass(frozen=True)
class GroupEvaluation:
    """Evaluation from sums over groups."""

    metrics: Estimates  # by the names of ``evaluate``
    warnings: tuple[str, ...]  # what a reader of the estimates must know


def evaluate_groups(
    first: GroupSums, second: GroupSums, debias: Debias = "pair", weighted: tuple[bool, bool] = (False, False)
) -> GroupEvaluation:
    """Every metric of ``evaluate`` with its 95 % interval; whether there are weights of each order."""
    source = GroupSource(first, second, debias)
    estimates = metric_estimates(source, debias)
    metrics = Estimates()
    for metric in METRICS:
        sample = source.sample(metric.order)
        # an estimate counts groups as its cases
        metrics[metric.name] = replace(estimates[metric.name], n=sample.n, dropped=sample.dropped, ess=sample.ess)
    paired = source.sample(2)
    own = evaluation_warnings(metrics, paired.n_clusters, paired.n, source.disagreements())
    warnings = (*_warnings(source.sample(1), paired, *weighted), *_few_groups(source, first.n_units), *own)
    return GroupEvaluation(metrics, warnings)


def _few_groups(source: GroupSource, n_groups: int) -> list[str]:
    texts = []
    for sample, labels in ((source.sample(1), "a label"), (source.sample(2), "two labels")):
        if 0 < sample.n_clusters < FEW_GROUPS:
            fallen = f"{sample.n_clusters} of {n_groups} groups that are left out in turn"
            texts.append(f"cells with {labels} fall into {fallen}: too few for intervals that hold")
    return texts


#: Share of the weight in bins that CL cannot use, above which it is named.
UNUSABLE_SHARE = 0.05
#: Chance with which a perfect prediction is called impossible.
_LEVEL = 0.001
# pairs of equal labels below which no pair at all may be equal by chance
_FEWEST_PAIRS = 20
_ROUNDING = 1e-9
#: A skill below minus this is called worse.
_SMALLEST_HARM = 0.01
_CLASSES = messages(
    {
        True: "the class probabilities are worse than the class frequencies "
        "({name} {value:.3f}, {low:.3f} to {high:.3f})",
        False: "the class probabilities are no better than the class frequencies so far "
        "({name} {value:.3f}, {low:.3f} to {high:.3f})",
    }
)
_DISAGREEMENT = messages(
    {
        True: "the disagreement probability is worse than a constant ({name} {value:.3f}, {low:.3f} to {high:.3f})",
        False: "the disagreement probability is no better than a constant so far "
        "({name} {value:.3f}, {low:.3f} to {high:.3f})",
    }
)


def evaluation_warnings(metrics: dict[str, Estimate], n_clusters: int, n_pairs: int, n_differ: float) -> list[str]:
    """Warnings that follow from the estimates, and from how many pairs of labels there are and differ."""
    impossible = _impossible(metrics["DL"], n_clusters) if n_pairs - n_differ >= _FEWEST_PAIRS else []
    return [*_few_disagreements(n_pairs, n_differ), *impossible, *_unusable_bins(metrics), *_without_skill(metrics)]


def _few_disagreements(n_pairs: int, n_differ: float) -> list[str]:
    if n_pairs == 0 or n_differ >= FEW_EVENTS:
        return []
    return [
        Message(
            "fewer than ten disagreements ({n_differ:.3g} in {n_pairs:,} cells): intervals rest on the range "
            "of the losses",
            n_differ=n_differ,
            n_pairs=n_pairs,
        )
    ]


def _impossible(dispersion: Estimate, n_clusters: int) -> list[str]:
    """Warning of a DL below zero, which no honest prediction has."""
    if dispersion.se is None:
        return []
    high = dispersion.value + float(stdtrit(n_clusters - 1, 1 - _LEVEL)) * dispersion.se
    if not high < -_ROUNDING:
        return []
    return [
        Message(
            "DL is {value:.4f} ({low:.4f} to {high:.4f}), which is impossible for independent "
            "predictions: were they fitted on these labels?",
            value=dispersion.value,
            low=dispersion.low,
            high=dispersion.high,
        )
    ]


def _unusable_bins(metrics: dict[str, Estimate]) -> list[str]:
    texts: list[str] = []
    for name in ("CL", "CL_paired", "CL_D"):
        lonely = metrics[name].singleton_mass
        if lonely > UNUSABLE_SHARE and isnan(metrics[name].value):
            texts.append(
                Message(
                    "{name} is undefined: no bin contains two cells (or two patients); use fewer bins or more data",
                    name=name,
                )
            )
        elif lonely > UNUSABLE_SHARE:
            texts.append(
                Message(
                    "{singleton_mass:.0%} of the weight of {name} is in bins with one cell (or one "
                    "patient), which add nothing or join the next bin: use fewer bins",
                    singleton_mass=lonely,
                    name=name,
                )
            )
    return texts


def _without_skill(metrics: dict[str, Estimate]) -> list[str]:
    texts: list[str] = []
    for name, sentences in (("skill", _CLASSES), ("skill_D", _DISAGREEMENT)):
        estimate = metrics[name]
        if estimate.low is None or estimate.high is None or not np.isfinite(estimate.value) or estimate.low > 0:
            continue
        document = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
        texts.append(Message(sentences[estimate.high < 0 and estimate.value <= -_SMALLEST_HARM], name=name, **document))
    return texts
