"""The metrics where simulated data tell the true class probabilities, so that no label noise has to be removed."""

import numpy as np
import numpy.typing as npt

from ml.arrays import as_class_probs, as_vector
from ml.distributions.families import gini
from ml.metrics.binning import Debias
from ml.metrics.jackknife import Estimate, mean_replicates, root, select, to_estimate
from ml.metrics.reliability import Binned
from ml.named_columns import same_rows


def exact_metrics(
    true_probs: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    disagreement_probs: npt.ArrayLike,
    *,
    n_bins: int = 15,
    debias: Debias = "pair",
) -> dict[str, Estimate]:
    """L, EL, CL, CE, L_D, CL_D, CE_D and accuracy against known true class probabilities q.

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
    sample = select(np.ones(len(truth), dtype=np.bool_), None, None)
    differ = gini(truth)
    epistemic = ((truth - probs) ** 2).sum(axis=1)
    hits = (truth.argmax(axis=1) == probs.argmax(axis=1)).astype(np.float64)
    means = {
        "accuracy": hits,
        "L": epistemic + differ,
        "EL": epistemic,
        "L_D": (differ - dpe) ** 2 + differ * (1 - differ),
    }
    estimates = {name: to_estimate(mean_replicates(values, sample), sample) for name, values in means.items()}
    estimates["CL"] = Binned.of(truth, probs, sample, n_bins, "uniform", debias).estimate(debias)
    estimates["CL_D"] = Binned.of(differ[:, None], dpe[:, None], sample, n_bins, "uniform", debias).estimate(debias)
    return estimates | {"CE": root(estimates["CL"]), "CE_D": root(estimates["CL_D"])}
