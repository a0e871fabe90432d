"""A shipped calibration fitted anew to other annotators, from few cases with two labels each.

Fifty double reads cannot teach a concentration head, but three numbers: a change of the temperature, and level and
slope of logit φ. Each is drawn to what was shipped by a penalty worth some pairs of labels, and the map goes back into
the concentration (``ml.calibration.coherent``), so that the result is one distribution again.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from ml.arrays import FloatArray, as_label_counts
from ml.calibration.calibration import Calibration
from ml.calibration.disagreement_map import IDENTITY, AnyMap, DisagreementMap, PiecewiseMap, pair_loss
from ml.calibration.optimise import FitError, minimise
from ml.calibration.scaling import Scaling
from ml.distributions.families import PredictiveDistribution
from ml.metrics.histograms import observed_disagreement

#: Pairs below which nothing is learned.
FEWEST_PAIRS = 20
#: Strength of the penalties on the change of log T, and on slope and level of logit φ, in labels and in pairs.
PULL_TEMPERATURE, PULL_SLOPE, PULL_LEVEL = 40.0, 15.0, 0.1


def adapt(
    calibration: Calibration, logits: npt.ArrayLike, features: npt.ArrayLike, label_counts: npt.ArrayLike
) -> Calibration:
    """Calibration for the annotators of these labels, as near to the one given as they allow.

    Args:
        calibration: with a concentration head; a constant that it states is dropped.
        logits: (N, K), or (S, N, K) of an ensemble.
        features: (N, D), or (S, N, D).
        label_counts: (N, K) of the new annotators.

    Raises:
        FitError: fewer than 20 cases with two labels, no concentration head, or no convergence.
    """
    counts = as_label_counts(label_counts)
    pairs = counts.sum(axis=1) >= 2
    if pairs.sum() < FEWEST_PAIRS or calibration.concentration is None:
        raise FitError(
            f"a calibration is adapted by {FEWEST_PAIRS} cases with two labels or more, got {int(pairs.sum())}, and "
            "needs a concentration head"
        )
    own = replace(calibration, constant_disagreement=None)

    def loss(x: FloatArray) -> tuple[float, FloatArray]:
        # one number: a difference is as good as a derivative
        values = [_nll(_tempered(own, float(x[0]) + step).apply(logits, features), counts) for step in (0, 1e-4, -1e-4)]
        slope = (values[1] - values[2]) / 2e-4 + PULL_TEMPERATURE * x / counts.sum()
        return values[0] + 0.5 * PULL_TEMPERATURE * float(x @ x) / counts.sum(), slope

    change, _ = minimise(loss, np.zeros(1), "temperature of the new annotators", [(-2.0, 2.0)], tolerance=1e-6)
    tempered = _tempered(own, float(change[0]))
    said = tempered.apply(logits, features).own_disagreement_probs[pairs]
    slope, level = _affine(said, observed_disagreement(counts[pairs]))
    mapped = _then(tempered.refinement.disagreement_map or IDENTITY, slope, level)
    return replace(tempered, refinement=replace(tempered.refinement, disagreement_map=mapped))


def _nll(said: PredictiveDistribution, counts: npt.NDArray[np.int64]) -> float:
    """Negative log-likelihood a label."""
    return float(-said.log_likelihood(counts).sum() / counts.sum())


def _tempered(calibration: Calibration, change: float) -> Calibration:
    """With a log T that is larger by ``change``."""
    scaling = calibration.scaling
    if scaling.weight is None or scaling.bias is None:
        return replace(calibration, scaling=Scaling("temperature", scaling.log_temperature + change))
    cooler = float(np.exp(-change))
    return replace(calibration, scaling=replace(scaling, weight=scaling.weight * cooler, bias=scaling.bias * cooler))


def _affine(dpe: FloatArray, differ: FloatArray) -> tuple[float, float]:
    """Slope s ≥ 0 and level c of logit φ′ = s logit φ + c."""
    certain = np.clip(dpe, 1e-9, 1 - 1e-9)
    z = np.log(certain) - np.log1p(-certain)
    # level and slope hardly depend on each other around the mean
    centre = float(z.mean())
    design = np.column_stack([z - centre, np.ones_like(z)])
    pull = np.array([PULL_SLOPE, PULL_LEVEL])
    shipped = np.array([1.0, centre])

    def objective(x: FloatArray) -> tuple[float, FloatArray]:
        value, off = design @ x, x - shipped
        gradient = (design.T @ (expit(value) - differ) + pull * off) / len(z)
        return float(pair_loss(value, differ).mean() + 0.5 * pull @ off**2 / len(z)), gradient

    (slope, at_centre), _ = minimise(
        objective, shipped, "disagreement of the new annotators", [(0.0, None), (None, None)]
    )
    return float(slope), float(at_centre - slope * centre)


def _then(mapped: AnyMap, slope: float, level: float) -> AnyMap:
    """A map followed by logit φ″ = slope · logit φ′ + level."""
    offset = slope * mapped.offset + level
    if isinstance(mapped, PiecewiseMap):
        return PiecewiseMap(mapped.knots, slope * mapped.slopes, offset)
    return DisagreementMap(slope * mapped.low, slope * mapped.high, offset)
