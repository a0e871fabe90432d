"""Calibration of class probabilities and of their concentration from label histograms."""

from ml.calibration.calibration import Calibration, Refinement
from ml.calibration.calibrators import FitReport, calibrate
from ml.calibration.concentration import ConcentrationHead, concentration_loss, fit_concentration
from ml.calibration.optimal_concentration import (
    Moments,
    disagreement_error,
    disagreement_lower_end,
    disagreement_optimum,
    posterior_epistemic_error,
    posterior_lower_end,
    posterior_optimum,
)
from ml.calibration.optimise import FitError
from ml.calibration.scaling import METHODS, Method, Scaling, fit_affine, fit_temperature, scaling_loss, temperature_loss
from ml.distributions.likelihood import mixture_log_likelihood

__all__ = [
    "METHODS",
    "Calibration",
    "ConcentrationHead",
    "FitError",
    "FitReport",
    "Method",
    "Moments",
    "Refinement",
    "Scaling",
    "calibrate",
    "concentration_loss",
    "disagreement_error",
    "disagreement_lower_end",
    "disagreement_optimum",
    "fit_affine",
    "fit_concentration",
    "fit_temperature",
    "mixture_log_likelihood",
    "posterior_epistemic_error",
    "posterior_lower_end",
    "posterior_optimum",
    "scaling_loss",
    "temperature_loss",
]
