"""Whether a new calibration may replace the old one: the paired change of proper scores on the same cases."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ml.arrays import FloatArray
from ml.estimate import Estimate, mean_replicates, to_estimate
from ml.histograms import observed_disagreement, squared_terms, statistic_terms
from ml.inputs import check_inputs


@dataclass(frozen=True)
class Change:
    """Change of the proper scores from one prediction of the same cases to another; negative is better.

    Attributes:
        loss: of L, on cases with a label.
        disagreement_loss: of L_φ, on cases with two.
    """

    loss: Estimate
    disagreement_loss: Estimate

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"L": self.loss.to_dict(), "L_D": self.disagreement_loss.to_dict()}


def paired_change(
    label_counts: npt.ArrayLike,
    before: tuple[FloatArray, FloatArray],
    after: tuple[FloatArray, FloatArray],
    *,
    weights: npt.ArrayLike | None = None,
    weights2: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Change:
    """Change of L and of L_φ, case by case, with patient-clustered intervals.

    Args:
        label_counts: (N, K).
        before: class probabilities (N, K) and DPEs (N,).
        after: the same of the candidate.
        weights: (N,) order-1 weights.
        weights2: (N,) order-2 weights.
        cluster: (N,) patients.

    Raises:
        ValueError: shapes that do not match or values out of range.
    """
    first = check_inputs(label_counts, before[0], weights, cluster)
    second = check_inputs(label_counts, after[0], weights if weights2 is None else weights2, cluster)
    one, two = first.sample(1), second.sample(2)
    counts = first.counts
    loss = [squared_terms(counts[one.rows], data.probs[one.rows]).sum(axis=1) for data in (first, second)]
    observed = observed_disagreement(counts[two.rows])
    dpe = [statistic_terms(observed, np.asarray(pair[1], dtype=np.float64)[two.rows]) for pair in (before, after)]
    return Change(
        to_estimate(mean_replicates(loss[1] - loss[0], one), one),
        to_estimate(mean_replicates(dpe[1] - dpe[0], two), two),
    )
