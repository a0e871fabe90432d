"""Metrics and agreement over collected labels, computed at each call."""

import uuid
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from sqlalchemy.orm import Session

from app.context import Context
from app.database.tables import time_of
from app.http.models import MetricOut
from app.metrics.cohort import (
    Cohort,
    Question,
    cohort_of,
    cohort_warnings,
    differing_annotators,
    evaluate_cohort,
    gain_of,
    held_out,
    left_out,
    left_out_warnings,
    selection_report,
    trained_on_out,
    triage_curve,
)
from app.metrics.dataset import Columns
from app.metrics.drift import drift_of
from app.metrics.load import read_columns
from app.metrics.schemas import (
    AgreementOut,
    CapacityOut,
    DriftOut,
    EvaluationDocument,
    GroupOut,
    MetricsBody,
    MetricsHead,
    MetricsOut,
    ScoreMonitorOut,
    SelectionOut,
    TrainedOnOut,
)
from app.metrics.score_alarm import score_monitors
from app.metrics.secondary_statistics import changes_after_reveal, corrections_of
from app.metrics.snapshot import current_columns
from app.metrics.tables import CohortTables, LabelColumns, cohort_tables, labels_of
from app.predictions.prediction_sets import PublishedSets, published_sets
from app.releases.queries import champion, champion_since, class_codes, existing_release, served_release_id
from ml.agreement.coefficients import excess_disagreement_test
from ml.messages import Message
from ml.release.card import ReferenceDocument

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
    """Cohort of a release, the champion where none is named, from all rows and in the order of the cases."""
    release_id, classes = release_or_champion(session, release_id)
    return release_id, cohort_of(read_columns(session, release_id, classes), question, time_of(session).timestamp())


class Judged(NamedTuple):
    """A release, the cases that judge it, how many others it was trained on, its alarms as champion, and its sets."""

    release_id: uuid.UUID
    cohort: Cohort
    trained_on: TrainedOnOut
    monitors: list[ScoreMonitorOut]
    sets: PublishedSets | None


def judged_cohort(session: Session, context: Context, release_id: uuid.UUID | None, question: Question) -> Judged:
    """The same without the cases that the release was trained on."""
    release_id, classes = release_or_champion(session, release_id)
    columns = read_columns(session, release_id, classes)
    card = existing_release(session, release_id).card
    trained_on = trained_on_out(left_out(columns, question), context.keys.training, card)
    judged, time = held_out(columns), context.clock()
    cohort = cohort_of(judged, question, time.timestamp())
    sets = published_sets(session, [release_id]).get(release_id)
    return Judged(release_id, cohort, trained_on, _monitors(session, release_id, judged, time), sets)


def _recent_cohort(session: Session, home: Path, release_id: uuid.UUID, classes: list[str], asked: Question) -> Cohort:
    """The same from the release's snapshot, and from the database where cases have changed since."""
    return cohort_of(current_columns(session, home, release_id, classes), asked, time_of(session).timestamp())


def collected_tables(session: Session, question: Question) -> CohortTables:
    """Tables of what the champion predicted and of the labels that may judge it."""
    return cohort_tables(session, cohort_for(session, None, question)[1])


class _Beside(NamedTuple):
    """What ``GET /v1/metrics`` says of a cohort besides its evaluation, and sentences about it."""

    drift: list[DriftOut]
    selection: SelectionOut
    gain: MetricOut | None
    curve: list[CapacityOut]
    warnings: list[str]

    @classmethod
    def of(cls, cohort: Cohort, reference: ReferenceDocument | None) -> "_Beside":
        curve, gain = triage_curve(cohort), gain_of(cohort)
        texts = [*cohort_warnings(cohort), *_dependence(cohort)]
        return cls(drift_of(cohort.columns, reference), selection_report(cohort), gain, curve, texts)


def metrics_of(
    cohort: Cohort,
    evaluated: EvaluationDocument,
    group_by: GroupBy | None = None,
    reference: ReferenceDocument | None = None,
    trained_on: TrainedOnOut | None = None,
    monitors: Sequence[ScoreMonitorOut] = (),
    sets: PublishedSets | None = None,
) -> MetricsBody:
    """Everything that ``GET /v1/metrics`` says of a cohort.

    Args:
        cohort: cases with weights.
        evaluated: their evaluation.
        group_by: by what the headline metrics are grouped too.
        reference: of the release's card.
        trained_on: cases that were left out before.
        monitors: of the champion's log score, whatever the cohort is.
        sets: what is published of the release's sets for the next answer, whatever the cohort is.
    """
    beside = _Beside.of(cohort, reference)
    warnings = [text for monitor in monitors for text in monitor.warnings]
    warnings += [*evaluated.warnings, *beside.warnings]
    warnings += [] if trained_on is None else left_out_warnings(trained_on)
    warnings += [text for row in beside.drift for text in row.warnings]
    return MetricsBody(
        **dict(evaluated) | {"warnings": warnings},
        selection=beside.selection,
        posterior_gain=beside.gain,
        triage_curve=beside.curve,
        drift=beside.drift,
        score_monitor=list(monitors),
        groups=[] if group_by is None else groups_of(cohort, group_by),
        trained_on=trained_on,
        answer_sets=sets,
    )


def _dependence(cohort: Cohort) -> list[str]:
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
            "annotators disagree more than the class probabilities allow (p = {p_value:.1g}): their "
            "labels may not be independent given the image, or the classes are miscalibrated",
            p_value=test.p_value,
        )
    ]


def groups_of(cohort: Cohort, group_by: GroupBy) -> list[GroupOut]:
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


def _monitors(session: Session, release_id: uuid.UUID, columns: Columns, at: datetime) -> list[ScoreMonitorOut]:
    """The alarm on the champion's log score; nothing for another release."""
    alias, since = champion(session), champion_since(session)
    if alias is None or since is None or alias.release_id != release_id:
        return []
    return score_monitors(columns, since, at)


def metrics(
    session: Session, context: Context, release_id: uuid.UUID | None, question: Question, group_by: GroupBy | None
) -> MetricsOut:
    """Every metric of prior predictions against blind planned labels, clustered by patient.

    Cases come from the release's snapshot, and from the database where they have changed since; those that it was
    trained on are left out.
    """
    release_id, classes = release_or_champion(session, release_id)
    columns = current_columns(session, context.settings.home, release_id, classes)
    judged = held_out(columns)
    time = context.clock()
    cohort, monitors = cohort_of(judged, question, time.timestamp()), _monitors(session, release_id, judged, time)
    card = existing_release(session, release_id).card
    trained_on = trained_on_out(left_out(columns, question), context.keys.training, card)
    sets = published_sets(session, [release_id]).get(release_id)
    document = EvaluationDocument.of(evaluate_cohort(cohort))
    evaluated = document.model_copy(update={"warnings": [*document.warnings, *differing_annotators(cohort)]})
    body = metrics_of(cohort, evaluated, group_by, card.get("reference"), trained_on, monitors, sets)
    head = MetricsHead(release=str(release_id), partition=question.partition, weighting=question.weighting)
    return MetricsOut(**dict(head), **dict(body))


def reference_of(session: Session, release_id: uuid.UUID) -> ReferenceDocument | None:
    """What a release's card says about the images and labels that it was made from."""
    return existing_release(session, release_id).card.get("reference")


def agreement_of(labels: LabelColumns) -> AgreementOut:
    """Coefficients of agreement of a cohort's labels, clustered by patient."""
    if not labels.case_id:
        return AgreementOut(n_cases=0, n_labels=0, n_annotators=0, warnings=["there are no labels yet"])
    import pyarrow as pa

    from ml.agreement import measure_agreement

    columns = {name: getattr(labels, name) for name in ("case_id", "annotator", "label", "patient", "site")}
    return AgreementOut.model_validate(measure_agreement(pa.table(columns), cluster="patient").to_dict())


#: Parts of the document that tell groups apart, by the grouping.
_GROUPED: dict[str, set[str]] = {"annotator": {"annotators", "pairs"}, "class": {"classes"}, "site": {"sites"}}


def agreement(session: Session, home: Path, question: Question, group_by: str | None) -> AgreementOut:
    """Coefficients of agreement between annotators over blind planned labels, what speaks against independence, slips.

    Args:
        session: for reading.
        home: where the snapshots lie.
        question: which cases.
        group_by: annotator, class or site, to leave out the other groupings; None for all of them.
    """
    cohort = _recent_cohort(session, home, *release_or_champion(session, None), question)
    changes = {
        "corrections": corrections_of(session, cohort.columns.ids()),
        "after_reveal": changes_after_reveal(session, cohort.columns),
    }
    document = agreement_of(labels_of(session, cohort)).model_copy(update=changes)
    if group_by is None:
        return document
    left_out = set().union(*_GROUPED.values()) - _GROUPED[group_by]
    return AgreementOut(**{name: getattr(document, name) for name in document.model_fields_set - left_out})
