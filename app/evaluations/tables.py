"""A cohort as the LABELS and PREDICTIONS tables that ``secondread evaluate`` and ``agreement`` read."""

import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy.orm import Session

from app.evaluations.cohort import Cohort
from app.evaluations.queries import blind_labels, external_ids, label_rows


@dataclass(frozen=True)
class CohortTables:
    """Columns of LABELS (one row a label) and PREDICTIONS (one row a case).

    ``weight`` and ``weight2`` are the inverse selection probabilities of order 1 and 2, ``patient`` is the cluster,
    ``row`` the case's number in PREDICTIONS.
    """

    labels: dict[str, list[Any]]
    predictions: dict[str, Any]
    case_ids: list[uuid.UUID]


def cohort_tables(session: Session, cohort: Cohort, *, identified: bool = True) -> CohortTables:
    """Tables of a cohort; evaluating them gives the document of the API to the last digit.

    Args:
        session: for reading.
        cohort: cases with weights.
        identified: with external ids and patients; else with internal numbers only, so that the tables may outlive
            the erasure of a patient.
    """
    data, ids = cohort.columns, cohort.columns.ids()
    known = external_ids(session, ids)
    row_of = {case_id: row for row, case_id in enumerate(ids)}
    names = [known[case_id][0] if identified else str(case_id) for case_id in ids]
    first, second = _weights(cohort)
    patients = [known[case_id][1] if identified else str(data.cluster[row]) for row, case_id in enumerate(ids)]
    clusters = [f"case:{i}" if one is None else f"patient:{one}" for i, one in zip(ids, patients, strict=True)]
    labels: dict[str, list[Any]] = {
        name: [] for name in ("case_id", "annotator", "label", "patient", "site", "weight", "weight2", "row")
    }
    for label in label_rows(session, blind_labels(), ids):
        row = row_of[label.case_id]
        site = known[label.case_id][2] or ""
        values = (names[row], label.annotator, label.class_code, clusters[row], site, first[row], second[row], row)
        for column, value in zip(labels.values(), values, strict=True):
            column.append(value)
    predictions: dict[str, Any] = {"case_id": names}
    predictions |= {f"prob:{code}": data.class_probs[:, k] for k, code in enumerate(data.classes)}
    return CohortTables(labels, predictions | {"disagreement_prob": data.disagreement_probs, "patient": clusters}, ids)


def _weights(cohort: Cohort) -> list[list[float]]:
    """Weights of both orders; 1 where a case has fewer labels than the order needs, which no estimate reads."""
    ones = np.ones(len(cohort.columns))
    return [
        (ones if found is None else np.where(found.weight > 0, found.weight, 1.0)).tolist()
        for found in (cohort.first, cohort.second)
    ]
