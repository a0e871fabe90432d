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


def cohort_tables(session: Session, cohort: Cohort) -> CohortTables:
    """Tables of a cohort; evaluating them gives the document of the API to the last digit."""
    data, ids = cohort.columns, cohort.columns.ids()
    known = external_ids(session, ids)
    row_of = {case_id: row for row, case_id in enumerate(ids)}
    names = [known[case_id][0] for case_id in ids]
    first, second = _weights(cohort)
    labels: dict[str, list[Any]] = {
        name: [] for name in ("case_id", "annotator", "label", "patient", "site", "weight", "weight2", "row")
    }
    for label in label_rows(session, blind_labels(), ids):
        row = row_of[label.case_id]
        patient = known[label.case_id][1]
        cluster = f"case:{label.case_id}" if patient is None else f"patient:{patient}"
        site = known[label.case_id][2] or ""
        values = (names[row], label.annotator, label.class_code, cluster, site, first[row], second[row], row)
        for column, value in zip(labels.values(), values, strict=True):
            column.append(value)
    predictions: dict[str, Any] = {"case_id": names}
    predictions |= {f"prob:{code}": data.class_probs[:, k] for k, code in enumerate(data.classes)}
    return CohortTables(labels, predictions | {"disagreement_prob": data.disagreement_probs}, ids)


def _weights(cohort: Cohort) -> list[list[float]]:
    """Weights of both orders; 1 where a case has fewer labels than the order needs, which no estimate reads."""
    ones = np.ones(len(cohort.columns))
    return [
        (ones if found is None else np.where(found.weight > 0, found.weight, 1.0)).tolist()
        for found in (cohort.first, cohort.second)
    ]
