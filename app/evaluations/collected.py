"""What was collected, as the LABELS and PREDICTIONS tables that ``secondread evaluate`` reads."""

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from sqlalchemy.orm import Session

from app.cases.stored import stored_prediction
from app.evaluations.queries import Predicted, evaluation_labels, predicted_cases
from ml.arrays import FloatArray, IntArray
from ml.distributions import DirichletCpe, PointCpe


@dataclass(frozen=True)
class Collected:
    """Predictions of one release and the labels that may judge them.

    Attributes:
        classes: K class codes.
        predicted: N cases with predictions.
        label_rows: (case number, annotator, class code) of each label.
        class_probs: (N, K) prior predictions.
        disagreement_probs: (N,).
        label_counts: (N, K).
        clusters: (N,) patient of each case, or the case itself.
    """

    classes: list[str]
    predicted: list[Predicted]
    label_rows: list[tuple[int, str, str]]
    class_probs: FloatArray
    disagreement_probs: FloatArray
    label_counts: IntArray
    clusters: list[str]

    def label_table(self) -> dict[str, list[Any]]:
        """LABELS, long, with the patient of each case."""
        return {
            "case_id": [self.predicted[row].case.external_id for row, _, _ in self.label_rows],
            "annotator": [annotator for _, annotator, _ in self.label_rows],
            "label": [code for _, _, code in self.label_rows],
            "patient": [self.clusters[row] for row, _, _ in self.label_rows],
        }

    def prediction_table(self) -> dict[str, Any]:
        """PREDICTIONS with probabilities to the last bit."""
        columns: dict[str, Any] = {"case_id": [one.case.external_id for one in self.predicted]}
        columns |= {f"prob:{code}": self.class_probs[:, k] for k, code in enumerate(self.classes)}
        return columns | {"disagreement_prob": self.disagreement_probs}


def collect(
    session: Session,
    release_id: uuid.UUID,
    classes: list[str],
    *,
    partition: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Collected:
    """Gather predictions of a release and the labels that may judge them."""
    predicted = predicted_cases(session, release_id, partition, since, until)
    row_of = {one.case.id: row for row, one in enumerate(predicted)}
    label_rows = [
        (row_of[label.case_id], annotator, str(label.class_code))
        for label, annotator in evaluation_labels(session)
        if label.case_id in row_of
    ]
    counts = np.zeros((len(predicted), len(classes)), dtype=np.int64)
    for row, _, code in label_rows:
        counts[row, classes.index(code)] += 1
    probs = np.array([one.prediction.class_probs for one in predicted], dtype=np.float64).reshape(-1, len(classes))
    return Collected(
        classes=classes,
        predicted=predicted,
        label_rows=label_rows,
        class_probs=probs,
        disagreement_probs=_disagreement(predicted, probs),
        label_counts=counts,
        clusters=[f"patient:{one.case.patient}" if one.case.patient else f"case:{one.case.id}" for one in predicted],
    )


def _disagreement(predicted: list[Predicted], probs: FloatArray) -> FloatArray:
    """DPEs computed anew from what is stored, so that they are those of the library to the last bit."""
    rows = [one.prediction for one in predicted]
    if any(row.members is not None for row in rows):
        return np.array([stored_prediction(row).disagreement_probs[0] for row in rows], dtype=np.float64)
    a = [row.log_concentration for row in rows]
    if not rows or any(value is None for value in a):
        return PointCpe(probs).disagreement_probs
    return DirichletCpe(probs, np.array(a, dtype=np.float64)).disagreement_probs
