"""Judges a release trained elsewhere by the same gate as a recalibration's candidate."""

import hashlib
import json
import uuid
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sqlalchemy.orm import Session

from app.audit.chain.keys import DerivedKey
from app.database.tables import time_of
from app.http.errors import Conflict
from app.jobs.service import JobResult, RunningJob
from app.metrics import service as metric_service
from app.recalibration.change_plan import ChangePlan
from app.recalibration.evidence import (
    GateJudgement,
    begin_job_attempt,
    compare_with_first_champion,
    describe_lost_attempts,
    exclude_annotator,
    measure_paired_change,
)
from app.recalibration.gate_decision import FEWEST_ANNOTATORS, GateEvidence
from app.recalibration.predict_old_cases import predict_stored_cases
from app.recalibration.report import JudgementReport
from app.releases import service as release_service
from ml.messages import Message
from ml.metrics.paired_difference import Change
from ml.release.card import CardContents

_JUDGED = "judged"


def judge_release(job: RunningJob) -> JobResult:
    """Job: predict old cases with a release, judge it against the champion, keep the verdict. It promotes nothing."""
    recorded_result = job.recorded(_JUDGED)
    if recorded_result is not None:
        return recorded_result
    release_id = uuid.UUID(job.parameters["release"])
    plan = ChangePlan.read(job.context.settings.change_plan)
    predict_stored_cases(job)
    job.report(0.96, Message("comparing with the champion"))
    with job.context.database.read_moment() as session:
        material = _read_judgement_inputs(session, release_id, job.context.keys.training)
        basis = _verdict_basis(material, plan)
        standing = release_service.find_standing_gate(
            session, release_service.existing_release(session, release_id), material.champion_id, basis
        )
    gate = _judge_external_release(job, material, plan) if standing is None else _repeat_verdict(standing)

    def keep(session: Session) -> JobResult:
        if standing is None:
            row = release_service.existing_release(session, release_id)
            release_service.record_judgement(
                session, job.context.keys.audit, "gate", row, material.champion_id, gate, basis
            )
        return JudgementReport(
            release=str(release_id),
            champion=str(material.champion_id),
            gate=gate,
            n_evaluated=len(material.cohort.columns),
            n_left_out_of_judgement=material.n_left_out,
            n_labelled_not_predicted=material.n_not_predicted,
        ).to_dict()

    return job.batch(_JUDGED, keep)


def _repeat_verdict(standing: release_service.Gate) -> release_service.Gate:
    again = Message("No label has changed since the last check, so its result stands and no attempt was used.")
    return standing.model_copy(update={"findings": [again, *standing.findings]})


@dataclass(frozen=True)
class _JudgementInputs:
    """Inputs of the judgement, read at one moment."""

    champion_id: uuid.UUID
    # cases of the evaluation partition that both have predicted, with the champion's predictions and weights
    cohort: metric_service.Cohort
    # the release's predictions of the same cases
    after: metric_service.EvaluationDataset
    # their blind planned labels
    labels: list[metric_service.LabelRow]
    # cases that either was trained on
    n_left_out: int
    # labelled cases that the release has not predicted
    n_not_predicted: int
    # what is not known of its training, and of attempts before a backup, a sentence each
    findings: tuple[str, ...]


def _read_judgement_inputs(session: Session, release_id: uuid.UUID, key: DerivedKey) -> _JudgementInputs:
    champion_id = release_service.served_release_id(session)
    if champion_id == release_id:
        raise Conflict("this model release is the champion; choose another one to compare")
    row = release_service.existing_release(session, release_id)
    classes, question = release_service.class_codes(row), metric_service.CohortQuery()
    columns, after = (metric_service.load_dataset(session, one, classes) for one in (champion_id, release_id))
    rows = _match_case_rows(after, columns)
    trained_on = columns.trained_on.copy()
    trained_on[rows >= 0] |= after.trained_on[rows[rows >= 0]]
    cohort = metric_service.build_cohort(
        metric_service.exclude_training_cases(columns, trained_on), question, time_of(session).timestamp()
    )
    rows = _match_case_rows(after, cohort.columns)
    n_not_predicted = int(((rows < 0) & (cohort.columns.n_labels > 0)).sum())
    common_cases = cohort.take(rows >= 0)
    return _JudgementInputs(
        champion_id,
        common_cases,
        after.take(rows[rows >= 0]),
        metric_service.label_rows(session, metric_service.blind_labels(), common_cases.columns.ids()),
        metric_service.count_excluded_cases(columns, question, trained_on),
        n_not_predicted,
        _unknown_training_findings(row.card, key) + describe_lost_attempts(session),
    )


def _verdict_basis(material: _JudgementInputs, plan: ChangePlan) -> str:
    """Digest of what a verdict follows from: cases, labels, bounds, and what is known of training and of backups."""
    labels = sorted((str(row.case_id), row.annotator, row.class_code) for row in material.labels)
    cases = sorted(str(case_id) for case_id in material.cohort.columns.ids())
    return hashlib.sha256(json.dumps([cases, labels, plan.sha256(), material.findings]).encode()).hexdigest()


def _unknown_training_findings(card: CardContents, key: DerivedKey) -> tuple[str, ...]:
    images, patients = release_service.check_training_disclosure(card, key)
    if images == "unknown":
        return (Message("Its training cells are unknown, so overlaps with the evaluation cannot be excluded."),)
    if patients == "unknown":
        return (Message("Its training may include other cells of the evaluation patients."),)
    return ()


def _match_case_rows(
    others: metric_service.EvaluationDataset, columns: metric_service.EvaluationDataset
) -> npt.NDArray[np.intp]:
    row_of = {case_id.tobytes(): row for row, case_id in enumerate(others.case_id)}
    return np.array([row_of.get(case_id.tobytes(), -1) for case_id in columns.case_id], dtype=np.intp)


def _judge_external_release(job: RunningJob, material: _JudgementInputs, plan: ChangePlan) -> release_service.Gate:
    """Judgement with everybody, and without each annotator: no label had a part in making the release."""
    attempt = begin_job_attempt(job, material.champion_id)
    cohort, after = material.cohort, material.after
    names = sorted({label.annotator for label in material.labels})
    without: dict[str, Change | str] = {}
    for name in names if len(names) >= FEWEST_ANNOTATORS else []:
        less = exclude_annotator(cohort, material.labels, name)
        without[name] = measure_paired_change(less, less.columns, after)
    with job.context.database.read_moment() as session:
        folders = job.context.folders
        first = compare_with_first_champion(session, folders, material.champion_id, cohort, after)
    whole = measure_paired_change(cohort, cohort.columns, after)
    evidence = GateEvidence(whole, cohort.columns.cluster, len(names), first.change, without)
    return GateJudgement(material.champion_id, attempt, evidence, first, plan.max_increase, material.findings).gate()
