"""A cohort as the LABELS and PREDICTIONS tables that ``secondread evaluate`` and ``agreement`` read."""

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy.orm import Session

from app.metrics.cohort import Cohort
from app.metrics.queries import LabelRow, blind_labels, case_names, label_rows

if TYPE_CHECKING:
    from ml.tables.reading import Column


@dataclass(frozen=True)
class LabelColumns:
    """Columns of LABELS, one row per label."""

    # name of the case
    case_id: list[str] = field(default_factory=list)
    # who gave the label
    annotator: list[str] = field(default_factory=list)
    label: list[str] = field(default_factory=list)
    # the cluster; a case without a patient is its own
    patient: list[str] = field(default_factory=list)
    # where the image came from, empty if not recorded
    site: list[str] = field(default_factory=list)
    # number of the planned read that it answers, 0 of none
    planned_read: list[int] = field(default_factory=list)
    # the case's number in the cohort
    row: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class CohortTables:
    """LABELS and PREDICTIONS (one row per case) of a cohort."""

    labels: LabelColumns
    # whether the cohort is; without weights estimates of order 1 use every label
    weighted: bool
    # inverse selection probability of order 1 of each label's case
    weight: list[float]
    # the same of order 2
    weight2: list[float]
    predictions: "dict[str, Column]"
    # identifiers of the cases, in the order of PREDICTIONS
    case_ids: list[uuid.UUID]

    def labels_table(self) -> "dict[str, Column]":
        """Columns of LABELS with their weights, as they are written to a file."""
        table: dict[str, Column] = {
            "case_id": self.labels.case_id,
            "annotator": self.labels.annotator,
            "label": self.labels.label,
            "patient": self.labels.patient,
            "site": self.labels.site,
            "weight": self.weight,
            "weight2": self.weight2,
        }
        return table | {"planned_read": self.labels.planned_read} if self.weighted else table


def cohort_tables(session: Session, cohort: Cohort, *, identified: bool = True) -> CohortTables:
    """Tables of a cohort; evaluating them gives the document of the API to the last digit."""
    data, ids = cohort.columns, cohort.columns.ids()
    names = _read_case_names(session, ids) if identified else _anonymous_case_names(session, cohort, ids)
    labels = _label_columns(ids, names, _used_labels(session, cohort, ids))
    first, second = _order_weights(cohort)
    predictions: dict[str, Column] = {"case_id": names.case}
    predictions |= {f"prob:{code}": data.class_probs[:, k] for k, code in enumerate(data.classes)}
    predictions |= {"disagreement_prob": data.disagreement_probs, "patient": names.patient}
    weight, weight2 = ([weights[row] for row in labels.row] for weights in (first, second))
    return CohortTables(labels, cohort.weight is not None, weight, weight2, predictions, ids)


def cohort_label_columns(session: Session, cohort: Cohort) -> LabelColumns:
    """LABELS of a cohort alone, with external ids and patients, in the order of the case identifiers."""
    labelled = cohort.take(cohort.columns.n_labels > 0)
    ids = sorted(labelled.columns.ids())
    return _label_columns(ids, _read_case_names(session, ids), label_rows(session, blind_labels(), ids))


def _used_labels(session: Session, cohort: Cohort, ids: list[uuid.UUID]) -> list[LabelRow]:
    """Labels that the estimates use: weighted, all of a case that order 2 uses, else the answer to its first read."""
    labels = label_rows(session, blind_labels(), ids)
    first, second = cohort.weight, cohort.weight2
    if first is None or second is None:
        return labels
    one, two = ({ids[row] for row in np.flatnonzero(weight > 0)} for weight in (first, second))
    return [
        label
        for label in labels
        if label.case_id in two or (label.case_id in one and label.ordinal == 1 and not label.outside)
    ]


@dataclass(frozen=True)
class _CaseNames:
    """Names of the cases of a table: case, patient (the cluster) and site, each (N,)."""

    case: list[str]
    patient: list[str]
    site: list[str]


def _read_case_names(session: Session, ids: list[uuid.UUID]) -> _CaseNames:
    names_by_id = case_names(session, ids)
    names = [names_by_id[case_id] for case_id in ids]
    return _CaseNames(
        [name.external_id for name in names], [name.cluster for name in names], [name.site for name in names]
    )


def _anonymous_case_names(session: Session, cohort: Cohort, ids: list[uuid.UUID]) -> _CaseNames:
    names_by_id = case_names(session, ids)
    numbers = np.unique(cohort.columns.cluster, return_inverse=True)[1]  # of nobody outside of this table
    return _CaseNames(
        [str(case_id) for case_id in ids],
        [f"patient:{number}" for number in numbers],
        [names_by_id[case_id].site for case_id in ids],
    )


def _label_columns(ids: list[uuid.UUID], names: _CaseNames, labels: list[LabelRow]) -> LabelColumns:
    row_of = {case_id: row for row, case_id in enumerate(ids)}
    columns = LabelColumns()
    for label in labels:
        row = row_of[label.case_id]
        columns.case_id.append(names.case[row])
        columns.annotator.append(label.annotator)
        columns.label.append(label.class_code)
        columns.patient.append(names.patient[row])
        columns.site.append(names.site[row])
        columns.planned_read.append(label.ordinal or 0)
        columns.row.append(row)
    return columns


def _order_weights(cohort: Cohort) -> list[list[float]]:
    """Weights of both orders; 1 where a case has fewer labels than the order needs, which no estimate reads."""
    ones = np.ones(len(cohort.columns))
    return [
        (ones if weights is None else np.where(weights.weight > 0, weights.weight, 1.0)).tolist()
        for weights in (cohort.first, cohort.second)
    ]
