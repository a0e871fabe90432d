"""Metrics and agreement over collected labels, computed at each call."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from sqlalchemy.orm import Session

from app.context import ServiceContext
from app.database.tables import time_of
from app.http.models import MetricOut
from app.metrics.annotator_drift import ReaderWeekOut, reader_drift
from app.metrics.cohort import (
    Cohort,
    CohortQuery,
    annotator_difference_warnings,
    build_cohort,
    cluster_name,
    cohort_warnings,
    count_excluded_cases,
    estimate_posterior_gain,
    evaluate_cohort,
    exclude_training_cases,
    excluded_case_warnings,
    is_kept_for_sets,
    selection_report,
    training_exclusion_out,
    triage_curve,
)
from app.metrics.dataset import EvaluationDataset
from app.metrics.drift import measure_drift
from app.metrics.left_out import count_left_out_labels
from app.metrics.load import load_dataset, load_expected_gains
from app.metrics.published import read_published_estimates
from app.metrics.queries import LabelRow, blind_labels, case_names, label_rows, stored_images, used_by
from app.metrics.schemas import (
    AgreementOut,
    AnnotatorAgreementOut,
    BinOut,
    ComparisonOut,
    DesignOut,
    EvaluationDocument,
    EvaluationIn,
    EvaluationOut,
    EvaluationQuestionOut,
    EvaluationsOut,
    FrozenDocument,
    GroupOut,
    LeftOutOut,
    MetricsBody,
    MetricsHead,
    MetricsOut,
    Partition,
    ScoreMonitorOut,
    TrainedOnOut,
    Weighting,
)
from app.metrics.score_alarm import score_monitors
from app.metrics.secondary_statistics import (
    compare_with_champion,
    count_corrections,
    count_post_reveal_changes,
    simulate_designs,
)
from app.metrics.snapshot import (
    damaged_snapshots,
    discard_all_snapshots,
    fetch_snapshots,
    load_current_dataset,
    refresh_snapshot,
)
from app.predictions.service import PublishedSets, read_published_sets
from app.releases.service import champion_since, class_codes, existing_release, get_champion_alias, served_release_id
from ml.agreement.coefficients import excess_disagreement_test
from ml.messages import Message
from ml.release.card import ReferenceDocument, measured_reference

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
    # when an outside annotator gave the label, empty if not known
    at: list[str] = field(default_factory=list)
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
    used = list(filter(used_by(cohort), label_rows(session, blind_labels(), ids)))
    labels = _label_columns(ids, names, used)
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
        columns.at.append("" if label.given_at is None else label.given_at.isoformat())
        columns.row.append(row)
    return columns


def _order_weights(cohort: Cohort) -> list[list[float]]:
    """Weights of both orders; 1 where a case has fewer labels than the order needs, which no estimate reads."""
    ones = np.ones(len(cohort.columns))
    return [
        (ones if weights is None else np.where(weights.weight > 0, weights.weight, 1.0)).tolist()
        for weights in (cohort.first, cohort.second)
    ]


GroupBy = Literal["site", "month"]
_DEPENDENT = 0.001


def release_or_champion(session: Session, release_id: uuid.UUID | None) -> tuple[uuid.UUID, list[str]]:
    """A release, the champion where none is named, and its class codes."""
    release_id = release_id or served_release_id(session)
    return release_id, class_codes(existing_release(session, release_id))


def load_cohort(session: Session, question: CohortQuery) -> tuple[uuid.UUID, Cohort]:
    """Cohort of the champion, from all rows and in the order of the cases."""
    release_id, classes = release_or_champion(session, None)
    return release_id, build_cohort(load_dataset(session, release_id, classes), question, time_of(session).timestamp())


class JudgedCohort(NamedTuple):
    """A release, the cases that judge it, how many others it was trained on, its alarms and sets, and all its cases."""

    release_id: uuid.UUID
    cohort: Cohort
    trained_on: TrainedOnOut
    monitors: list[ScoreMonitorOut]
    sets: PublishedSets | None
    predicted: EvaluationDataset


def load_judged_cohort(
    session: Session, context: ServiceContext, release_id: uuid.UUID | None, question: CohortQuery
) -> JudgedCohort:
    """Load a cohort without the cases that the release was trained on."""
    release_id, classes = release_or_champion(session, release_id)
    return _judge_cohort(session, context, release_id, load_dataset(session, release_id, classes), question)


def _judge_cohort(
    session: Session,
    context: ServiceContext,
    release_id: uuid.UUID,
    columns: EvaluationDataset,
    question: CohortQuery,
) -> JudgedCohort:
    card = existing_release(session, release_id).card
    trained_on = training_exclusion_out(count_excluded_cases(columns, question), context.keys.training, card)
    judged, time = exclude_training_cases(columns), context.clock()
    cohort = build_cohort(judged, question, time.timestamp())
    sets = read_published_sets(session, [release_id]).get(release_id)
    monitors = _champion_monitors(session, release_id, judged, time)
    return JudgedCohort(release_id, cohort, trained_on, monitors, sets, columns)


def build_metrics_body(
    cohort: Cohort,
    evaluated: EvaluationDocument,
    group_by: GroupBy | None = None,
    reference: ReferenceDocument | None = None,
    trained_on: TrainedOnOut | None = None,
    monitors: Sequence[ScoreMonitorOut] = (),
    sets: PublishedSets | None = None,
) -> MetricsBody:
    """Build the body of ``GET /v1/metrics`` for a cohort."""
    drift = measure_drift(cohort.columns, reference)
    warnings = [text for monitor in monitors for text in monitor.warnings]
    warnings += [*evaluated.warnings, *cohort_warnings(cohort), *_dependence_warnings(cohort)]
    warnings += [] if trained_on is None else excluded_case_warnings(trained_on)
    warnings += [text for row in drift for text in row.warnings]
    return MetricsBody(
        **dict(evaluated) | {"warnings": warnings},
        selection=selection_report(cohort),
        posterior_gain=estimate_posterior_gain(cohort),
        triage_curve=triage_curve(cohort),
        drift=drift,
        score_monitor=list(monitors),
        groups=[] if group_by is None else compute_group_metrics(cohort, group_by),
        trained_on=trained_on,
        answer_sets=sets,
    )


def _dependence_warnings(cohort: Cohort) -> list[str]:
    """A warning where annotators disagree more than any concentration can represent."""
    data, weight = cohort.columns, cohort.weight2
    usable = data.n_labels >= 2
    if weight is not None:
        usable &= weight > 0
    several = np.flatnonzero(usable)
    patients = data.cluster[several]
    if patients.size == 0 or (patients == patients[0]).all():
        return []
    test = excess_disagreement_test(
        data.label_counts[several],
        data.class_probs[several],
        sample_weight=None if weight is None else weight[several],
        cluster=patients,
    )
    if test.p_value >= _DEPENDENT:
        return []
    return [
        Message(
            "annotators disagree more often than the class probabilities allow (p = "
            "{p_value:.1g}): labels may depend on each other, or the classes are miscalibrated",
            p_value=test.p_value,
        )
    ]


def compute_group_metrics(cohort: Cohort, group_by: GroupBy) -> list[GroupOut]:
    """The headline metrics by site or by month of upload."""
    data = cohort.columns
    if group_by == "site":
        numbers = data.site
        names = {number: data.sites.get(number, "") for number in np.unique(numbers).tolist()}
    else:
        numbers = data.created_at.astype("datetime64[s]").astype("datetime64[M]").astype(np.int64)
        names = {number: str(np.datetime64(number, "M")) for number in np.unique(numbers).tolist()}
    groups = []
    for number, name in sorted(names.items(), key=lambda item: item[1]):
        evaluation = evaluate_cohort(cohort.take(numbers == number))
        estimates = {metric: MetricOut.of(estimate) for metric, estimate in evaluation.metrics.items()}
        groups.append(GroupOut(group=name, n_cases=evaluation.n_cases, metrics=estimates))
    return groups


def _champion_monitors(
    session: Session, release_id: uuid.UUID, columns: EvaluationDataset, at: datetime
) -> list[ScoreMonitorOut]:
    alias, since = get_champion_alias(session), champion_since(session)
    if alias is None or since is None or alias.release_id != release_id:
        return []
    return score_monitors(columns, since, at)


def compute_metrics(
    session: Session,
    context: ServiceContext,
    release_id: uuid.UUID | None,
    question: CohortQuery,
    group_by: GroupBy | None,
) -> MetricsOut:
    """Every metric of prior predictions against blind planned labels, clustered by patient."""
    # Cases come from the release's snapshot, and from the database where they have changed since; those that it was
    # trained on are left out.
    release_id, classes = release_or_champion(session, release_id)
    columns = load_current_dataset(session, context.settings.home, release_id, classes)
    judged = _judge_cohort(session, context, release_id, columns, question)
    document = EvaluationDocument.of(evaluate_cohort(judged.cohort))
    differences = annotator_difference_warnings(judged.cohort)
    evaluated = document.model_copy(update={"warnings": [*document.warnings, *differences]})
    reference = read_card_reference(session, release_id)
    body = build_metrics_body(
        judged.cohort, evaluated, group_by, reference, judged.trained_on, judged.monitors, judged.sets
    )
    head = MetricsHead(release=str(release_id), partition=question.partition, weighting=question.weighting)
    return MetricsOut(**dict(head), **dict(body))


def read_card_reference(session: Session, release_id: uuid.UUID) -> ReferenceDocument | None:
    """Read the reference for images and labels on a release's card, without what another network gave."""
    return measured_reference(existing_release(session, release_id).card)


def measure_label_agreement(labels: LabelColumns) -> AgreementOut:
    """Coefficients of agreement of a cohort's labels, clustered by patient."""
    if not labels.case_id:
        return AgreementOut(n_cases=0, n_labels=0, n_annotators=0, warnings=["there are no labels yet"])
    import pyarrow as pa

    from ml.agreement import measure_agreement

    columns = {name: getattr(labels, name) for name in ("case_id", "annotator", "label", "patient", "site")}
    return AgreementOut.model_validate(measure_agreement(pa.table(columns), cluster="patient").to_dict())


#: Parts of the document that tell groups apart, by the grouping.
_GROUPED: dict[str, set[str]] = {"annotator": {"annotators", "pairs"}, "class": {"classes"}, "site": {"sites"}}


def compute_agreement(session: Session, home: Path, question: CohortQuery, group_by: str | None) -> AgreementOut:
    """Compute agreement coefficients over blind planned labels, tests of independence, and corrections."""
    columns = load_current_dataset(session, home, *release_or_champion(session, None))
    cohort = build_cohort(columns, question, time_of(session).timestamp())
    changes = {
        "corrections": count_corrections(session, cohort.columns.ids()),
        "after_reveal": count_post_reveal_changes(session, cohort.columns),
    }
    document = measure_label_agreement(cohort_label_columns(session, cohort)).model_copy(update=changes)
    if group_by is None:
        return document
    left_out = set().union(*_GROUPED.values()) - _GROUPED[group_by]
    return AgreementOut(**{name: getattr(document, name) for name in document.model_fields_set - left_out})
