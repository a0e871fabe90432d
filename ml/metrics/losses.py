"""Label-histogram metrics of class and disagreement probabilities, each by a function.

Truth comes first in every signature. Cases that an estimator cannot use (too few labels) are left out of
that estimator and counted in ``Estimate.dropped``. Every estimate carries a standard error by the
delete-one jackknife, over clusters where a cluster column is given: cells of one patient are not independent.

Source: paper §3, §4.1, App. B and C; the pair form of CL is derived in docs/explanation. Skill scores, Murphy 1973.
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
from ml.metrics.definitions import BY_NAME, metric_estimate, metric_estimates, metric_replicates
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
    """Expected squared loss L of one future label, Σ_k [(μ̂ − z)² + μ̂(1 − μ̂)] (paper eq. 1), n ≥ 1.

    Args:
        label_counts: (N, K) label histograms.
        class_probs: (N, K) class probability estimates.
        sample_weight: (N,) instance weights.
        cluster: (N,) patient of each case.

    Returns:
        Mean over cases, in [0, 2].

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
    """Epistemic loss EL = E Σ_k (q − z)², unbiased by subtracting μ̂(1 − μ̂)/(n − 1) (paper eq. 15), n ≥ 2.

    Args:
        label_counts: (N, K) label histograms.
        class_probs: (N, K) class probability estimates.
        debias: ``pair`` and ``paper`` give the same result here; ``none`` is the plug-in, without the correction.
        sample_weight: (N,) instance weights.
        cluster: (N,) patient of each case.

    Returns:
        Mean over cases; may be negative where z is nearly right.

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
    """Calibration loss CL: squared gap of mean label frequency and mean probability, over bins and classes.

    Args:
        label_counts: (N, K) label histograms, n ≥ 1 used.
        class_probs: (N, K) class probability estimates.
        n_bins: bins of [0, 1].
        strategy: ``uniform`` widths, ``quantile`` of the probabilities of each class, or frozen edges as an array.
        debias: ``pair`` (unbiased), ``paper`` (paper eq. 16) or ``none`` (plug-in).
        sample_weight: (N,) instance weights.
        cluster: (N,) patient of each case; the pair form then never pairs cases of one patient.

    Returns:
        Signed CL; ``singleton_mass`` is the weight in bins with one member.

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
    """Dispersion loss DL = EL − CL on the same cases (n ≥ 2): how much finer the probabilities could be.

    Args:
        label_counts: (N, K) label histograms.
        class_probs: (N, K) class probability estimates.
        n_bins: bins of [0, 1].
        strategy: as in ``calibration_loss``.
        debias: as in ``calibration_loss``; ``none`` takes the plug-in of both EL and CL.
        sample_weight: (N,) instance weights.
        cluster: (N,) patient of each case.

    Returns:
        Signed DL with the jackknife error of the difference.

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
    """Squared loss L_φ of the DPE for whether two annotators differ: (φ̂ − φ)² + φ̂(1 − φ̂), n ≥ 2.

    Args:
        label_counts: (N, K) label histograms.
        disagreement_probs: (N,) disagreement probability estimates φ.
        sample_weight: (N,) instance weights.
        cluster: (N,) patient of each case.

    Returns:
        Mean over cases (paper §4.3).

    >>> round(disagreement_loss([[2, 1], [0, 3], [3, 0]], [0.42, 0.32, 0.18]).value, 4)
    0.1393
    """
    data, dpe = Inputs.of_disagreement(label_counts, disagreement_probs, sample_weight, cluster)
    return _estimate("L_D", data, dpe)


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

    >>> round(disagreement_calibration_loss([[2, 1], [0, 3], [3, 0]], [0.42, 0.32, 0.18], n_bins=1).value, 4)
    -0.0219
    """
    data, dpe = Inputs.of_disagreement(label_counts, disagreement_probs, sample_weight, cluster)
    return _estimate("CL_D", data, dpe, n_bins=n_bins, strategy=strategy, debias=debias)


#: What the labels say of a disagreement probability: better than the constant, no better so far, or worse.
Verdict = Literal["better", "no better so far", "worse"]


def class_skill(
    label_counts: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    *,
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Skill of class probabilities, 1 − L / (1 − Σc²) with c the class frequencies, n ≥ 1.

    Args:
        label_counts: (N, K) label histograms.
        class_probs: (N, K) class probability estimates.
        sample_weight: (N,) instance weights of order 1.
        cluster: (N,) patient of each case.

    Returns:
        1 is best, 0 what the frequencies say; NaN where one class only occurs.

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
    """Skill of disagreement probabilities, 1 − L_φ / (p(1 − p)) with p the rate of disagreement, n ≥ 2.

    Args:
        label_counts: (N, K) label histograms.
        disagreement_probs: (N,) disagreement probability estimates φ.
        sample_weight: (N,) instance weights of order 2.
        cluster: (N,) patient of each case.

    Returns:
        1 is best, 0 what the constant reaches; NaN where no two labels differ, or all do.

    >>> round(disagreement_skill([[2, 1], [0, 3], [3, 0]], [0.42, 0.32, 0.18]).value, 4)
    0.1941
    """
    data, dpe = Inputs.of_disagreement(label_counts, disagreement_probs, sample_weight, cluster)
    return _estimate("skill_D", data, dpe)


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
        """Labels (N,) of each case: without end."""
        return np.full(len(self.counts), np.inf)

    def frequencies(self, rows: slice | npt.NDArray[np.intp]) -> FloatArray:
        """True class probabilities of some cases."""
        return np.asarray(self.counts[rows], dtype=np.float64)


def exact_metrics(
    true_probs: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    disagreement_probs: npt.ArrayLike,
    *,
    n_bins: int = 15,
    debias: Debias = "pair",
) -> dict[str, Estimate]:
    """Agreement, L, skill, EL, CL, CE, L_D, skill_D, CL_D, CE_D and accuracy against known true class probabilities q.

    Agreement is the expected share of annotators who name the most probable class, accuracy whether that is the class
    that most would name; equal leaders share.

    The true disagreement of two annotators is 1 − Σq². CL is still a statistic of the cases that happened to
    fall into each bin, so its plug-in form is biased here too, by the spread of q − z within bins.

    Args:
        true_probs: (N, K).
        class_probs: (N, K) class probability estimates.
        disagreement_probs: (N,) disagreement probability estimates φ.
        n_bins: equal-width bins.
        debias: form of CL.

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
    # intervals keep no range here: they are for the spread of many simulated data sets
    return metric_estimates(source, debias, [replace(BY_NAME[name], bounds=None) for name in _NAMES])
