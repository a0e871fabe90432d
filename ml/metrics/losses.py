"""Label-histogram metrics of class and disagreement probabilities.

Cases with too few labels are left out and counted in ``dropped``. Pairs
never share a patient. Standard errors are by the delete-one jackknife
over clusters. Source: paper §3, §4.1, App. B and C; skill scores,
Murphy 1973.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from ml.dataframes import same_rows
from ml.distributions.families import gini
from ml.metrics.binned import is_debiased
from ml.metrics.cases import Inputs, check_inputs
from ml.metrics.definitions import BY_NAME, Estimates, metric_estimate, metric_estimates, metric_replicates
from ml.metrics.jackknife import Estimate, EstimateDocument
from ml.metrics.sources import ArraySource
from ml.metrics.sums import Debias, Strategy
from ml.util.arrays import FloatArray, as_class_probs, as_vector


def _estimate(
    name: str,
    data: Inputs,
    dpe: FloatArray | None = None,
    *,
    n_bins: int = 15,
    strategy: Strategy | FloatArray = "uniform",
    debias: Debias = "pair",
) -> Estimate:
    is_debiased(debias)  # refuses an unknown form
    metric, phi = BY_NAME[name], gini(data.probs) if dpe is None else dpe
    classes = metric.bins == "classes"
    source = ArraySource(data, data, phi, {debias}, classes_in_bins=classes, n_bins=n_bins, strategy=strategy)
    return metric_estimate(metric, source, debias)


def expected_squared_loss(
    label_counts: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    *,
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Expected squared loss L of one future label, n ≥ 1, in [0, 2].

    Mean of Σ_k [(μ̂ − z)² + μ̂(1 − μ̂)] (paper eq. 1).

    Args:
        label_counts: (N, K) label histograms.
        class_probs: (N, K) class probability estimates.
        sample_weight: (N,) weights of cases.
        cluster: (N,) patient of each case.

    Raises:
        ValueError: shapes that do not match, or values out of range.

    Examples:
        >>> from secondread import expected_squared_loss
        >>> estimate = expected_squared_loss([[2, 1], [0, 3], [3, 0]], [[0.7, 0.3], [0.2, 0.8], [0.9, 0.1]])
        >>> round(estimate.value, 4), estimate.n
        (0.1822, 3)
    """
    data = check_inputs(label_counts, class_probs, sample_weight, cluster)
    return _estimate("L", data)


def epistemic_loss(
    label_counts: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    *,
    debias: Debias = "pair",
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Epistemic loss EL = E Σ_k (q − z)², n ≥ 2; may be negative.

    Unbiased by subtracting μ̂(1 − μ̂)/(n − 1) (paper eq. 15).

    Args:
        label_counts: (N, K) label histograms.
        class_probs: (N, K) class probability estimates.
        debias: ``pair``, ``paper`` (eq. 16) or ``none``.
        sample_weight: (N,) weights of cases.
        cluster: (N,) patient of each case.

    Raises:
        ValueError: shapes that do not match, or values out of range.

    Examples:
        >>> from secondread import epistemic_loss
        >>> round(epistemic_loss([[2, 1], [0, 3], [3, 0]], [[0.7, 0.3], [0.2, 0.8], [0.9, 0.1]]).value, 4)
        -0.04
    """
    data = check_inputs(label_counts, class_probs, sample_weight, cluster)
    return _estimate("EL", data, debias=debias)


def calibration_loss(
    label_counts: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    *,
    n_bins: int = 15,
    strategy: Strategy | FloatArray = "uniform",
    debias: Debias = "pair",
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Calibration loss CL over bins and classes, n ≥ 1; signed.

    Squared gap of mean label frequency and mean probability.

    Args:
        label_counts: (N, K) label histograms.
        class_probs: (N, K) class probability estimates.
        n_bins: equal bins of [0, 1].
        strategy: ``uniform``, ``quantile``, or frozen edges as an array.
        debias: ``pair``, ``paper`` (eq. 16) or ``none``.
        sample_weight: (N,) weights of cases.
        cluster: (N,) patient of each case.

    Raises:
        ValueError: shapes that do not match, or values out of range.

    Examples:
        >>> from secondread import calibration_loss
        >>> round(calibration_loss([[2, 1], [0, 3], [3, 0]], [[0.7, 0.3], [0.2, 0.8], [0.9, 0.1]], n_bins=2).value, 4)
        -0.0044
    """
    data = check_inputs(label_counts, class_probs, sample_weight, cluster)
    return _estimate("CL", data, n_bins=n_bins, strategy=strategy, debias=debias)


def dispersion_loss(
    label_counts: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    *,
    n_bins: int = 15,
    strategy: Strategy | FloatArray = "uniform",
    debias: Debias = "pair",
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Dispersion loss DL = EL − CL on the same cases, n ≥ 2; signed.

    How much finer the probabilities could be; ``none`` takes both plug-ins.

    Args:
        label_counts: (N, K) label histograms.
        class_probs: (N, K) class probability estimates.
        n_bins: equal bins of [0, 1].
        strategy: ``uniform``, ``quantile``, or frozen edges as an array.
        debias: ``pair``, ``paper`` (eq. 16) or ``none``.
        sample_weight: (N,) weights of cases.
        cluster: (N,) patient of each case.

    Raises:
        ValueError: shapes that do not match, or values out of range.

    Examples:
        >>> from secondread import dispersion_loss
        >>> round(dispersion_loss([[2, 1], [0, 3], [3, 0]], [[0.7, 0.3], [0.2, 0.8], [0.9, 0.1]], n_bins=2).value, 4)
        -0.0356
    """
    data = check_inputs(label_counts, class_probs, sample_weight, cluster)
    return _estimate("DL", data, n_bins=n_bins, strategy=strategy, debias=debias)


def disagreement_loss(
    label_counts: npt.ArrayLike,
    disagreement_probs: npt.ArrayLike,
    *,
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Squared loss L_φ of the DPE, n ≥ 2 (paper §4.3).

    Mean of (φ̂ − φ)² + φ̂(1 − φ̂), φ̂ whether two annotators differ.

    Args:
        label_counts: (N, K) label histograms.
        disagreement_probs: (N,) disagreement probability estimates φ.
        sample_weight: (N,) weights of cases.
        cluster: (N,) patient of each case.

    Raises:
        ValueError: shapes that do not match, or values out of range.

    Examples:
        >>> from secondread import disagreement_loss
        >>> round(disagreement_loss([[2, 1], [0, 3], [3, 0]], [0.42, 0.32, 0.18]).value, 4)
        0.1393
    """
    given = Inputs.of_disagreement(label_counts, disagreement_probs, sample_weight, cluster)
    return _estimate("L_D", *given)


def disagreement_calibration_loss(
    label_counts: npt.ArrayLike,
    disagreement_probs: npt.ArrayLike,
    *,
    n_bins: int = 15,
    strategy: Strategy | FloatArray = "uniform",
    debias: Debias = "pair",
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Calibration loss CL_φ of the DPE, n ≥ 2 (paper §4.3); signed.

    Args:
        label_counts: (N, K) label histograms.
        disagreement_probs: (N,) disagreement probability estimates φ.
        n_bins: equal bins of [0, 1].
        strategy: ``uniform``, ``quantile``, or frozen edges as an array.
        debias: ``pair``, ``paper`` (eq. 16) or ``none``.
        sample_weight: (N,) weights of cases.
        cluster: (N,) patient of each case.

    Raises:
        ValueError: shapes that do not match, or values out of range.

    Examples:
        >>> from secondread import disagreement_calibration_loss
        >>> round(disagreement_calibration_loss([[2, 1], [0, 3], [3, 0]], [0.42, 0.32, 0.18], n_bins=1).value, 4)
        -0.0219
    """
    given = Inputs.of_disagreement(label_counts, disagreement_probs, sample_weight, cluster)
    return _estimate("CL_D", *given, n_bins=n_bins, strategy=strategy, debias=debias)


#: What the labels say of a disagreement probability: better than the constant, no better so far, or worse.
Verdict = Literal["better", "no better so far", "worse"]


def class_skill(
    label_counts: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    *,
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Skill 1 − L / (1 − Σc²), c the class frequencies, n ≥ 1.

    1 is best, 0 what the frequencies reach; NaN if one class only occurs.

    Args:
        label_counts: (N, K) label histograms.
        class_probs: (N, K) class probability estimates.
        sample_weight: (N,) weights of cases.
        cluster: (N,) patient of each case.

    Raises:
        ValueError: shapes that do not match, or values out of range.

    >>> round(class_skill([[2, 1], [0, 3], [3, 0]], [[0.7, 0.3], [0.2, 0.8], [0.9, 0.1]]).value, 4)
    0.631
    """
    return _estimate("skill", check_inputs(label_counts, class_probs, sample_weight, cluster))


def disagreement_skill(
    label_counts: npt.ArrayLike,
    disagreement_probs: npt.ArrayLike,
    *,
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Skill 1 − L_φ / (p(1 − p)), p the rate of disagreement, n ≥ 2.

    1 is best, 0 what the constant reaches; NaN if no two labels differ, or all do.

    Args:
        label_counts: (N, K) label histograms.
        disagreement_probs: (N,) disagreement probability estimates φ.
        sample_weight: (N,) weights of cases.
        cluster: (N,) patient of each case.

    Raises:
        ValueError: shapes that do not match, or values out of range.

    >>> round(disagreement_skill([[2, 1], [0, 3], [3, 0]], [0.42, 0.32, 0.18]).value, 4)
    0.1941
    """
    given = Inputs.of_disagreement(label_counts, disagreement_probs, sample_weight, cluster)
    return _estimate("skill_D", *given)


def judge_disagreement(
    label_counts: npt.ArrayLike, disagreement_probs: npt.ArrayLike, *, cluster: npt.ArrayLike | None = None
) -> Verdict:
    """Compare a disagreement probability with the best constant."""
    metric = BY_NAME["skill_D"]
    data, dpe = Inputs.of_disagreement(label_counts, disagreement_probs, None, cluster)
    source = ArraySource(data, data, dpe, {"pair"}, classes_in_bins=False)
    replicates, estimate = metric_replicates(metric, source, "pair"), metric_estimate(metric, source, "pair")
    error = replicates.standard_error()
    if error is None or estimate.low is None:
        return "no better so far"
    if replicates.value + float(stdtrit(replicates.without.size - 1, 0.95)) * error < 0:
        return "worse"
    return "better" if estimate.low > 0 else "no better so far"


def verdict_of(skill: EstimateDocument) -> Verdict:
    """Verdict from an estimate in a document."""
    low, high = skill["low"], skill["high"]
    if low is None or high is None or low <= 0 <= high:
        return "no better so far"
    return "better" if low > 0 else "worse"


_NAMES = ("agreement", "accuracy", "L", "EL", "L_D", "skill", "skill_D", "CL", "CL_D", "CE", "CE_D")


@dataclass(frozen=True)
class _Truth(Inputs):
    """True class probabilities in place of label counts."""

    @cached_property
    def n_labels(self) -> FloatArray:  # type: ignore[override]
        return np.full(len(self.counts), np.inf)

    def frequencies(self, rows: slice | npt.NDArray[np.intp]) -> FloatArray:
        return np.asarray(self.counts[rows], dtype=np.float64)


def exact_metrics(
    true_probs: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    disagreement_probs: npt.ArrayLike,
    *,
    n_bins: int = 15,
    debias: Debias = "pair",
) -> Estimates:
    """Metrics against known true class probabilities q (N, K).

    The true disagreement of two annotators is 1 − Σq². The plug-in form of
    CL is biased here too, by the spread of q − z within bins.

    Raises:
        ValueError: shapes that do not match or values out of range.
    """
    same_rows(true_probs=true_probs, class_probs=class_probs, disagreement_probs=disagreement_probs)
    truth, probs = as_class_probs(true_probs, "true_probs"), as_class_probs(class_probs)
    if truth.shape != probs.shape:
        raise ValueError(f"true_probs {truth.shape} and class_probs {probs.shape} must have one shape")
    dpe = as_vector(disagreement_probs, len(probs), "disagreement_probs", 0.0, 1.0)
    data = _Truth(truth, probs, None, None)  # type: ignore[arg-type]
    source = ArraySource(data, data, dpe, {debias}, n_bins=n_bins)
    # no range: intervals are for the spread of simulations
    return metric_estimates(source, debias, [replace(BY_NAME[name], sampled=False) for name in _NAMES])
