"""Every metric over one set of predictions as one document: what ``secondread evaluate --json`` prints.

With inverse selection probabilities as weights the estimates are Hájek means, Σwx / Σw; the Horvitz–Thompson form,
which divides by the number of all cases instead, stands beside them. Where the two differ much, the weights are
too uneven, or the selection was not what they say.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ml.arrays import FloatArray, as_vector
from ml.binning import Debias
from ml.distributions import gini
from ml.estimate import Estimate, Sample, mean_replicates, root, to_estimate
from ml.histograms import class_frequencies, epistemic_terms, observed_disagreement, squared_terms, statistic_terms
from ml.inputs import Inputs, check_inputs
from ml.reliability import Binned

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
) -> dict[str, Any]:
    """Every metric over one set of predictions, as the JSON document of ``secondread evaluate --json``.

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
        The document: counts, metrics, per-class and disagreement reliability tables, warnings.

    Raises:
        ValueError: shapes that do not match or values out of range.
    """
    first = check_inputs(label_counts, class_probs, weights, cluster)
    second = check_inputs(label_counts, class_probs, weights if weights2 is None else weights2, cluster)
    n_cases, n_classes = first.counts.shape
    names = [str(k) for k in range(n_classes)] if classes is None else list(classes)
    if len(names) != n_classes:
        raise ValueError(f"classes must name {n_classes} classes, got {len(names)}")
    given = gini(first.probs) if disagreement_probs is None else disagreement_probs
    dpe = as_vector(given, n_cases, "disagreement_probs", 0.0, 1.0)
    one, two = first.sample(1), second.sample(2)
    binned = _binned_classes(first, one, n_bins)
    observed = observed_disagreement(second.counts[two.rows])[:, None]
    binned_dpe = Binned.of(observed, dpe[two.rows][:, None], two, n_bins, "uniform")
    metrics = _class_metrics(first, one, binned, debias) | _paired_metrics(second, two, n_bins, debias)
    metrics |= _disagreement_metrics(second, two, dpe, binned_dpe, debias)
    if n_cases > 0 and (weights is not None or weights2 is not None):
        binned_two = _binned_classes(second, two, n_bins)
        pairs = {
            "CL": (binned, first.probs),
            "CL_paired": (binned_two, second.probs),
            "CL_D": (binned_dpe, dpe[:, None]),
        }
        metrics = _with_horvitz_thompson(metrics, pairs if debias == "pair" else {}, one, two, first.cluster)
    return {
        "n_cases": n_cases,
        "n_labels": int(first.counts.sum()),
        "n_classes": n_classes,
        "n_bins": n_bins,
        "debias": debias or "none",
        "metrics": {name: estimate.to_dict() for name, estimate in metrics.items()},
        "classes": _per_class(names, second, two, binned, debias),
        "class_bins": binned.diagram(),
        "disagreement_bins": binned_dpe.diagram(),
        "warnings": _warnings(one, two, weights is not None, weights2 is not None),
    }


def _binned_classes(data: Inputs, sample: Sample, n_bins: int) -> Binned:
    freqs = class_frequencies(data.counts[sample.rows])
    return Binned.of(freqs, data.probs[sample.rows], sample, n_bins, "uniform")


def _class_metrics(data: Inputs, sample: Sample, binned: Binned, debias: Debias) -> dict[str, Estimate]:
    counts, probs = data.counts[sample.rows], data.probs[sample.rows]
    loss = mean_replicates(squared_terms(counts, probs).sum(axis=1), sample)
    hits = (counts.argmax(axis=1) == probs.argmax(axis=1)).astype(np.float64)
    calibration = binned.estimate(debias)
    return {
        "L": to_estimate(loss, sample),
        "CL": calibration,
        "CL_plugin": binned.estimate(None),
        "CE": root(calibration),
        "accuracy": to_estimate(mean_replicates(hits, sample), sample),
    }


def _paired_metrics(data: Inputs, sample: Sample, n_bins: int, debias: Debias) -> dict[str, Estimate]:
    counts, probs = data.counts[sample.rows], data.probs[sample.rows]
    binned = _binned_classes(data, sample, n_bins)
    plugin = mean_replicates(epistemic_terms(counts, probs, False).sum(axis=1), sample)
    epistemic = mean_replicates(epistemic_terms(counts, probs, debias is not None).sum(axis=1), sample)
    lonely = binned.singleton_mass(debias)
    return {
        "EL": to_estimate(epistemic, sample),
        "EL_plugin": to_estimate(plugin, sample),
        "CL_paired": binned.estimate(debias),
        "DL": to_estimate(epistemic - binned.replicates(debias), sample, lonely),
        "DL_plugin": to_estimate(plugin - binned.replicates(None), sample),
    }


def _disagreement_metrics(
    data: Inputs, sample: Sample, dpe: FloatArray, binned: Binned, debias: Debias
) -> dict[str, Estimate]:
    calibration = binned.estimate(debias)
    loss = mean_replicates(statistic_terms(observed_disagreement(data.counts[sample.rows]), dpe[sample.rows]), sample)
    return {
        "L_D": to_estimate(loss, sample),
        "CL_D": calibration,
        "CL_D_plugin": binned.estimate(None),
        "CE_D": root(calibration),
    }


#: Means over cases, by the number of labels that they need.
_MEANS = {"L": 1, "accuracy": 1, "EL": 2, "EL_plugin": 2, "L_D": 2}


def _with_horvitz_thompson(
    metrics: dict[str, Estimate],
    pairs: dict[str, tuple[Binned, FloatArray]],
    one: Sample,
    two: Sample,
    cluster: npt.NDArray[Any] | None,
) -> dict[str, Estimate]:
    """Add the Horvitz–Thompson form to means and, in the pair form, to CL, CL_D and DL."""
    n_cases = one.rows.size + one.dropped
    forms: dict[str, float] = {}
    for name, order in _MEANS.items():
        forms[name] = metrics[name].value * float((one if order == 1 else two).weight.sum()) / n_cases
    for name, (binned, probs) in pairs.items():
        forms[name] = binned.horvitz_thompson(probs, cluster)
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


def _per_class(names: list[str], data: Inputs, sample: Sample, binned: Binned, debias: Debias) -> list[dict[str, Any]]:
    terms = epistemic_terms(data.counts[sample.rows], data.probs[sample.rows], debias is not None)
    return [
        {
            "class": name,
            "CL": _finite(binned.replicates(debias, k).value),
            "EL": _finite(mean_replicates(terms[:, k], sample).value),
            "bins": binned.diagram(k),
        }
        for k, name in enumerate(names)
    ]


def _warnings(one: Sample, two: Sample, weighted: bool, weighted2: bool) -> list[str]:
    found = []
    if one.rows.size == 0:
        found.append("no case has a label: every metric is empty")
    if two.rows.size == 0:
        found.append("no case has two labels: EL, DL and every disagreement metric are empty")
    if weighted and not weighted2:
        found.append("order-2 metrics use the order-1 weights, since no order-2 weights were given")
    for sample, order in ((one, 1), (two, 2)):
        if (weighted or (weighted2 and order == 2)) and 0 < sample.ess < SMALL_ESS:
            found.append(
                f"effective sample size {sample.ess:.0f} of order-{order} metrics is below {SMALL_ESS} "
                f"(largest weight {sample.weight.max():.3g})"
            )
        if sample.cluster is not None and sample.n_clusters < 2:
            found.append(f"fewer than two clusters for order-{order} metrics: no standard error")
    return found
