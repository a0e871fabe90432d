"""Complete evaluation document of one set of predictions, as ``secondread evaluate --json`` prints it.

With inverse selection probabilities as weights the estimates are Hájek means, Σwx / Σw; the Horvitz–Thompson form,
which divides by the number of all cases instead, is given next to them. Where the two differ much, the weights are
too uneven, or the selection was not what they say.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt

from ml.dataframes import same_rows
from ml.distributions.families import gini
from ml.messages import Message
from ml.metrics.binning import BinSums, Debias
from ml.metrics.crossed_effects import Readings
from ml.metrics.diagnostics import evaluation_warnings
from ml.metrics.evaluation import ClassEvaluation, Evaluation
from ml.metrics.histograms import CaseTerms, accuracy_terms, observed_disagreement, statistic_terms
from ml.metrics.inputs import Inputs, check_inputs, check_weights, first_labels
from ml.metrics.intervals import SHARE, SQUARED_LOSS, ReaderPart
from ml.metrics.jackknife import Estimate, ModelAssisted, Replicates, Sample, mean_replicates, root, to_estimate
from ml.metrics.metric_inputs import MetricInputs, reading_terms
from ml.metrics.model_assisted import TwoPhaseSample, prediction_features
from ml.metrics.reader_jackknife import LeftOut, calibration_of
from ml.metrics.reader_variance import ReadTerms
from ml.metrics.reliability import Binned, PairCounts
from ml.metrics.skill import frequency_loss, rate_loss, skill_replicates
from ml.util.arrays import FloatArray, IntArray, as_vector

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
    weights: npt.ArrayLike | None = None,
    weights2: npt.ArrayLike | None = None,
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
        weights: (N,) inverse probabilities of having at least one label, for L, skill, agreement, CL and CE.
        weights2: (N,) inverse probabilities of having at least two labels, for all the others.
        cluster: (N,) patient of each case.
        classes: K names.

    Returns:
        Counts, metrics, reliability tables of each class and of disagreement, warnings; its ``to_dict()`` is the
        JSON document of ``secondread evaluate --json``.

    Raises:
        ValueError: shapes that do not match or values out of range.
    """
    columns = {"disagreement_probs": disagreement_probs, "weights": weights, "weights2": weights2, "cluster": cluster}
    columns |= {"first_label_counts": first_label_counts}
    same_rows(label_counts=label_counts, class_probs=class_probs, **columns)
    first = check_inputs(label_counts, class_probs, weights, cluster, classes)
    n_cases, n_classes = first.counts.shape
    second = first if weights2 is None else replace(first, weight=check_weights(weights2, n_cases))
    names = first.classes or [str(k) for k in range(n_classes)]
    if len(names) != n_classes:
        raise ValueError(f"classes must name {n_classes} classes, got {len(names)}")
    dpe = _given(disagreement_probs, first)
    if first_label_counts is not None:
        first = first_labels(first, first_label_counts, class_probs, classes)
    labelled, paired = MetricInputs.of_both_orders(first, second, n_bins, debias, readings)
    observed, kept = paired.terms.observed_disagreement[:, None], paired.sample.take(dpe)[:, None]
    binned_dpe = Binned.of(observed, kept, paired.sample, n_bins, "uniform", debias, joining=True)
    metrics = _metrics(first, second, dpe, labelled, paired, binned_dpe, debias, readings)
    return Evaluation(
        n_cases=n_cases,
        n_labels=int(second.counts.sum()),
        n_classes=n_classes,
        n_bins=n_bins,
        debias=debias,
        metrics=metrics,
        classes=_per_class(names, labelled, paired, debias),
        class_bins=labelled.binned.diagram(),
        disagreement_bins=binned_dpe.diagram(),
        warnings=(
            *_warnings(labelled.sample, paired.sample, weights is not None, weights2 is not None),
            *_too_few_readers(labelled, paired, readings),
            *evaluation_warnings(metrics, paired.sample),
        ),
    )


def _given(disagreement_probs: npt.ArrayLike | None, data: Inputs) -> FloatArray:
    given = gini(data.probs) if disagreement_probs is None else disagreement_probs
    return as_vector(given, len(data.probs), "disagreement_probs", 0.0, 1.0)


def _metrics(
    first: Inputs,
    second: Inputs,
    dpe: FloatArray,
    labelled: MetricInputs,
    paired: MetricInputs,
    binned_dpe: Binned,
    debias: Debias,
    readings: Readings | None,
) -> dict[str, Estimate]:
    """Every metric: those of cases with one label beside those of cases with two."""
    observed, kept = paired.terms.observed_disagreement, paired.sample.take(dpe)
    weighted = len(dpe) > 0 and (first.weight is not None or second.weight is not None)
    metrics = (
        _class_metrics(labelled, debias)
        | _paired_metrics(paired, debias)
        | _disagreement_metrics(paired, observed, kept, binned_dpe, debias)
        | _simple_rules(paired, kept)
        | {"accuracy": _accuracy(second, paired.terms, readings)}
    )
    if not weighted:
        return metrics
    forms = _weighted_forms(first, dpe, labelled, paired, binned_dpe, debias)
    metrics = _with_horvitz_thompson(metrics, forms[0], labelled.sample, paired.sample)
    return metrics | {name: replace(metrics[name], model_assisted=form) for name, form in forms[1].items()}


def _class_metrics(labelled: MetricInputs, debias: Debias) -> dict[str, Estimate]:
    sample, binned = labelled.sample, labelled.binned
    loss = mean_replicates(labelled.terms.loss, sample)
    constant = frequency_loss(binned.frequency_totals(), binned.frequency_sums(), sample)
    calibration, plugin = (_calibration(labelled, form) for form in (debias, "none"))
    return {
        "agreement": to_estimate(
            mean_replicates(labelled.terms.agreement, sample),
            sample,
            bounds=SHARE,
            readers=labelled.readers(ReadTerms.agreement),
        ),
        "L": to_estimate(loss, sample, bounds=SQUARED_LOSS, readers=labelled.readers(lambda reads: reads.squared)),
        "skill": to_estimate(skill_replicates(loss, constant), sample, readers=labelled.readers(ReadTerms.skill)),
        "CL": calibration,
        "CL_plugin": plugin,
        "CE": root(calibration),
    }


def _calibration(used: MetricInputs, debias: Debias) -> Estimate:
    def readers(replicates: Replicates) -> ReaderPart | None:
        return used.without(lambda _: used.calibration_without(debias), replicates)

    return used.binned.estimate(debias, readers, used.calibration[debias])


def _accuracy(second: Inputs, paired: CaseTerms, readings: Readings | None) -> Estimate:
    """Accuracy on the cases with three labels, which stand among those with two in the same order."""
    many = second.sample(3)
    replicates, readers = mean_replicates(paired.hits[paired.n_labels >= 3], many), None
    reads, error = reading_terms(second, many, readings, 3), replicates.standard_error()
    if reads is not None and error is not None:
        left = LeftOut.of(reads.crossed, reads.counts, reads.probs)
        without = left.means(lambda counts, case: accuracy_terms(counts, left.probs[case]), 3)[:, 0]
        readers = left.part(without, error**2)
    return to_estimate(replicates, many, bounds=SHARE, readers=readers)


def _paired_metrics(paired: MetricInputs, debias: Debias) -> dict[str, Estimate]:
    sample = paired.sample
    plugin = epistemic = mean_replicates(paired.terms.plugin, sample)
    plain = calibration = paired.calibration["none"]
    if debias != "none":
        epistemic = mean_replicates(paired.terms.epistemic, sample)
        calibration = paired.calibration[debias]
    lonely = paired.binned.singleton_mass(debias)

    def estimate(replicates: Replicates, form: Debias, lonely: float, *, less: bool) -> Estimate:
        def without(_: LeftOut) -> FloatArray:
            calibrated = paired.calibration_without(form)
            return paired.epistemic_without(debias=form != "none") - calibrated if less else calibrated

        return to_estimate(replicates, sample, lonely, readers=paired.without(without, replicates))

    by_pairs = paired.readers(lambda reads: reads.epistemic(debias != "none"), 2)
    by_all = paired.readers(lambda reads: reads.epistemic(False), 2)
    return {
        "EL": to_estimate(epistemic, sample, readers=by_pairs),
        "EL_plugin": to_estimate(plugin, sample, bounds=SQUARED_LOSS, readers=by_all),
        "CL_paired": estimate(calibration, debias, lonely, less=False),
        "DL": estimate(epistemic - calibration, debias, lonely, less=True),
        "DL_plugin": estimate(plugin - plain, "none", 0.0, less=True),
    }


def _disagreement_metrics(
    paired: MetricInputs, observed: FloatArray, dpe: FloatArray, binned: Binned, debias: Debias
) -> dict[str, Estimate]:
    sample, loss = paired.sample, mean_replicates(statistic_terms(observed, dpe), paired.sample)

    @cache
    def bins_without(left: LeftOut) -> BinSums:
        return left.bins(_pairs_that_differ, dpe[:, None], 2, binned.slots, binned.bins)

    def calibration(form: Debias) -> Estimate:
        def without(left: LeftOut) -> FloatArray:
            return calibration_of(bins_without(left), 1, form)

        return binned.estimate(form, lambda replicates: paired.without(without, replicates))

    debiased, skill = calibration(debias), skill_replicates(loss, rate_loss(observed, sample))
    return {
        "L_D": to_estimate(loss, sample, bounds=SHARE, readers=paired.readers(lambda reads: reads.statistic(dpe), 2)),
        "skill_D": to_estimate(skill, sample, readers=paired.readers(lambda reads: reads.disagreement_skill(dpe), 2)),
        "CL_D": debiased,
        "CL_D_plugin": calibration("none"),
        "CE_D": root(debiased),
    }


def _pairs_that_differ(counts: IntArray, case: npt.NDArray[np.intp]) -> FloatArray:
    return observed_disagreement(counts)[:, None]


def _simple_rules(paired: MetricInputs, dpe: FloatArray) -> dict[str, Estimate]:
    """L_φ less that of each simple rule on the same cases; negative is better."""
    sample, observed = paired.sample, paired.terms.observed_disagreement
    loss = statistic_terms(observed, dpe)

    def less(rule: FloatArray) -> Estimate:
        readers = paired.readers(lambda reads: reads.statistic(dpe) - reads.statistic(rule), 2)
        return to_estimate(mean_replicates(loss - statistic_terms(observed, rule), sample), sample, readers=readers)

    return {f"L_D_minus_{name}": less(rule) for name, rule in paired.terms.simple_rules().items()}


#: Means over cases, by the number of labels that they need.
_MEANS = {"agreement": 1, "L": 1, "EL": 2, "EL_plugin": 2, "L_D": 2}


def _weighted_forms(
    data: Inputs, dpe: FloatArray, labelled: MetricInputs, paired: MetricInputs, binned_dpe: Binned, debias: Debias
) -> tuple[dict[str, float], dict[str, ModelAssisted | None]]:
    """Horvitz–Thompson values by pairs, and model-assisted means, beside the weighted values."""
    # Horvitz–Thompson values by pairs, and model-assisted means.
    pairs = _pair_forms(data, dpe, labelled, paired, binned_dpe) if debias == "pair" else {}
    return pairs, _model_assisted(data, dpe, labelled, paired, debias)


def _pair_forms(
    data: Inputs, dpe: FloatArray, labelled: MetricInputs, paired: MetricInputs, binned_dpe: Binned
) -> dict[str, float]:
    """Horvitz–Thompson values of CL and CL_D, by the pairs that all cases would make."""
    everyone, n_bins = data.sample(0), len(binned_dpe.slots)
    if labelled.sample.dropped:
        by_class = PairCounts.of(everyone.take(data.probs), everyone, n_bins)
    else:
        by_class = PairCounts.of_binned(labelled.binned)
    return {
        "CL": labelled.binned.horvitz_thompson(by_class),
        "CL_paired": paired.binned.horvitz_thompson(by_class),
        "CL_D": binned_dpe.horvitz_thompson(PairCounts.of(everyone.take(dpe)[:, None], everyone, n_bins)),
    }


def _with_horvitz_thompson(
    metrics: dict[str, Estimate], pairs: dict[str, float], labelled: Sample, paired: Sample
) -> dict[str, Estimate]:
    """Add the Horvitz–Thompson form to means and, in the pair form, to CL, CL_D and DL."""
    n_cases = labelled.rows.size + labelled.dropped
    forms = dict(pairs)
    for name, order in _MEANS.items():
        forms[name] = metrics[name].value * float((labelled if order == 1 else paired).weight.sum()) / n_cases
    if "CL_paired" in forms:
        forms["DL"] = forms["EL"] - forms["CL_paired"]
    return {
        name: replace(
            estimate,
            horvitz_thompson=_finite(forms[name]) if name in forms else None,
            largest_weight=float((labelled if name in FIRST_ORDER else paired).weight.max(initial=0.0)),
        )
        for name, estimate in metrics.items()
    }


#: Metrics of cases with one label, to which order-1 weights belong; all others take order-2 weights.
FIRST_ORDER = ("agreement", "L", "skill", "CL", "CL_plugin", "CE")


def _model_assisted(
    data: Inputs, dpe: FloatArray, labelled: MetricInputs, paired: MetricInputs, debias: Debias
) -> dict[str, ModelAssisted | None]:
    """The model-assisted form of each mean of losses; None where there is none."""
    everyone = replace(data, weight=None).sample(0)
    features = prediction_features(data.probs, dpe)
    two_phase = TwoPhaseSample(features, everyone, labelled.sample, labelled.terms.loss, paired.sample)
    first, second = labelled.terms, paired.terms
    epistemic = second.plugin if debias == "none" else second.epistemic
    disagreement = statistic_terms(second.observed_disagreement, dpe[paired.sample.rows])
    losses = ((epistemic, None), (second.plugin, SQUARED_LOSS), (disagreement, SHARE))
    forms: dict[str, ModelAssisted | None] = {"L": two_phase.of_order_1(first.loss, SQUARED_LOSS)}
    return forms | dict(zip(("EL", "EL_plugin", "L_D"), two_phase.of_order_2(*losses), strict=True))


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _per_class(
    names: list[str], labelled: MetricInputs, paired: MetricInputs, debias: Debias
) -> tuple[ClassEvaluation, ...]:
    total = float(paired.sample.weight.sum())
    plugin, correction = paired.class_terms
    terms = plugin if debias == "none" else plugin - correction
    return tuple(
        ClassEvaluation(
            name,
            calibration_loss=_finite(labelled.binned.value(debias, k)),
            epistemic_loss=_finite(float(terms[k]) / total) if total > 0 else None,
            bins=labelled.binned.diagram(k),
        )
        for k, name in enumerate(names)
    )


def _too_few_readers(labelled: MetricInputs, paired: MetricInputs, readings: Readings | None) -> list[str]:
    """A sentence where nothing can be said about new readers."""
    if readings is None or labelled.sample.rows.size == 0 or (labelled.reads is not None and paired.reads is not None):
        return []
    whose = (
        "" if labelled.reads is None or not paired.sample.rows.size else Message("cases that were labelled twice, and ")
    )
    return [
        Message(
            "fewer than three annotators labelled {whose}several cases or patients: intervals are for "
            "these annotators, there is none for new ones",
            whose=whose,
        )
    ]


def _warnings(labelled: Sample, paired: Sample, weighted: bool, weighted2: bool) -> tuple[str, ...]:
    texts = []
    if labelled.rows.size == 0:
        texts.append(Message("no case has a label: every metric is empty"))
    if paired.rows.size == 0:
        texts.append(Message("no case has two labels: EL, DL and every disagreement metric are empty"))
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
                    largest=sample.weight.max(),
                )
            )
        if sample.cluster is not None and sample.n_clusters < 2:
            texts.append(Message("fewer than two clusters for order-{order} metrics: no standard error", order=order))
    return tuple(texts)
