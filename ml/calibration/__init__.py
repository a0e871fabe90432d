"""Calibration of class probabilities and their concentration."""

from ml.calibration.calibration import Calibration, Refinement
from ml.calibration.calibrators import FitReport, Level, calibrate
from ml.calibration.concentration import ConcentrationHead, concentration_loss, fit_concentration
from ml.calibration.optimise import FitError
from ml.calibration.scaling import METHODS, Method, Scaling, fit_affine, fit_temperature, scaling_loss, temperature_loss
from ml.distributions.likelihood import mixture_log_likelihood

__all__ = [
    "METHODS",
    "Calibration",
    "ConcentrationHead",
    "FitError",
    "FitReport",
    "Level",
    "Method",
    "Refinement",
    "Scaling",
    "calibrate",
    "concentration_loss",
    "fit_affine",
    "fit_concentration",
    "fit_temperature",
    "mixture_log_likelihood",
    "scaling_loss",
    "temperature_loss",
]
