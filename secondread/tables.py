"""LABELS and PREDICTIONS tables and their evaluation."""

import ml.tables
from ml.tables import *

__all__: list[str] = []
__all__ += ml.tables.__all__
