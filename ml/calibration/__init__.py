"""Calibration of class probabilities and of their concentration from label histograms."""

from ml.calibration.calibration import Calibration, Refinement
from ml.calibration.calibrators import FitReport, calibrate
from ml.calibration.concentration import (
    ConcentrationHead,
    HeadKind,
    choose_head,
    concentration_loss,
    fit_concentration,
)
from ml.calibration.joint_fit import fit_jointly, joint_loss
from ml.calibration.optimise import FitError
from ml.calibration.scaling import (
    METHODS,
    Method,
    Scaling,
    affine_loss,
    choose_scaling,
    fit_affine,
    fit_temperature,
    scaling_loss,
    temperature_loss,
)
from ml.distributions.likelihood import mixture_log_likelihood

__all__ = [
    "METHODS",
    "Calibration",
    "ConcentrationHead",
    "FitError",
    "FitReport",
    "HeadKind",
    "Method",
    "Refinement",
    "Scaling",
    "affine_loss",
    "calibrate",
    "choose_head",
    "choose_scaling",
    "concentration_loss",
    "fit_affine",
    "fit_concentration",
    "fit_jointly",
    "fit_temperature",
    "joint_loss",
    "mixture_log_likelihood",
    "scaling_loss",
    "temperature_loss",
]
