"""Every metric over one set of predictions as one document: what ``secondread evaluate --json`` prints.

With inverse selection probabilities as weights the estimates are Hájek means, Σwx / Σw; the Horvitz–Thompson form,
which divides by the number of all cases instead, is given next to them. Where the two differ much, the weights are
too uneven, or the selection was not what they say.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ml.arrays import FloatArray, as_vector
from ml.distributions.families import gini
from ml.metrics.binning import Debias, Slots
from ml.metrics.cautions import cautions
from ml.metrics.evaluation import ClassEvaluation, Evaluation
from ml.metrics.histograms import CaseTerms, class_frequencies, statistic_terms
from ml.metrics.inputs import Inputs, check_inputs, check_weights, first_labels
from ml.metrics.intervals import SHARE, SQUARED_LOSS
from ml.metrics.jackknife import Estimate, Sample, mean_replicates, root, to_estimate
from ml.metrics.model_assisted import Known, prediction_features
from ml.metrics.reliability import Binned, PairCounts
from ml.metrics.skill import frequency_loss, rate_loss, skill_replicates
from ml.named_columns import same_rows

#: Below this effective sample size a weighted estimate is warned about.
SMALL_ESS = 100


def evaluate(
    label_counts: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    disagreement_probs: npt.ArrayLike | None = None,
    *,
    first_label_counts: npt.ArrayLike | None = None,
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
        n_bins: equal-width bins of [0, 1].
        debias: form of CL; None takes the plug-in of EL and DL too.
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
    given = gini(first.probs) if disagreement_probs is None else disagreement_probs
    dpe = as_vector(given, n_cases, "disagreement_probs", 0.0, 1.0)
    if first_label_counts is not None:
        first = first_labels(first, first_label_counts, class_probs, classes)
    labelled, paired = _Used.of(first, 1, n_bins, debias), _Used.of(second, 2, n_bins, debias)
    observed, kept = paired.terms.observed_disagreement[:, None], dpe[paired.sample.rows][:, None]
    binned_dpe = Binned.of(observed, kept, paired.sample, n_bins, "uniform", debias, joining=True)
    metrics = _class_metrics(labelled, debias) | _paired_metrics(paired, debias)
    metrics |= _disagreement_metrics(paired.sample, observed[:, 0], kept[:, 0], binned_dpe, debias)
    metrics |= _simple_rules(paired, kept[:, 0])
    metrics["accuracy"] = _accuracy(second.sample(3), paired.terms)
    if n_cases > 0 and (weights is not None or weights2 is not None):
        pairs = {} if debias != "pair" else _pair_forms(first, dpe, labelled, paired, binned_dpe, n_bins)
        metrics = _with_horvitz_thompson(metrics, pairs, labelled.sample, paired.sample)
        metrics |= _model_assisted(metrics, first, dpe, labelled, paired, debias)
    return Evaluation(
        n_cases=n_cases,
        n_labels=int(second.counts.sum()),
        n_classes=n_classes,
        n_bins=n_bins,
        debias=debias or "none",
        metrics=metrics,
        classes=_per_class(names, labelled, paired, debias),
        class_bins=labelled.binned.diagram(),
        disagreement_bins=binned_dpe.diagram(),
        warnings=(
            *_warnings(labelled.sample, paired.sample, weights is not None, weights2 is not None),
            *cautions(metrics, paired.sample),
        ),
    )


@dataclass(frozen=True)
class _Used:
    """The n cases that metrics of one order may use, and what these follow from.

    Attributes:
        sample: the cases.
        binned: label frequencies and probabilities by class.
        terms: of the means over cases.
        class_terms: (2, K) sums over cases of w(μ̂ − z)² and, of cases with two labels, wμ̂(1 − μ̂)/(n − 1).
    """

    sample: Sample
    binned: Binned
    terms: CaseTerms
    class_terms: FloatArray

    @classmethod
    def of(cls, data: Inputs, min_labels: int, n_bins: int, debias: Debias) -> "_Used":
        """One pass over the cases with that many labels."""
        sample = data.sample(min_labels)
        binned = Binned.empty(sample, Slots.of(data.probs[:0], n_bins, "uniform"), debias, joining=True)
        parts, class_terms = [], np.zeros((2, data.probs.shape[1]))
        for part in binned.chunks():
            rows, weight = sample.rows[part], sample.weight[part]
            counts, probs = data.counts[rows], data.probs[rows]
            freqs = class_frequencies(counts)
            gap = binned.add(part, freqs, probs).gap
            terms = CaseTerms.of(counts, probs, freqs, gap)
            class_terms[0] += weight @ gap**2
            class_terms[1] += (weight / np.maximum(terms.n_labels - 1, 1)) @ (freqs * (1 - freqs))
            parts.append(terms)
        return cls(sample, binned, CaseTerms.joined(parts), class_terms)


def _class_metrics(labelled: _Used, debias: Debias) -> dict[str, Estimate]:
    sample, calibration = labelled.sample, labelled.binned.estimate(debias)
    loss = mean_replicates(labelled.terms.loss, sample)
    constant = frequency_loss(labelled.binned.frequency_totals(), labelled.binned.frequency_sums(), sample)
    return {
        "agreement": to_estimate(mean_replicates(labelled.terms.agreement, sample), sample, bounds=SHARE),
        "L": to_estimate(loss, sample, bounds=SQUARED_LOSS),
        "skill": to_estimate(skill_replicates(loss, constant), sample),
        "CL": calibration,
        "CL_plugin": labelled.binned.estimate(None),
        "CE": root(calibration),
    }


def _accuracy(many: Sample, paired: CaseTerms) -> Estimate:
    """Accuracy on the cases with three labels, which stand among those with two in the same order."""
    return to_estimate(mean_replicates(paired.hits[paired.n_labels >= 3], many), many, bounds=SHARE)


def _paired_metrics(paired: _Used, debias: Debias) -> dict[str, Estimate]:
    sample = paired.sample
    plugin = epistemic = mean_replicates(paired.terms.plugin, sample)
    plain = calibration = paired.binned.replicates(None)
    if debias is not None:
        epistemic = mean_replicates(paired.terms.epistemic, sample)
        calibration = paired.binned.replicates(debias)
    lonely = paired.binned.singleton_mass(debias)
    return {
        "EL": to_estimate(epistemic, sample),
        "EL_plugin": to_estimate(plugin, sample, bounds=SQUARED_LOSS),
        "CL_paired": to_estimate(calibration, sample, lonely),
        "DL": to_estimate(epistemic - calibration, sample, lonely),
        "DL_plugin": to_estimate(plugin - plain, sample),
    }


def _disagreement_metrics(
    sample: Sample, observed: FloatArray, dpe: FloatArray, binned: Binned, debias: Debias
) -> dict[str, Estimate]:
    calibration, loss = binned.estimate(debias), mean_replicates(statistic_terms(observed, dpe), sample)
    return {
        "L_D": to_estimate(loss, sample, bounds=SHARE),
        "skill_D": to_estimate(skill_replicates(loss, rate_loss(observed, sample)), sample),
        "CL_D": calibration,
        "CL_D_plugin": binned.estimate(None),
        "CE_D": root(calibration),
    }


def _simple_rules(paired: _Used, dpe: FloatArray) -> dict[str, Estimate]:
    """L_φ less that of each simple rule on the same cases; negative is better."""
    sample, observed = paired.sample, paired.terms.observed_disagreement
    loss = statistic_terms(observed, dpe)
    return {
        f"L_D_minus_{name}": to_estimate(mean_replicates(loss - statistic_terms(observed, rule), sample), sample)
        for name, rule in paired.terms.simple_rules().items()
    }


#: Means over cases, by the number of labels that they need.
_MEANS = {"agreement": 1, "L": 1, "EL": 2, "EL_plugin": 2, "L_D": 2}


def _pair_forms(
    data: Inputs, dpe: FloatArray, labelled: _Used, paired: _Used, binned_dpe: Binned, n_bins: int
) -> dict[str, float]:
    """Horvitz–Thompson values of CL and CL_D, by the pairs that all cases would make."""
    everyone = data.sample(0)
    by_class = PairCounts.of(everyone.take(data.probs), everyone, n_bins)
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
    metrics: dict[str, Estimate], data: Inputs, dpe: FloatArray, labelled: _Used, paired: _Used, debias: Debias
) -> dict[str, Estimate]:
    """The means of losses once more, each with its model-assisted form."""
    everyone = replace(data, weight=None).sample(0)
    features = prediction_features(data.probs, dpe)
    known = Known(features, everyone, labelled.sample, labelled.terms.loss, paired.sample)
    first, second = labelled.terms, paired.terms
    epistemic = second.plugin if debias is None else second.epistemic
    disagreement = statistic_terms(second.observed_disagreement, dpe[paired.sample.rows])
    forms = {
        "L": known.of_order_1(first.loss, SQUARED_LOSS),
        "EL": known.of_order_2(epistemic),
        "EL_plugin": known.of_order_2(second.plugin, SQUARED_LOSS),
        "L_D": known.of_order_2(disagreement, SHARE),
    }
    return {name: replace(metrics[name], model_assisted=form) for name, form in forms.items()}


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _per_class(names: list[str], labelled: _Used, paired: _Used, debias: Debias) -> tuple[ClassEvaluation, ...]:
    total = float(paired.sample.weight.sum())
    plugin, correction = paired.class_terms
    terms = plugin if debias is None else plugin - correction
    return tuple(
        ClassEvaluation(
            name,
            calibration_loss=_finite(labelled.binned.value(debias, k)),
            epistemic_loss=_finite(float(terms[k]) / total) if total > 0 else None,
            bins=labelled.binned.diagram(k),
        )
        for k, name in enumerate(names)
    )


def _warnings(labelled: Sample, paired: Sample, weighted: bool, weighted2: bool) -> tuple[str, ...]:
    texts = []
    if labelled.rows.size == 0:
        texts.append("no case has a label: every metric is empty")
    if paired.rows.size == 0:
        texts.append("no case has two labels: EL, DL and every disagreement metric are empty")
    if weighted and not weighted2:
        texts.append("order-2 metrics use the order-1 weights, since no order-2 weights were given")
    for sample, order in ((labelled, 1), (paired, 2)):
        if (weighted or (weighted2 and order == 2)) and 0 < sample.ess < SMALL_ESS:
            texts.append(
                f"effective sample size {sample.ess:.0f} of order-{order} metrics is below {SMALL_ESS} "
                f"(largest weight {sample.weight.max():.3g})"
            )
        if sample.cluster is not None and sample.n_clusters < 2:
            texts.append(f"fewer than two clusters for order-{order} metrics: no standard error")
    return tuple(texts)
