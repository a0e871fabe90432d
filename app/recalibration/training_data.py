"""Stored outputs and labels as arrays for fitting, and bulk inserts of predictions."""

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Exists, case, exists, func, select
from sqlalchemy.orm import Session, aliased

from app.audit.chain.covered_rows import update_columns
from app.audit.chain.keys import DerivedKey
from app.database.tables import Case, CasePrediction, NetworkOutput
from app.metrics.service import LabelRow, blind_labels, cluster_name, is_kept_for_sets, label_rows
from ml.calibration.calibrators import Calibration
from ml.distributions.families import PredictiveDistribution
from ml.release.artifact import Release
from ml.util.arrays import IntArray


def update_worklist_places(session: Session, release_id: uuid.UUID, first: uuid.UUID, last: uuid.UUID) -> None:
    """Set the places of waiting cases in the worklist by the predictions of a release."""
    here = Case.id.between(first, last)
    # in one order: two jobs that place the same cases must not wait for each other
    session.execute(select(func.count()).select_from(_locked_cases_query(first, last)))
    # below 0: a near-duplicate of an earlier case, which comes after all that are none
    need = CasePrediction.disagreement_prob - case((Case.need < 0, 1.0), else_=0.0)
    of_release = (CasePrediction.case_id == Case.id) & (CasePrediction.release_id == release_id)
    session.execute(update_columns(Case, need=need).where(here, Case.waiting, of_release, Case.need != need))


def _locked_cases_query(first: uuid.UUID, last: uuid.UUID) -> Any:
    rows = select(Case.id).where(Case.id.between(first, last), Case.waiting).order_by(Case.id)
    return rows.with_for_update(key_share=True).subquery()


@dataclass(frozen=True)
class StoredOutputs:
    """Outputs of one network for N images."""

    case_ids: list[uuid.UUID]
    # cluster of each case: its patient, or the first case with the same pixels
    groups: list[str]
    logits: npt.NDArray[np.float32]
    # (N, D) float32, pooled where the release has a dropout head
    features: npt.NDArray[np.float32]

    def take(self, rows: npt.NDArray[Any]) -> "StoredOutputs":
        """Some of the cases, by position."""
        return StoredOutputs(
            [self.case_ids[i] for i in rows], [self.groups[i] for i in rows], self.logits[rows], self.features[rows]
        )

    def predicted(self, release: Release, calibration: Calibration) -> PredictiveDistribution:
        """Predictions through a calibration."""
        return calibration.apply(*release.by_members(self.logits, self.features))


def read_stored_outputs(
    session: Session,
    network_sha256: str,
    partition: str,
    since: datetime | None = None,
    *,
    seen_by: uuid.UUID | None = None,
) -> StoredOutputs:
    """Outputs of a network for every case of a partition, stored at a time or later, ordered by case."""
    first = aliased(Case)
    statement = (
        select(
            NetworkOutput.case_id, Case.patient, first.id, first.patient, NetworkOutput.logits, NetworkOutput.features
        )
        .join(Case, Case.id == NetworkOutput.case_id)
        .outerjoin(first, first.id == Case.same_image_as)
        .where(NetworkOutput.network_sha256 == network_sha256, Case.partition == partition)
        .order_by(NetworkOutput.case_id)
    )
    if since is not None:
        statement = statement.where(Case.created_at >= since)
    if seen_by is not None:
        statement = statement.where(~_match_training_cases(seen_by))
    rows = session.execute(statement).all()
    return StoredOutputs(
        [row[0] for row in rows],
        [cluster_name(*row[:4]) for row in rows],
        decode_vectors([row[4] for row in rows]),
        decode_vectors([row[5] for row in rows]),
    )


def _match_training_cases(release_id: uuid.UUID) -> Exists:
    used = (CasePrediction.case_id == Case.id, CasePrediction.release_id == release_id)
    return exists().where(*used, CasePrediction.trained_on == "network")


def count_training_cases(session: Session, release_id: uuid.UUID, partition: str, since: datetime | None) -> int:
    """Cases of a partition that ``read_stored_outputs`` leaves out for a release."""
    query = select(func.count()).select_from(Case).where(Case.partition == partition, _match_training_cases(release_id))
    if since is not None:
        query = query.where(Case.created_at >= since)
    return session.execute(query).scalar_one()


def exclude_kept_cases(outputs: StoredOutputs, key: DerivedKey) -> StoredOutputs:
    """Outputs of the calibration partition that a fit may use: without the patients who are kept for answer sets."""
    return outputs.take(np.flatnonzero([not is_kept_for_sets(key, group) for group in outputs.groups]))


def decode_vectors(blobs: list[bytes]) -> npt.NDArray[np.float32]:
    """Stored little-endian float32 vectors of one length as an array (N, …)."""
    if not blobs:
        return np.zeros((0, 0), dtype=np.float32)
    return np.frombuffer(b"".join(blobs), dtype="<f4").reshape(len(blobs), -1).astype(np.float32)


def read_fitting_labels(session: Session) -> list[LabelRow]:
    """Blind labels of both rounds: whom to ask depended on images and earlier labels only, as a likelihood allows."""
    return label_rows(session, blind_labels(("planned", "adjudication")), None)


def count_case_labels(
    labels: list[LabelRow], case_ids: list[uuid.UUID], classes: list[str], without: str | None = None
) -> IntArray:
    """Label counts (N, K) of cases, without those of one annotator."""
    row_of = {case_id: row for row, case_id in enumerate(case_ids)}
    column = {code: k for k, code in enumerate(classes)}
    counts = np.zeros((len(case_ids), len(classes)), dtype=np.int64)
    for label in labels:
        row, k = row_of.get(label.case_id), column.get(label.class_code)
        if row is not None and k is not None and label.annotator != without:
            counts[row, k] += 1
    return counts


def first_answers(
    labels: list[LabelRow], case_ids: list[uuid.UUID], classes: list[str], without: str | None = None
) -> IntArray:
    """Class (N,) that answers the first planned read of each case, −1 without one, or where one annotator gave it."""
    row_of = {case_id: row for row, case_id in enumerate(case_ids)}
    column = {code: k for k, code in enumerate(classes)}
    answers = np.full(len(case_ids), -1, dtype=np.int64)
    for label in labels:
        row, k = row_of.get(label.case_id), column.get(label.class_code)
        counts = label.ordinal == 1 and not label.outside and label.annotator != without
        if counts and row is not None and k is not None:
            answers[row] = k
    return answers
