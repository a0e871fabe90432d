"""Oracle metrics on simulated data with known class probabilities, free of label noise."""

import numpy as np
import numpy.typing as npt

from ml.dataframes import same_rows
from ml.distributions.families import gini
from ml.metrics.binning import Debias
from ml.metrics.histograms import accuracy_terms, agreement_terms
from ml.metrics.jackknife import Estimate, mean_replicates, root, select_sample, to_estimate
from ml.metrics.reliability import Binned
from ml.metrics.skill import frequency_loss, rate_loss, skill_replicates
from ml.util.arrays import as_class_probs, as_vector


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
    sample = select_sample(np.ones(len(truth), dtype=np.bool_), None, None)
    differ = gini(truth)
    epistemic = ((truth - probs) ** 2).sum(axis=1)
    means = {
        "agreement": agreement_terms(truth, probs),
        "accuracy": accuracy_terms(truth, probs),
        "L": epistemic + differ,
        "EL": epistemic,
        "L_D": (differ - dpe) ** 2 + differ * (1 - differ),
    }
    replicates = {name: mean_replicates(values, sample) for name, values in means.items()}
    replicates["skill"] = skill_replicates(replicates["L"], frequency_loss(truth.sum(axis=0), [truth], sample))
    replicates["skill_D"] = skill_replicates(replicates["L_D"], rate_loss(differ, sample))
    estimates = {name: to_estimate(values, sample) for name, values in replicates.items()}
    estimates["CL"] = Binned.of(truth, probs, sample, n_bins, "uniform", debias).estimate(debias)
    estimates["CL_D"] = Binned.of(differ[:, None], dpe[:, None], sample, n_bins, "uniform", debias).estimate(debias)
    return estimates | {"CE": root(estimates["CL"]), "CE_D": root(estimates["CL_D"])}
