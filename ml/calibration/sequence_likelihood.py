"""The Dirichlet-multinomial likelihood of label sequences as a function of the log concentration, for fits."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ml.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class _Step:
    """What the labels after the first ``step`` of a sequence add to its likelihood.

    Attributes:
        log_step: ln step.
        longer: (L,) cases with more labels than ``step``.
        cells: (M,) case of each class with more labels than ``step``: few, so they are picked.
        log_probs: (..., M) ln f of those classes; 0 where f is zero.
        impossible: (..., M) where f is zero, None where it nowhere is: such a term has no f in the limit.
    """

    log_step: float
    longer: npt.NDArray[np.intp]
    cells: npt.NDArray[np.intp]
    log_probs: FloatArray
    impossible: npt.NDArray[np.bool_] | None

    @classmethod
    def of(cls, step: int, label_counts: IntArray, log_probs: FloatArray) -> "_Step":
        """Step of label counts (N, K) and ln f (..., N, K)."""
        cells, classes = np.nonzero(label_counts > step)
        picked = log_probs[..., cells, classes]
        impossible = np.isneginf(picked)
        longer = np.flatnonzero(label_counts.sum(axis=1) > step)
        if not impossible.any():
            return cls(float(np.log(step)), longer, cells, picked, None)
        return cls(float(np.log(step)), longer, cells, np.where(impossible, 0.0, picked), impossible)


class SequenceLikelihood:
    """Dirichlet-multinomial likelihood of label sequences as a function of a; all that a does not touch is kept.

    Args:
        label_counts: (N, K).
        log_probs: (..., N, K) ln f.
    """

    def __init__(self, label_counts: IntArray, log_probs: FloatArray) -> None:
        longest = int(label_counts.sum(axis=1).max(initial=0))
        self.constant = -np.where(label_counts >= 1, log_probs, 0.0).sum(axis=-1)
        self.steps = [_Step.of(step, label_counts, log_probs) for step in range(1, longest)]

    @classmethod
    def of_probs(cls, label_counts: IntArray, class_probs: FloatArray) -> "SequenceLikelihood":
        """Of class probabilities (..., N, K), which may be zero."""
        with np.errstate(divide="ignore"):
            return cls(label_counts, np.log(class_probs))

    def __call__(self, log_concentration: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Negative log-likelihoods (..., N) and their derivatives by a."""
        nll, slope = self.constant.copy(), np.zeros(self.constant.shape)
        for step in self.steps:
            value, share = _softplus(step.log_step - log_concentration[..., step.longer])
            nll[..., step.longer] += value
            slope[..., step.longer] -= share
            offset = step.log_step - log_concentration[..., step.cells]
            value, share = _softplus(offset - step.log_probs)
            # logaddexp(ln f, offset) = ln f + softplus(offset − ln f)
            value = step.log_probs + value
            if step.impossible is not None:
                value, share = np.where(step.impossible, offset, value), np.where(step.impossible, 1.0, share)
            cells: Any = (..., step.cells)  # NumPy's types know of no ellipsis here
            # a case may have several such classes
            np.subtract.at(nll, cells, value)
            np.add.at(slope, cells, share)
        return nll, slope


def _softplus(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln(1 + eˣ) and its derivative, from one exponential."""
    small = np.exp(-np.abs(x))
    return np.maximum(x, 0.0) + np.log1p(small), np.where(x >= 0, 1.0, small) / (1.0 + small)
