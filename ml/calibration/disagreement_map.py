"""Calibration of disagreement probabilities by themselves (beyond the paper).

α-calibration explains a case's labels by one Dirichlet distribution. Where true label distributions are none (one class
for certain, or a blend of two), its DPEs spread too much: the high ones are too high and the low ones too low. Beta
calibration (Kull, Silva Filho and Flach 2017), logit φ′ = a ln φ − b ln(1 − φ) + c with a, b ≥ 0, fitted on pairs of
labels, mends that; a = b = 1, c = 0 changes nothing. It never turns an order round, so whom triage asks next stays the
same; class probabilities and posteriors are not touched.
"""

from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import numpy.typing as npt
from scipy.special import expit, log_expit

from ml.arrays import FloatArray, as_label_counts, as_vector
from ml.calibration.optimise import FitError, minimise
from ml.metrics.histograms import observed_disagreement
from ml.splits import split_partitions

FOLDS = 5
# probabilities beyond this are as good as certain
_LEAST = 1e-9


@dataclass(frozen=True)
class DisagreementMap:
    """φ → φ′ by logit φ′ = a ln φ − b ln(1 − φ) + c.

    Attributes:
        low: a ≥ 0, which bends small probabilities.
        high: b ≥ 0, which bends large ones.
        offset: c.
    """

    low: float
    high: float
    offset: float

    def logits(self, disagreement_probs: npt.ArrayLike) -> FloatArray:
        """Logits of the mapped DPEs, in the shape of the DPEs."""
        logits: FloatArray = _design(np.asarray(disagreement_probs, dtype=np.float64)) @ self._parameters
        return logits

    def __call__(self, disagreement_probs: npt.ArrayLike) -> FloatArray:
        """Mapped DPEs, in the shape of the DPEs."""
        return np.asarray(expit(self.logits(disagreement_probs)))

    @property
    def _parameters(self) -> FloatArray:
        return np.array([self.low, self.high, self.offset])


IDENTITY = DisagreementMap(1.0, 1.0, 0.0)


def _design(dpe: FloatArray) -> FloatArray:
    """Terms (..., 3) of DPEs (...,): ln φ, −ln(1 − φ) and 1."""
    clipped = np.clip(dpe, _LEAST, 1 - _LEAST)
    return np.stack([np.log(clipped), -np.log1p(-clipped), np.ones_like(clipped)], axis=-1)


def pair_loss(logits: FloatArray, differ: FloatArray) -> FloatArray:
    """−φ̂ ln φ′ − (1 − φ̂) ln(1 − φ′) of logits and shares φ̂ of differing pairs."""
    return np.asarray(-differ * log_expit(logits) - (1 - differ) * log_expit(-logits))


def fit_map(dpe: FloatArray, differ: FloatArray) -> DisagreementMap:
    """The map that minimises the mean loss of DPEs (N,) against shares φ̂ (N,) of differing pairs."""
    design = _design(dpe)

    def objective(x: FloatArray) -> tuple[float, FloatArray]:
        value = design @ x
        return float(pair_loss(value, differ).mean()), design.T @ (expit(value) - differ) / len(dpe)

    bounds = [(0.0, None), (0.0, None), (None, None)]
    parameters, _ = minimise(objective, np.array([1.0, 1.0, 0.0]), "map of disagreement probabilities", bounds)
    return DisagreementMap(*parameters.tolist())


class MapChoice(TypedDict):
    """Mean losses of pairs of labels before and, on unseen folds, after; whether the map was kept; cases used."""

    before: float
    after: float
    kept: bool
    n: int


def fit_disagreement_map(
    disagreement_probs: npt.ArrayLike, label_counts: npt.ArrayLike, groups: list[str], *, seed: int = 0
) -> tuple[DisagreementMap, MapChoice]:
    """Fit the map, and keep it if it lowers the loss of pairs of labels on folds that it has not seen.

    Args:
        disagreement_probs: (N,) DPEs.
        label_counts: (N, K); cases with fewer than two labels are left out, the others count once each, as in L_φ.
        groups: patient of each case, or the case itself; no group falls into two folds.
        seed: of the folds.

    Returns:
        The map, ``IDENTITY`` where none helps, and the losses before and, on unseen folds, after.

    Raises:
        FitError: too few cases with two labels, or of too few groups.
    """
    counts = as_label_counts(label_counts)
    given = as_vector(disagreement_probs, len(counts), "disagreement_probs", 0.0, 1.0)
    usable = np.flatnonzero(counts.sum(axis=1) >= 2)
    if usable.size < 10:
        raise FitError(f"a map of disagreement probabilities needs ten cases with two labels, got {usable.size}")
    dpe, differ = given[usable], observed_disagreement(counts[usable])
    fold = split_partitions(groups, {str(k): 1 / FOLDS for k in range(FOLDS)}, seed)[usable]
    if np.unique(fold).size < 2:
        raise FitError("a map of disagreement probabilities needs cases with two labels of several patients")
    before, after = pair_loss(IDENTITY.logits(dpe), differ), np.empty(usable.size)
    for k in np.unique(fold):
        after[fold == k] = pair_loss(
            fit_map(dpe[fold != k], differ[fold != k]).logits(dpe[fold == k]), differ[fold == k]
        )
    kept = bool(after.mean() < before.mean())
    report: MapChoice = {
        "before": float(before.mean()),
        "after": float(after.mean()),
        "kept": kept,
        "n": int(usable.size),
    }
    return (fit_map(dpe, differ) if kept else IDENTITY), report
