"""Reliability of very small and very large probabilities, where decisions are made.

Equal-width bins put everything below .07 into one bin, and whether a case is read twice is decided inside of it.
"""

from dataclasses import dataclass

import numpy as np

from ml.metrics.binned import Binned, ReliabilityBin
from ml.metrics.cases import (
    Sample,
    check_inputs,
    check_weights,
    class_frequencies,
    observed_disagreement,
    select_sample,
)
from ml.tables.matching import Cases
from ml.util.arrays import FloatArray

#: Edges of the fine bins; what lies between the two inner ones is no end.
EDGES = np.array([0.0, 0.01, 0.02, 0.05, 0.1, 0.9, 0.95, 0.98, 0.99, 1.0])
_MIDDLE = 4


@dataclass(frozen=True)
class TailBins:
    """Bins of the smallest and of the largest probabilities; those without cases are left out.

    Attributes:
        classes: of the class probabilities, all classes together.
        disagreement: of the disagreement probability.
    """

    classes: tuple[ReliabilityBin, ...]
    disagreement: tuple[ReliabilityBin, ...]


def compute_tail_bins(cases: Cases) -> TailBins:
    """Bin the probabilities of matched tables finely at both ends."""
    counts = cases.counts if cases.first_counts is None else cases.first_counts
    data = check_inputs(counts, cases.predictions.class_probs, cases.weights, cases.cluster)
    first, totals = data.sample(1), cases.counts.sum(axis=1)
    weights2 = check_weights(cases.weights if cases.weights2 is None else cases.weights2, len(totals))
    second = select_sample(totals >= 2, weights2, data.cluster)
    observed = observed_disagreement(cases.counts[second.rows])[:, None]
    predicted = cases.predictions.disagreement_probs[second.rows][:, None]
    return TailBins(
        _bins_in_tails(class_frequencies(data.counts[first.rows]), data.probs[first.rows], first),
        _bins_in_tails(observed, predicted, second),
    )


def _bins_in_tails(freqs: FloatArray, probs: FloatArray, sample: Sample) -> tuple[ReliabilityBin, ...]:
    bins = Binned.of(freqs, probs, sample, 1, EDGES, "none").diagram()
    return tuple(row for number, row in enumerate(bins) if number != _MIDDLE and row.n > 0)
