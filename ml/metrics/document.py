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
from ml.metrics.evaluation import ClassEvaluation, Evaluation
from ml.metrics.histograms import CaseTerms, class_frequencies, statistic_terms
from ml.metrics.inputs import Inputs, check_inputs, check_weights
from ml.metrics.jackknife import Estimate, Sample, mean_replicates, root, to_estimate
from ml.metrics.reliability import Binned, PairCounts

#: Below this effective sample size a weighted estimate is warned about.
SMALL_ESS = 100


def evaluate(
    label_counts: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    disagreement_probs: npt.ArrayLike | None = None,
    *,
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
        n_bins: equal-width bins of [0, 1].
        debias: form of CL; None takes the plug-in of EL and DL too.
        weights: (N,) inverse probabilities of having at least one label, for L, CL, CE and accuracy.
        weights2: (N,) inverse probabilities of having at least two labels, for all the others.
        cluster: (N,) patient of each case.
        classes: K names.

    Returns:
        Counts, metrics, reliability tables of each class and of disagreement, warnings; its ``to_dict()`` is the
        JSON document of ``secondread evaluate --json``.

    Raises:
        ValueError: shapes that do not match or values out of range.
    """
    first = check_inputs(label_counts, class_probs, weights, cluster, classes)
    n_cases, n_classes = first.counts.shape
    second = first if weights2 is None else replace(first, weight=check_weights(weights2, n_cases))
    names = first.classes or [str(k) for k in range(n_classes)]
    if len(names) != n_classes:
        raise ValueError(f"classes must name {n_classes} classes, got {len(names)}")
    given = gini(first.probs) if disagreement_probs is None else disagreement_probs
    dpe = as_vector(given, n_cases, "disagreement_probs", 0.0, 1.0)
    one, two = _Used.of(first, 1, n_bins, debias), _Used.of(second, 2, n_bins, debias)
    observed, kept = two.terms.observed_disagreement[:, None], dpe[two.sample.rows][:, None]
    binned_dpe = Binned.of(observed, kept, two.sample, n_bins, "uniform", debias)
    metrics = _class_metrics(one, debias) | _paired_metrics(two, debias)
    metrics |= _disagreement_metrics(two.sample, observed[:, 0], kept[:, 0], binned_dpe, debias)
    if n_cases > 0 and (weights is not None or weights2 is not None):
        pairs = {} if debias != "pair" else _pair_forms(first, dpe, one, two, binned_dpe, n_bins)
        metrics = _with_horvitz_thompson(metrics, pairs, one.sample, two.sample)
    return Evaluation(
        n_cases=n_cases,
        n_labels=int(first.counts.sum()),
        n_classes=n_classes,
        n_bins=n_bins,
        debias=debias or "none",
        metrics=metrics,
        classes=_per_class(names, one, two, debias),
        class_bins=one.binned.diagram(),
        disagreement_bins=binned_dpe.diagram(),
        warnings=_warnings(one.sample, two.sample, weights is not None, weights2 is not None),
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
        binned = Binned.empty(sample, Slots.of(data.probs[:0], n_bins, "uniform"), debias)
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


def _class_metrics(one: _Used, debias: Debias) -> dict[str, Estimate]:
    calibration = one.binned.estimate(debias)
    return {
        "L": to_estimate(mean_replicates(one.terms.loss, one.sample), one.sample),
        "CL": calibration,
        "CL_plugin": one.binned.estimate(None),
        "CE": root(calibration),
        "accuracy": to_estimate(mean_replicates(one.terms.hits, one.sample), one.sample),
    }


def _paired_metrics(two: _Used, debias: Debias) -> dict[str, Estimate]:
    sample = two.sample
    plugin = epistemic = mean_replicates(two.terms.plugin, sample)
    plain = calibration = two.binned.replicates(None)
    if debias is not None:
        epistemic = mean_replicates(two.terms.epistemic, sample)
        calibration = two.binned.replicates(debias)
    lonely = two.binned.singleton_mass(debias)
    return {
        "EL": to_estimate(epistemic, sample),
        "EL_plugin": to_estimate(plugin, sample),
        "CL_paired": to_estimate(calibration, sample, lonely),
        "DL": to_estimate(epistemic - calibration, sample, lonely),
        "DL_plugin": to_estimate(plugin - plain, sample),
    }


def _disagreement_metrics(
    sample: Sample, observed: FloatArray, dpe: FloatArray, binned: Binned, debias: Debias
) -> dict[str, Estimate]:
    calibration = binned.estimate(debias)
    return {
        "L_D": to_estimate(mean_replicates(statistic_terms(observed, dpe), sample), sample),
        "CL_D": calibration,
        "CL_D_plugin": binned.estimate(None),
        "CE_D": root(calibration),
    }


#: Means over cases, by the number of labels that they need.
_MEANS = {"L": 1, "accuracy": 1, "EL": 2, "EL_plugin": 2, "L_D": 2}


def _pair_forms(
    data: Inputs, dpe: FloatArray, one: _Used, two: _Used, binned_dpe: Binned, n_bins: int
) -> dict[str, float]:
    """Horvitz–Thompson values of CL and CL_D, by the pairs that all cases would make."""
    everyone = data.sample(0)
    by_class = PairCounts.of(everyone.take(data.probs), everyone, n_bins)
    return {
        "CL": one.binned.horvitz_thompson(by_class),
        "CL_paired": two.binned.horvitz_thompson(by_class),
        "CL_D": binned_dpe.horvitz_thompson(PairCounts.of(everyone.take(dpe)[:, None], everyone, n_bins)),
    }


def _with_horvitz_thompson(
    metrics: dict[str, Estimate], pairs: dict[str, float], one: Sample, two: Sample
) -> dict[str, Estimate]:
    """Add the Horvitz–Thompson form to means and, in the pair form, to CL, CL_D and DL."""
    n_cases = one.rows.size + one.dropped
    forms = dict(pairs)
    for name, order in _MEANS.items():
        forms[name] = metrics[name].value * float((one if order == 1 else two).weight.sum()) / n_cases
    if "CL_paired" in forms:
        forms["DL"] = forms["EL"] - forms["CL_paired"]
    return {
        name: replace(
            estimate,
            horvitz_thompson=_finite(forms[name]) if name in forms else None,
            largest_weight=float((one if name in _FIRST_ORDER else two).weight.max(initial=0.0)),
        )
        for name, estimate in metrics.items()
    }


_FIRST_ORDER = {"L", "CL", "CL_plugin", "CE", "accuracy"}


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _per_class(names: list[str], one: _Used, two: _Used, debias: Debias) -> tuple[ClassEvaluation, ...]:
    total = float(two.sample.weight.sum())
    plugin, correction = two.class_terms
    terms = plugin if debias is None else plugin - correction
    return tuple(
        ClassEvaluation(
            name,
            calibration_loss=_finite(one.binned.value(debias, k)),
            epistemic_loss=_finite(float(terms[k]) / total) if total > 0 else None,
            bins=one.binned.diagram(k),
        )
        for k, name in enumerate(names)
    )


def _warnings(one: Sample, two: Sample, weighted: bool, weighted2: bool) -> tuple[str, ...]:
    texts = []
    if one.rows.size == 0:
        texts.append("no case has a label: every metric is empty")
    if two.rows.size == 0:
        texts.append("no case has two labels: EL, DL and every disagreement metric are empty")
    if weighted and not weighted2:
        texts.append("order-2 metrics use the order-1 weights, since no order-2 weights were given")
    for sample, order in ((one, 1), (two, 2)):
        if (weighted or (weighted2 and order == 2)) and 0 < sample.ess < SMALL_ESS:
            texts.append(
                f"effective sample size {sample.ess:.0f} of order-{order} metrics is below {SMALL_ESS} "
                f"(largest weight {sample.weight.max():.3g})"
            )
        if sample.cluster is not None and sample.n_clusters < 2:
            texts.append(f"fewer than two clusters for order-{order} metrics: no standard error")
    return tuple(texts)
