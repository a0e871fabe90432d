"""Label-histogram metrics: how good class and disagreement probabilities are when the truth is a histogram.

Truth comes first in every signature. Cases that an estimator cannot use (too few labels) are left out of
that estimator and counted in ``Estimate.dropped``. Every estimate carries a standard error by the
delete-one jackknife, over clusters where a cluster column is given: cells of one patient are not independent.

Source: paper §3, §4.1, App. B and C; the pair form of CL is derived in docs/explanation.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ml.accumulator import Accumulator
from ml.arrays import FloatArray, IntArray, as_class_probs, as_label_counts, as_vector
from ml.binning import Debias, Strategy
from ml.distributions import gini
from ml.estimate import Estimate, Replicates, Sample, mean_replicates, root, select, to_estimate
from ml.histograms import class_frequencies, epistemic_terms, observed_disagreement, squared_terms
from ml.reliability import Binned

__all__ = [
    "Accumulator",
    "Estimate",
    "calibration_loss",
    "disagreement_calibration_loss",
    "disagreement_loss",
    "dispersion_loss",
    "epistemic_loss",
    "evaluate",
    "expected_squared_loss",
]

#: Below this effective sample size a weighted estimate is warned about.
SMALL_ESS = 100


@dataclass(frozen=True)
class _Inputs:
    counts: IntArray
    probs: FloatArray
    weight: FloatArray | None
    cluster: npt.NDArray[np.generic] | None

    def sample(self, min_labels: int) -> Sample:
        return select(self.counts.sum(axis=1) >= min_labels, self.weight, self.cluster)


def _inputs(
    label_counts: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    sample_weight: npt.ArrayLike | None,
    cluster: npt.ArrayLike | None,
) -> _Inputs:
    counts = as_label_counts(label_counts)
    probs = as_class_probs(class_probs)
    if probs.shape != counts.shape:
        raise ValueError(f"class_probs {probs.shape} and label_counts {counts.shape} must have one shape")
    return _Inputs(counts, probs, _weights(sample_weight, len(counts)), _clusters(cluster, len(counts)))


def _weights(sample_weight: npt.ArrayLike | None, length: int) -> FloatArray | None:
    if sample_weight is None:
        return None
    return as_vector(sample_weight, length, "sample_weight", 0.0, np.finfo(np.float64).max)


def _clusters(cluster: npt.ArrayLike | None, length: int) -> npt.NDArray[np.generic] | None:
    if cluster is None:
        return None
    names = np.asarray(cluster)
    if names.shape != (length,):
        raise ValueError(f"cluster must have shape ({length},), got {names.shape}")
    return names


def expected_squared_loss(
    label_counts: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    *,
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Expected squared loss L of one future label, Σ_k [(μ̂ − z)² + μ̂(1 − μ̂)] (paper eq. 1), n ≥ 1.

    Args:
        label_counts: (N, K) label histograms.
        class_probs: (N, K) class probability estimates.
        sample_weight: (N,) instance weights.
        cluster: (N,) patient of each case.

    Returns:
        Mean over cases, in [0, 2].
    """
    data = _inputs(label_counts, class_probs, sample_weight, cluster)
    sample = data.sample(1)
    terms = squared_terms(data.counts[sample.rows], data.probs[sample.rows]).sum(axis=1)
    return to_estimate(mean_replicates(terms, sample), sample)


def epistemic_loss(
    label_counts: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    *,
    debias: bool = True,
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Epistemic loss EL = E Σ_k (q − z)², unbiased by subtracting μ̂(1 − μ̂)/(n − 1) (paper eq. 15), n ≥ 2.

    Args:
        label_counts: (N, K) label histograms.
        class_probs: (N, K) class probability estimates.
        debias: False for the plug-in, which drops the correction.
        sample_weight: (N,) instance weights.
        cluster: (N,) patient of each case.

    Returns:
        Mean over cases; may be negative where z is nearly right.
    """
    data = _inputs(label_counts, class_probs, sample_weight, cluster)
    sample = data.sample(2)
    terms = epistemic_terms(data.counts[sample.rows], data.probs[sample.rows], debias).sum(axis=1)
    return to_estimate(mean_replicates(terms, sample), sample)


def calibration_loss(
    label_counts: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    *,
    n_bins: int = 15,
    strategy: Strategy = "uniform",
    debias: Debias = "pair",
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Calibration loss CL: squared gap of mean label frequency and mean probability, over bins and classes.

    Args:
        label_counts: (N, K) label histograms, n ≥ 1 used.
        class_probs: (N, K) class probability estimates.
        n_bins: bins of [0, 1].
        strategy: ``uniform`` widths or ``quantile`` of the probabilities of each class.
        debias: ``pair`` (unbiased), ``paper`` (paper eq. 16) or None (plug-in).
        sample_weight: (N,) instance weights.
        cluster: (N,) patient of each case; the pair form then never pairs cases of one patient.

    Returns:
        Signed CL; ``singleton_mass`` tells the weight in bins with one member.
    """
    data = _inputs(label_counts, class_probs, sample_weight, cluster)
    sample = data.sample(1)
    freqs = class_frequencies(data.counts[sample.rows])
    binned = Binned.of(freqs, data.probs[sample.rows], sample, n_bins, strategy)
    return binned.estimate(debias)


def dispersion_loss(
    label_counts: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    *,
    n_bins: int = 15,
    strategy: Strategy = "uniform",
    debias: Debias = "pair",
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Dispersion loss DL = EL − CL on the same cases (n ≥ 2): how much finer the probabilities could be.

    Args:
        label_counts: (N, K) label histograms.
        class_probs: (N, K) class probability estimates.
        n_bins: bins of [0, 1].
        strategy: as in ``calibration_loss``.
        debias: as in ``calibration_loss``; None takes the plug-in of both EL and CL.
        sample_weight: (N,) instance weights.
        cluster: (N,) patient of each case.

    Returns:
        Signed DL with the jackknife error of the difference.
    """
    data = _inputs(label_counts, class_probs, sample_weight, cluster)
    sample = data.sample(2)
    counts, probs = data.counts[sample.rows], data.probs[sample.rows]
    binned = Binned.of(class_frequencies(counts), probs, sample, n_bins, strategy)
    terms = epistemic_terms(counts, probs, debias is not None).sum(axis=1)
    difference = mean_replicates(terms, sample) - binned.replicates(debias)
    return to_estimate(difference, sample, binned.singleton_mass(debias))


def disagreement_loss(
    label_counts: npt.ArrayLike,
    disagreement_probs: npt.ArrayLike,
    *,
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Squared loss L_φ of the DPE for whether two annotators differ: (φ̂ − φ)² + φ̂(1 − φ̂), n ≥ 2.

    Args:
        label_counts: (N, K) label histograms.
        disagreement_probs: (N,) disagreement probability estimates φ.
        sample_weight: (N,) instance weights.
        cluster: (N,) patient of each case.

    Returns:
        Mean over cases (paper §4.3).
    """
    counts = as_label_counts(label_counts)
    sample = select(counts.sum(axis=1) >= 2, _weights(sample_weight, len(counts)), _clusters(cluster, len(counts)))
    dpe = as_vector(disagreement_probs, len(counts), "disagreement_probs", 0.0, 1.0)[sample.rows]
    return to_estimate(_disagreement(counts[sample.rows], dpe, sample), sample)


def disagreement_calibration_loss(
    label_counts: npt.ArrayLike,
    disagreement_probs: npt.ArrayLike,
    *,
    n_bins: int = 15,
    strategy: Strategy = "uniform",
    debias: Debias = "pair",
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Calibration loss CL_φ of the DPE against the observed disagreement φ̂, n ≥ 2 (paper §4.3).

    Args:
        label_counts: (N, K) label histograms.
        disagreement_probs: (N,) disagreement probability estimates φ.
        n_bins: bins of [0, 1].
        strategy: as in ``calibration_loss``.
        debias: as in ``calibration_loss``.
        sample_weight: (N,) instance weights.
        cluster: (N,) patient of each case.

    Returns:
        Signed CL_φ.
    """
    counts = as_label_counts(label_counts)
    sample = select(counts.sum(axis=1) >= 2, _weights(sample_weight, len(counts)), _clusters(cluster, len(counts)))
    dpe = as_vector(disagreement_probs, len(counts), "disagreement_probs", 0.0, 1.0)[sample.rows]
    observed = observed_disagreement(counts[sample.rows])
    return Binned.of(observed[:, None], dpe[:, None], sample, n_bins, strategy).estimate(debias)


def _disagreement(counts: IntArray, dpe: FloatArray, sample: Sample) -> Replicates:
    observed = observed_disagreement(counts)
    return mean_replicates((observed - dpe) ** 2 + observed * (1 - observed), sample)


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
    first = _inputs(label_counts, class_probs, weights, cluster)
    second = _inputs(label_counts, class_probs, weights if weights2 is None else weights2, cluster)
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
    return {
        "n_cases": n_cases,
        "n_labels": int(first.counts.sum()),
        "n_classes": n_classes,
        "n_bins": n_bins,
        "debias": debias or "none",
        "metrics": {name: estimate.to_dict() for name, estimate in metrics.items()},
        "classes": _per_class(names, second, two, binned, debias),
        "disagreement_bins": binned_dpe.diagram(0),
        "warnings": _warnings(one, two, weights is not None, weights2 is not None),
    }


def _binned_classes(data: _Inputs, sample: Sample, n_bins: int) -> Binned:
    freqs = class_frequencies(data.counts[sample.rows])
    return Binned.of(freqs, data.probs[sample.rows], sample, n_bins, "uniform")


def _class_metrics(data: _Inputs, sample: Sample, binned: Binned, debias: Debias) -> dict[str, Estimate]:
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


def _paired_metrics(data: _Inputs, sample: Sample, n_bins: int, debias: Debias) -> dict[str, Estimate]:
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
    data: _Inputs, sample: Sample, dpe: FloatArray, binned: Binned, debias: Debias
) -> dict[str, Estimate]:
    calibration = binned.estimate(debias)
    loss = _disagreement(data.counts[sample.rows], dpe[sample.rows], sample)
    return {
        "L_D": to_estimate(loss, sample),
        "CL_D": calibration,
        "CL_D_plugin": binned.estimate(None),
        "CE_D": root(calibration),
    }


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _per_class(names: list[str], data: _Inputs, sample: Sample, binned: Binned, debias: Debias) -> list[dict[str, Any]]:
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
