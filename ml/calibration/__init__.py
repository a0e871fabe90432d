"""Calibration of class probabilities and of their concentration from label histograms."""

from ml.calibration.calibrators import Calibration, FitReport, calibrate

__all__ = [
    "Calibration",
    "FitReport",
    "calibrate",
]
