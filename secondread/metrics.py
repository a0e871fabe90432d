"""Metrics of class and disagreement probabilities whose truth is a label histogram."""

import ml.metrics
from ml.metrics import *

__all__: list[str] = []
__all__ += ml.metrics.__all__
