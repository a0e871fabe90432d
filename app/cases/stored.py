"""A stored prediction as the distribution that it was."""

import numpy as np

from app.tables import CasePrediction
from ml.distributions import DirichletCpe, DirichletMixtureCpe, EnsembleCpe, PointCpe, PredictiveDistribution


def members_bytes(distribution: PredictiveDistribution) -> bytes | None:
    """Members of an ensemble's prediction of one case: rows of K probabilities and a, little-endian float64.

    The log concentration a is NaN where there is none; other distributions have no members, None.
    """
    if isinstance(distribution, DirichletMixtureCpe):
        a = distribution.member_log_concentration
    elif isinstance(distribution, EnsembleCpe):
        a = np.full(distribution.log_weights.shape, np.nan)
    else:
        return None
    table = np.concatenate([distribution.member_class_probs[:, 0], a], axis=1)
    return table.astype("<f8").tobytes()


def stored_prediction(row: CasePrediction) -> PredictiveDistribution:
    """Predictive distribution (N = 1) of a prediction row, to the last bit."""
    probs = np.array([row.class_probs], dtype=np.float64)
    if row.members is not None:
        table = np.frombuffer(row.members, dtype="<f8").reshape(-1, probs.shape[1] + 1).astype(np.float64)
        members, a = table[:, None, :-1], table[:, -1:]
        return EnsembleCpe(members) if np.isnan(a).any() else DirichletMixtureCpe(members, a)
    if row.log_concentration is None:
        return PointCpe(probs)
    return DirichletCpe(probs, np.array([row.log_concentration]))
