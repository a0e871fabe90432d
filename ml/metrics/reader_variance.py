"""Per-reading contributions to each metric, for intervals that generalise to new readers.

A metric is a mean over cases of a mean over the case's readings, or over pairs of them: of L and agreement what one
reading says, of EL and L_φ what it says together with another. The terms here are those, reading by reader; of pairs
the mean over the other readings of the case. What is no such mean (CL, DL, accuracy) is worked out without each reader
in turn (``ml.metrics.reader_jackknife``).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ml.metrics.crossed_effects import CrossedEffects
from ml.util.arrays import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class ReadTerms:
    """Terms (m,) of the readings of a sample's cases.

    Attributes:
        crossed: the readings.
        counts: (n, K) labels of the sample's cases.
        probs: (n, K) class probability estimates.
    """

    crossed: CrossedEffects
    counts: IntArray
    probs: FloatArray

    @cached_property
    def n_labels(self) -> FloatArray:
        """Labels of each reading's case (m,)."""
        return np.asarray(np.einsum("nk->n", self.counts)[self.crossed.case], dtype=np.float64)

    @cached_property
    def squared(self) -> FloatArray:
        """Terms of L (m,): Σ_k (y_k − z_k)² = 1 − 2 z_l + Σz²."""
        case, label = self.crossed.case, self.crossed.label
        return np.asarray(1 - 2 * self.probs[case, label] + np.einsum("nk,nk->n", self.probs, self.probs)[case])

    def epistemic(self, debias: bool = True) -> FloatArray:
        """Terms of EL: Σ_k (y_k − z_k)(y′_k − z_k), mean over the other readings.

        In the plug-in, which is a mean over all of them, a reading's product with itself counts half: it is about one
        reader, and terms of pairs count twice.
        """
        n = self.n_labels
        if debias:
            return np.asarray((self._all_ones - self.squared) / np.maximum(n - 1, 1))
        return np.asarray((self._all_ones - self.squared / 2) / n)

    @cached_property
    def _all_ones(self) -> FloatArray:
        """Σ_k (y_k − z_k)(y′_k − z_k) (m,), sum over all readings of the case, this one too."""
        case, label = self.crossed.case, self.crossed.label
        rest = self.counts - np.einsum("nk->n", self.counts)[:, None] * self.probs
        return np.asarray(rest[case, label] - np.einsum("nk,nk->n", self.probs, rest)[case])

    @cached_property
    def disagreement(self) -> FloatArray:
        """Share (m,) of the case's other readings that say something else."""
        case, label, n = self.crossed.case, self.crossed.label, self.n_labels
        return np.asarray((n - self.counts[case, label]) / np.maximum(n - 1, 1))

    def statistic(self, dpe: FloatArray) -> FloatArray:
        """Terms of L_φ for probabilities (n,): (d − φ)², d whether two differ, mean over other readings."""
        phi = dpe[self.crossed.case]
        return np.asarray(self.disagreement * (1 - 2 * phi) + phi**2)

    def agreement(self) -> FloatArray:
        """Indicator that the reading names the most probable class; ties share."""
        case, label = self.crossed.case, self.crossed.label
        largest = self.probs.max(axis=1, keepdims=True)
        leading = self.probs == largest
        return np.asarray(leading[case, label] / leading.sum(axis=1)[case])

    def skill(self) -> FloatArray:
        """Linearised terms of 1 − L / (1 − Σc²), c the class frequencies."""
        weight, label = self.crossed.weight, self.crossed.label
        frequencies = np.bincount(label, weight, self.counts.shape[1])
        constant, squared = float(1 - frequencies @ frequencies), self.squared
        if constant <= 0:
            return np.zeros(weight.size)
        loss = float(weight @ squared)
        return np.asarray(-squared / constant - 2 * loss / constant**2 * frequencies[label])

    def disagreement_skill(self, dpe: FloatArray) -> FloatArray:
        """Linearised terms of 1 − L_φ / (p(1 − p)), p the rate of disagreement."""
        weight, differs, loss = self.crossed.weight, self.disagreement, self.statistic(dpe)
        rate = float(weight @ differs)
        constant = rate * (1 - rate)
        if constant <= 0:
            return np.zeros(weight.size)
        return np.asarray(-loss / constant + float(weight @ loss) / constant**2 * (1 - 2 * rate) * differs)
