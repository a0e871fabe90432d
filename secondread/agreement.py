"""Agreement between annotators, and evidence against their independence."""

import ml.agreement
from ml.agreement import *

__all__: list[str] = []
__all__ += ml.agreement.__all__
