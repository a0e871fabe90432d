"""Loads the cells whose answers calibrate or judge answer sets, as arrays."""

import uuid
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from sqlalchemy import exists, select
from sqlalchemy.orm import Session, aliased

from app.audit.chain.keys import DerivedKey
from app.database.tables import Case, CasePrediction, CountedLabel
from app.http.models import AnswersOf
from app.metrics.cohort import cluster_name, is_kept_for_sets
from app.metrics.queries import LabelRow, blind_labels, label_rows
from app.predictions.service import stored_predictions
from ml.distributions.families import has_concentration
from ml.util.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class AnsweredCells:
    """N cells with labels that a release has predicted, has not been trained on, and finds familiar."""

    # (N,) number of the cluster
    patients: IntArray
    # (N,) names, empty where not recorded
    sites: npt.NDArray[np.str_]
    # (N,) probability of a second planned read
    pi: FloatArray
    # (N, K) class probabilities
    prior: FloatArray
    # (N, K) those after the answer to the first planned read; the prior without one
    after: FloatArray
    # (N,) class that answers the first planned read, −1 without an answer by an own annotator
    first: IntArray
    # (N,) the same of the second
    second: IntArray
    # (M, 2) cell and class of each label of an outside system
    outside: IntArray

    def answers(self, answers_of: AnswersOf) -> tuple[IntArray, IntArray, FloatArray]:
        """Cell, class and share (M,) of each answer: one per cell, or all labels of an outside system alike."""
        if answers_of == "annotators":
            rows = np.flatnonzero(self.first >= 0)
            return rows, self.first[rows], np.ones(rows.size)
        rows, classes = self.outside[:, 0], self.outside[:, 1]
        return rows, classes, 1.0 / np.bincount(rows, minlength=len(self.pi))[rows]


Partition = Literal["calibration", "evaluation"]


def read_cells(
    session: Session, release_id: uuid.UUID, classes: list[str], partition: Partition, key: DerivedKey
) -> AnsweredCells:
    """Cells of a partition; of the calibration partition those whose patients no fit has seen."""
    rows, clusters = [], []
    for row in session.execute(_cell_predictions_query(release_id, partition)):
        cluster = cluster_name(row.id, row.patient, row.first_id, row.first_patient)
        if partition == "evaluation" or is_kept_for_sets(key, cluster):
            rows.append(row)
            clusters.append(cluster)
    first, second, outside = _read_answers(session, [row.id for row in rows], classes)
    prior, after = _prior_and_posterior(rows, first, len(classes))
    return AnsweredCells(
        patients=np.unique(np.array(clusters, dtype=np.str_), return_inverse=True)[1].astype(np.int64).ravel(),
        sites=np.array([row.site or "" for row in rows], dtype=np.str_),
        pi=np.array([row.pi for row in rows], dtype=np.float64),
        prior=prior,
        after=after,
        first=first,
        second=second,
        outside=outside,
    )


def _cell_predictions_query(release_id: uuid.UUID, partition: Partition) -> Any:
    first = aliased(Case)
    return (
        select(
            Case.id,
            Case.patient,
            Case.site,
            Case.pi,
            first.id.label("first_id"),
            first.patient.label("first_patient"),
            CasePrediction.class_probs,
            CasePrediction.log_concentration,
            CasePrediction.disagreement_prob,
            CasePrediction.members,
        )
        .join(CasePrediction, CasePrediction.case_id == Case.id)
        .outerjoin(first, first.id == Case.same_image_as)
        .where(
            CasePrediction.release_id == release_id,
            CasePrediction.trained_on.is_(None),
            CasePrediction.out_of_distribution.is_(False),
            Case.partition == partition,
            # without a name it may have been in a fit
            Case.erased_at.is_(None),
            Case.pi > 0,
            exists().where(CountedLabel.case_id == Case.id),
        )
        .order_by(Case.id)
    )


def _read_answers(session: Session, ids: list[uuid.UUID], classes: list[str]) -> tuple[IntArray, IntArray, IntArray]:
    """Answers (N,) to the first and to the second planned read, and cell and class of outside labels (M, 2)."""
    row_of, column = {case_id: row for row, case_id in enumerate(ids)}, {code: k for k, code in enumerate(classes)}
    planned = {ordinal: np.full(len(ids), -1, dtype=np.int64) for ordinal in (1, 2)}
    outside: list[tuple[int, int]] = []
    by_case: dict[uuid.UUID, list[LabelRow]] = defaultdict(list)
    for label in label_rows(session, blind_labels(), ids):
        by_case[label.case_id].append(label)
    for case_id, labels in by_case.items():
        for label in labels:
            k = column.get(label.class_code)
            if k is not None and label.outside:
                outside.append((row_of[case_id], k))
            elif k is not None and label.ordinal in planned:
                planned[label.ordinal][row_of[case_id]] = k
    return planned[1], planned[2], np.array(outside, dtype=np.int64).reshape(-1, 2)


def _prior_and_posterior(rows: list[Any], first: IntArray, n_classes: int) -> tuple[FloatArray, FloatArray]:
    """Class probabilities (N, K) as predicted, and after the first answer."""
    if not rows:
        return np.zeros((0, n_classes)), np.zeros((0, n_classes))
    distribution = stored_predictions(rows)
    prior = distribution.class_probs
    counts = np.zeros(prior.shape, dtype=np.int64)
    read = np.flatnonzero(first >= 0)
    counts[read, first[read]] = 1
    return prior, distribution.posterior(counts).class_probs if has_concentration(distribution) else prior
