"""Stored predictions as distributions, and the order in which releases are shown."""

import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
from sqlalchemy import case, select

from app.database.tables import Alias, CasePrediction, new_digest_key, new_id
from ml.distributions.families import DirichletCpe, DirichletMixtureCpe, EnsembleCpe, PointCpe, PredictiveDistribution
from ml.release.predictor import Prediction


def champion_first_order() -> list[Any]:
    """Order of a case's predictions: the champion's first, then newest first."""
    served = select(Alias.release_id).where(Alias.name == "champion").scalar_subquery()
    return [case((CasePrediction.release_id == served, 0), else_=1), CasePrediction.id.desc()]


# by more than this a stored disagreement probability is not that of the distribution, but a constant
_STATED_APART = 1e-9


def members_bytes(distribution: PredictiveDistribution, row: int) -> bytes | None:
    """Members of an ensemble's prediction of one of its cases: rows of K probabilities and a, little-endian float64."""
    # The log concentration a is NaN where there is none; other distributions have no members, None.
    if isinstance(distribution, DirichletMixtureCpe):
        a = distribution.member_log_concentration
    elif isinstance(distribution, EnsembleCpe):
        a = np.full(distribution.log_weights.shape, np.nan)
    else:
        return None
    table = np.concatenate([distribution.member_class_probs[:, row], a[:, row : row + 1]], axis=1)
    return table.astype("<f8").tobytes()


class PredictionValues(TypedDict):
    """Columns of a row of ``CasePrediction``."""

    id: uuid.UUID
    created_at: datetime
    case_id: uuid.UUID
    release_id: uuid.UUID
    class_probs: list[float]
    log_concentration: float | None
    disagreement_prob: float
    members: bytes | None
    out_of_distribution: bool
    unlike_reasons: list[str] | None
    unlike_distance: float | None
    unlike_percentile: float | None
    feature_distance: float | None
    trained_on: str | None


class OutputValues(TypedDict):
    """Columns of a row of ``NetworkOutput``."""

    id: uuid.UUID
    created_at: datetime
    case_id: uuid.UUID
    network_sha256: str
    logits: bytes
    features: bytes
    appearance: bytes | None
    digest_key: bytes


def prediction_values(
    case_ids: list[uuid.UUID],
    release_id: uuid.UUID,
    prediction: Prediction,
    trained_on: Sequence[str | None],
    at: datetime,
) -> list[PredictionValues]:
    """Rows of the table of predictions for N cases, in their order."""
    distribution, unlike = prediction.distribution, prediction.unlikeness
    probs, dpe = distribution.class_probs, distribution.disagreement_probs
    a = distribution.log_concentration if isinstance(distribution, DirichletCpe) else None
    return [
        {
            "id": new_id(),
            "created_at": at,
            "case_id": case_id,
            "release_id": release_id,
            "class_probs": probs[row].tolist(),
            "log_concentration": None if a is None else float(a[row]),
            "disagreement_prob": float(dpe[row]),
            "members": members_bytes(distribution, row),
            "out_of_distribution": bool(unlike.flagged[row]),
            "unlike_reasons": unlike.reasons[row] or None,
            "unlike_distance": finite_or_none(unlike.distance[row]),
            "unlike_percentile": finite_or_none(unlike.percentile[row]),
            "feature_distance": finite_or_none(prediction.feature_distance[row]),
            "trained_on": trained_on[row],
        }
        for row, case_id in enumerate(case_ids)
    ]


def finite_or_none(value: float) -> float | None:
    """A number as the database and JSON take it."""
    return float(value) if np.isfinite(value) else None


def output_values(
    case_ids: list[uuid.UUID],
    network_sha256: str,
    logits: npt.NDArray[np.float32],
    features: npt.NDArray[np.float32],
    appearance: npt.NDArray[np.float32] | None,
    at: datetime,
) -> list[OutputValues]:
    """Rows of the table of what a network made of N images, and of what their pixels look like, where that is known."""
    return [
        {
            "id": new_id(),
            "created_at": at,
            "case_id": case_id,
            "network_sha256": network_sha256,
            "logits": np.asarray(logits[row], dtype="<f4").tobytes(),
            "features": np.asarray(features[row], dtype="<f4").tobytes(),
            "appearance": None if appearance is None else np.asarray(appearance[row], dtype="<f4").tobytes(),
            "digest_key": new_digest_key(),
        }
        for row, case_id in enumerate(case_ids)
    ]


def stored_prediction(row: CasePrediction) -> PredictiveDistribution:
    """Predictive distribution (N = 1) of a prediction row, to the last bit."""
    return stored_predictions([row])


def stored_predictions(rows: Sequence[Any]) -> PredictiveDistribution:
    """Predictive distribution of N ≥ 1 prediction rows of one release, to the last bit."""
    distribution = _build_distribution(rows)
    kept = np.array([row.disagreement_prob for row in rows], dtype=np.float64)
    apart = np.abs(kept - distribution.own_disagreement_probs) > _STATED_APART
    if not apart.any():
        return distribution
    return replace(distribution, stated_disagreement=np.where(apart, kept, np.nan))


def _build_distribution(rows: Sequence[Any]) -> PredictiveDistribution:
    probs = np.array([row.class_probs for row in rows], dtype=np.float64)
    if rows[0].members is not None:
        flat = np.frombuffer(b"".join(row.members for row in rows), dtype="<f8").astype(np.float64)
        tables = flat.reshape(len(rows), -1, probs.shape[1] + 1).swapaxes(0, 1)
        members, a = tables[..., :-1], tables[..., -1]
        return EnsembleCpe(members) if np.isnan(a).any() else DirichletMixtureCpe(members, a)
    if any(row.log_concentration is None for row in rows):
        return PointCpe(probs)
    return DirichletCpe(probs, np.array([row.log_concentration for row in rows], dtype=np.float64))
