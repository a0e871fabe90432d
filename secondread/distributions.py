"""Predictive distributions over class probabilities, and the decisions that follow from them."""

import ml.distributions
from ml.distributions import *

__all__: list[str] = []
__all__ += ml.distributions.__all__
