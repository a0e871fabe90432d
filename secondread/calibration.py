"""Calibration of class probabilities and of their concentration from label histograms."""

import ml.calibration
from ml.calibration import *

__all__: list[str] = []
__all__ += ml.calibration.__all__
