"""A stored prediction as the distribution that it was."""

import numpy as np

from app.tables import CasePrediction
from ml.distributions import DirichletCpe, PointCpe


def stored_prediction(row: CasePrediction) -> PointCpe | DirichletCpe:
    """Predictive distribution (N = 1) of a prediction row, to the last bit."""
    probs = np.array([row.class_probs], dtype=np.float64)
    if row.log_concentration is None:
        return PointCpe(probs)
    return DirichletCpe(probs, np.array([row.log_concentration]))
