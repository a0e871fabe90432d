"""Metrics and agreement over collected labels, computed anew at each call."""

import uuid
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from sqlalchemy.orm import Session

from app.evaluations.cohort import (
    Cohort,
    Question,
    cohort_of,
    cohort_warnings,
    evaluate_cohort,
    gain_of,
    selection_report,
    triage_curve,
)
from app.evaluations.drift import drift_of
from app.evaluations.reading import read_columns
from app.evaluations.schemas import GroupOut, MetricsOut
from app.evaluations.snapshots import current_columns
from app.evaluations.tables import CohortTables, cohort_tables
from app.platform import observability
from app.releases.queries import class_codes, existing_release, served_release_id
from app.tables import now
from ml.agreement import measure_agreement
from ml.agreement.coefficients import excess_disagreement_test

GroupBy = Literal["site", "month"]
_DEPENDENT = 0.001


def release_or_champion(session: Session, release_id: uuid.UUID | None) -> tuple[uuid.UUID, list[str]]:
    """A release, the champion where none is named, and its class codes.

    Raises:
        NoRelease: there is no champion.
        NotFound: no such release.
    """
    release_id = release_id or served_release_id(session)
    return release_id, class_codes(existing_release(session, release_id))


def cohort_for(session: Session, release_id: uuid.UUID | None, question: Question) -> tuple[uuid.UUID, Cohort]:
    """Cohort of a release, the champion where none is named."""
    release_id, classes = release_or_champion(session, release_id)
    return release_id, cohort_of(read_columns(session, release_id, classes), question, now().timestamp())


def collected_tables(session: Session, question: Question) -> CohortTables:
    """Tables of what the champion predicted and of the labels that may judge it."""
    return cohort_tables(session, cohort_for(session, None, question)[1])


def metrics_document(
    cohort: Cohort, group_by: GroupBy | None = None, reference: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Everything that is told about a cohort, as JSON values.

    Args:
        cohort: cases with weights.
        group_by: also the headline metrics of each site or month.
        reference: of the release's card, from which drift is told.
    """
    document = evaluate_cohort(cohort)
    drift = drift_of(cohort.columns, reference)
    document["warnings"] += cohort_warnings(cohort) + _dependence(cohort)
    document["warnings"] += [text for row in drift for text in row["warnings"]]
    return document | {
        "selection": selection_report(cohort),
        "posterior_gain": gain_of(cohort),
        "triage_curve": triage_curve(cohort),
        "drift": drift,
        "groups": [] if group_by is None else _groups(cohort, group_by),
    }


def _dependence(cohort: Cohort) -> list[str]:
    """A warning where annotators disagree more than any concentration can represent."""
    data = cohort.columns
    several = np.flatnonzero(data.n_labels >= 2)
    if several.size < 2:
        return []
    test = excess_disagreement_test(data.label_counts[several], data.class_probs[several])
    if test.p_value >= _DEPENDENT:
        return []
    return [
        f"annotators disagree more than the class probabilities allow (p = {test.p_value:.1g}): their labels may not "
        "be independent given the image, or the classes are miscalibrated"
    ]


def _groups(cohort: Cohort, group_by: GroupBy) -> list[dict[str, Any]]:
    """The headline metrics by site or by month of upload."""
    data = cohort.columns
    if group_by == "site":
        numbers = data.site
        names = {number: data.sites.get(number, "") for number in np.unique(numbers).tolist()}
    else:
        numbers = data.created_at.astype("datetime64[s]").astype("datetime64[M]").astype(np.int64)
        names = {number: str(np.datetime64(number, "M")) for number in np.unique(numbers).tolist()}
    found = []
    for number, name in sorted(names.items(), key=lambda item: item[1]):
        document = evaluate_cohort(cohort.take(numbers == number))
        found.append({"group": name, "n_cases": document["n_cases"], "metrics": document["metrics"]})
    return found


def metrics(
    session: Session, home: Path, release_id: uuid.UUID | None, question: Question, group_by: GroupBy | None
) -> MetricsOut:
    """Every metric of prior predictions against blind planned labels, clustered by patient.

    Cases come from the release's snapshot in ``home``, and from the database where they have changed since.
    """
    release_id, classes = release_or_champion(session, release_id)
    cohort = cohort_of(current_columns(session, home, release_id, classes), question, now().timestamp())
    reference = existing_release(session, release_id).card.get("reference")
    document = metrics_document(cohort, group_by, reference)
    observability.publish_metrics(document["metrics"])
    groups = [GroupOut(**row) for row in document.pop("groups")]
    return MetricsOut(
        release=str(release_id), partition=question.partition, weighting=question.weighting, groups=groups, **document
    )


def agreement_of(tables: CohortTables) -> dict[str, Any]:
    """Coefficients of agreement of a cohort's labels, clustered by patient."""
    columns = {name: values for name, values in tables.labels.items() if name not in {"row", "weight", "weight2"}}
    if len(columns["case_id"]) == 0:
        return {"n_cases": 0, "n_labels": 0, "n_annotators": 0, "warnings": ["there are no labels yet"]}
    return measure_agreement(pa.table(columns), cluster="patient").to_dict()


def agreement(session: Session, question: Question, group_by: str | None) -> dict[str, Any]:
    """Coefficients of agreement between annotators over blind planned labels, and what speaks against independence."""
    document = agreement_of(collected_tables(session, question))
    kept = {"annotator": {"annotators", "pairs"}, "class": {"classes"}, "site": {"sites"}}
    if group_by is None:
        return document
    grouped = set().union(*kept.values())
    return {name: value for name, value in document.items() if name not in grouped or name in kept[group_by]}
