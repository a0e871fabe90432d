"""Label-histogram metrics: how good class and disagreement probabilities are when the truth is a histogram."""

from ml.metrics.accumulator import Accumulator
from ml.metrics.document import evaluate
from ml.metrics.evaluation import ClassEvaluation, Evaluation, ReliabilityBin
from ml.metrics.jackknife import Estimate
from ml.metrics.losses import (
    calibration_loss,
    disagreement_calibration_loss,
    disagreement_loss,
    dispersion_loss,
    epistemic_loss,
    expected_squared_loss,
)

__all__ = [
    "Accumulator",
    "ClassEvaluation",
    "Estimate",
    "Evaluation",
    "ReliabilityBin",
    "calibration_loss",
    "disagreement_calibration_loss",
    "disagreement_loss",
    "dispersion_loss",
    "epistemic_loss",
    "evaluate",
    "expected_squared_loss",
]
