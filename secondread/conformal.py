"""Conformal sets of classes for the next annotator's answer, and their coverage."""

import ml.conformal
from ml.conformal import *

__all__: list[str] = []
__all__ += ml.conformal.__all__
