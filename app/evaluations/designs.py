"""What other ways to choose second reads would cost, catch and tell, judged by the cases read twice so far."""

from collections.abc import Mapping

import numpy as np

from app.evaluations.cohort import Cohort
from app.evaluations.schemas import DesignOut
from ml.arrays import FloatArray
from ml.metrics.histograms import epistemic_terms, observed_disagreement, statistic_terms
from ml.metrics.jackknife import select_sample
from ml.metrics.selection_designs import (
    disagreements_caught,
    graded_probabilities,
    graded_scale,
    interval_length,
    threshold_probabilities,
)


def designs_of(cohort: Cohort, floor: float) -> list[DesignOut]:
    """Designs with as many second reads as were planned of a cohort's cases; none before two annotators differed.

    Args:
        cohort: cases with weights.
        floor: the least probability of a second read.
    """
    data, weight = cohort.columns, cohort.weight2
    if weight is None:
        return []
    sample = select_sample((data.n_labels >= 2) & (weight > 0), weight, data.cluster)
    counts, dpe = data.label_counts[sample.rows], data.disagreement_probs[sample.rows]
    observed = observed_disagreement(counts)
    if not observed.any():
        return []
    losses = {
        "EL": epistemic_terms(counts, data.class_probs[sample.rows], debias=True).sum(axis=1),
        "L_D": statistic_terms(observed, dpe),
    }
    return [
        DesignOut(
            design=name,
            share=float(pi.mean()),
            catch=disagreements_caught(pi[sample.rows], observed, sample),
            width={loss: interval_length(pi[sample.rows], terms, sample, len(pi)) for loss, terms in losses.items()},
        )
        for name, pi in _probabilities(data.pi, data.disagreement_probs, floor).items()
    ]


def _probabilities(planned: FloatArray, dpe: FloatArray, floor: float) -> Mapping[str, FloatArray]:
    """π (N,) of all cases by each design, at the share of second reads that were planned."""
    share = float(np.clip(planned.mean(), floor, 1.0))
    return {
        "as planned so far": planned,
        f"highest disagreement, {floor:.0%} of the others": threshold_probabilities(dpe, share, floor),
        f"graded with disagreement, at least {floor:.0%}": graded_probabilities(
            dpe, graded_scale(dpe, share, floor), floor
        ),
        "at random": np.full(len(dpe), share),
    }
