"""Calibration of class probabilities and of their concentration from label histograms."""

import ml.calibration
from ml.calibration import *
from secondread.calibrator import Calibrator

__all__ = ["Calibrator"]
__all__ += ml.calibration.__all__
