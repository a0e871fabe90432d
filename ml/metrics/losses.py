"""Label-histogram metrics of class and disagreement probabilities.

Truth comes first in every signature. Cases that an estimator cannot use (too few labels) are left out of
that estimator and counted in ``Estimate.dropped``. Every estimate carries a standard error by the
delete-one jackknife, over clusters where a cluster column is given: cells of one patient are not independent.

Source: paper §3, §4.1, App. B and C; the pair form of CL is derived in docs/explanation.
"""

import numpy.typing as npt

from ml.metrics.binning import Debias, Strategy, is_debiased
from ml.metrics.histograms import (
    class_frequencies,
    epistemic_terms,
    observed_disagreement,
    squared_terms,
    statistic_terms,
)
from ml.metrics.inputs import Inputs, check_inputs
from ml.metrics.intervals import SHARE, SQUARED_LOSS
from ml.metrics.jackknife import Estimate, mean_replicates, to_estimate
from ml.metrics.reliability import Binned
from ml.util.arrays import FloatArray


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
    sample = data.sample(1)
    terms = squared_terms(data.counts[sample.rows], data.probs[sample.rows]).sum(axis=1)
    return to_estimate(mean_replicates(terms, sample), sample, bounds=SQUARED_LOSS)


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
    sample = data.sample(2)
    terms = epistemic_terms(data.counts[sample.rows], data.probs[sample.rows], is_debiased(debias)).sum(axis=1)
    return to_estimate(mean_replicates(terms, sample), sample)


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
    sample = data.sample(1)
    freqs = class_frequencies(data.counts[sample.rows])
    binned = Binned.of(freqs, data.probs[sample.rows], sample, n_bins, strategy, debias)
    return binned.estimate(debias)


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
    sample = data.sample(2)
    counts, probs = data.counts[sample.rows], data.probs[sample.rows]
    binned = Binned.of(class_frequencies(counts), probs, sample, n_bins, strategy, debias)
    terms = epistemic_terms(counts, probs, is_debiased(debias)).sum(axis=1)
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

    >>> round(disagreement_loss([[2, 1], [0, 3], [3, 0]], [0.42, 0.32, 0.18]).value, 4)
    0.1393
    """
    data = Inputs.of_scores(label_counts, disagreement_probs, "disagreement_probs", sample_weight, cluster)
    sample = data.sample(2)
    terms = statistic_terms(observed_disagreement(data.counts[sample.rows]), data.probs[sample.rows, 0])
    return to_estimate(mean_replicates(terms, sample), sample, bounds=SHARE)


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
    data = Inputs.of_scores(label_counts, disagreement_probs, "disagreement_probs", sample_weight, cluster)
    sample = data.sample(2)
    observed = observed_disagreement(data.counts[sample.rows])[:, None]
    return Binned.of(observed, data.probs[sample.rows], sample, n_bins, strategy, debias).estimate(debias)
