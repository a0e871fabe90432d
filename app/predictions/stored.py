"""Stored predictions: their columns, distributions, order, and sets of classes for the next answer."""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, TypedDict

import numpy as np
import numpy.typing as npt
from pydantic import Field
from sqlalchemy import bindparam, case, select
from sqlalchemy.orm import Session

from app.database.tables import Alias, AnswerSets, CasePrediction, new_digest_key, new_id
from app.http.models import AnswerSetOut, AnswersOf, MetricOut, ResponseModel, Sentence
from ml.conformal import MISSES, Thresholds, answer_sets, fewest_patients
from ml.distributions.families import DirichletCpe, DirichletMixtureCpe, EnsembleCpe, PointCpe, PredictiveDistribution
from ml.messages import Message
from ml.release.predictor import Prediction
from ml.util.arrays import FloatArray


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
    out_of_distribution: bool | None
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
    distribution, unlike, flags = prediction.distribution, prediction.unlikeness, prediction.unlikeness.flags
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
            "out_of_distribution": flags[row],
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


UNFAMILIAR = Message("the image is out of distribution")
NOT_YET = Message("this model release has no calibrated prediction sets yet")
SEVERAL = Message("prediction sets need a cell with at most one label")


class SiteThresholds(ResponseModel):
    """Thresholds of the cells of one site; ``steps``: see ``Thresholds``."""

    site: str | None
    n_patients: int
    n_cells: int
    steps: list[tuple[float, float]]

    def at(self, own_mass: float) -> float | None:
        """Threshold for a new patient of this mass, None where too few patients are known."""
        return Thresholds(self.n_patients, self.n_cells, tuple(self.steps)).at(own_mass)


class SetQualityOut(ResponseModel):
    """Coverage of the prediction sets on the evaluation partition; each patient counts once."""

    labels: int
    by: Literal["all", "site", "class"]
    group: str
    n_patients: int
    n_cells: int
    n_without: int
    coverage: MetricOut
    mean_size: MetricOut
    single: MetricOut


class PublishedSets(ResponseModel):
    """Thresholds of a model release's prediction sets, and their coverage."""

    misses: float = MISSES
    answers_of: AnswersOf = "annotators"
    reason: Sentence | None = None
    notes: list[Sentence] = Field(default_factory=list)
    prior: list[SiteThresholds] = Field(default_factory=list)
    after_label: list[SiteThresholds] = Field(default_factory=list)
    quality: list[SetQualityOut] = Field(default_factory=list)

    def thresholds_of(self, labels: int, site: str | None) -> SiteThresholds | None:
        """Thresholds for a cell with this many labels, of its site or else of all sites without their own."""
        of_sites = {row.site: row for row in (self.after_label if labels else self.prior)}
        return of_sites.get(site) or of_sites.get(None)


def read_published_sets(session: Session, release_ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, PublishedSets]:
    """Read the published sets of releases; releases without any are missing."""
    query = select(AnswerSets.release_id, AnswerSets.document).where(AnswerSets.release_id.in_(set(release_ids)))
    return {row[0]: PublishedSets.model_validate(row[1]) for row in session.execute(query)}


# as they were read, each with what says whether it is still so
_SETS_CACHE: dict[uuid.UUID, tuple[tuple[object, ...], PublishedSets]] = {}
_MAX_CACHED_SETS = 16


_SETS_REVISION = select(AnswerSets.computed_at, AnswerSets.basis).where(
    AnswerSets.release_id == bindparam("release_id")
)


def current_published_sets(session: Session, release_id: uuid.UUID) -> PublishedSets | None:
    """Return the published sets of a release from a cache, reloaded after each publication; else None."""
    row = session.execute(_SETS_REVISION, {"release_id": release_id}).first()
    if row is None:
        return None
    revision, cached = tuple(row), _SETS_CACHE.get(release_id)
    if cached is not None and cached[0] == revision:
        return cached[1]
    sets = read_published_sets(session, [release_id])[release_id]  # of that revision, or newer
    if len(_SETS_CACHE) >= _MAX_CACHED_SETS:
        _SETS_CACHE.clear()
    _SETS_CACHE[release_id] = revision, sets
    return sets


@dataclass(frozen=True)
class AnswerSetQuery:
    """Query for an answer set: the prediction and context of one cell."""

    # (1, K) prediction, or posterior
    class_probs: FloatArray
    classes: list[str]
    # labels that the posterior has seen
    n_labels: int = 0
    # None where it is not recorded
    site: str | None = None
    # whether the image is unlike those of the release
    unlike: bool = False
    # of its patient; None where it was asked about with no known probability
    own_mass: float | None = 1.0


def build_answer_set(published: PublishedSets | None, cell: AnswerSetQuery) -> AnswerSetOut:
    """The set for the next answer about one cell, or why there is none."""
    sets = published or _NONE_YET
    basis = sets.thresholds_of(cell.n_labels, cell.site) if cell.n_labels <= 1 else None
    out = AnswerSetOut(
        level=1 - sets.misses,
        classes=None,
        reason=sets.reason,
        answers_of=sets.answers_of,
        site=None if basis is None else basis.site,
        n_patients=0 if basis is None else basis.n_patients,
        n_cells=0 if basis is None else basis.n_cells,
    )
    limit = None if basis is None or cell.own_mass is None else basis.at(cell.own_mass)
    reason = _reason_without_set(sets, cell, limit, out.n_patients)
    if reason is not None or limit is None:
        return out.model_copy(update={"reason": reason})
    inside = answer_sets(cell.class_probs, limit)[0]
    order = np.argsort(-cell.class_probs[0], kind="stable")
    return out.model_copy(update={"classes": [cell.classes[k] for k in order if inside[k]]})


_NONE_YET = PublishedSets(reason=NOT_YET)


def _reason_without_set(
    published: PublishedSets, cell: AnswerSetQuery, limit: float | None, n_patients: int
) -> str | None:
    if cell.unlike:
        return UNFAMILIAR
    if published.reason is not None:
        return published.reason
    if cell.n_labels > 1:
        return SEVERAL
    if limit is not None:
        return None
    fewest = fewest_patients(published.misses)
    if cell.n_labels == 0:
        return Message(
            "cells of {n_patients} patients have answers; at least {fewest} are needed",
            n_patients=n_patients,
            fewest=fewest,
        )
    return Message(
        "cells of {n_patients} patients have two labels; at least {fewest} are needed",
        n_patients=n_patients,
        fewest=fewest,
    )
