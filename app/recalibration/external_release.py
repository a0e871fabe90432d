"""A release that was trained elsewhere, judged by the same gate as a recalibration's candidate."""

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
from app.jobs.handle import JobResult, RunningJob
from app.metrics.cohort import Cohort, Question, cohort_of, held_out, left_out
from app.metrics.dataset import Columns
from app.metrics.load import read_columns
from app.metrics.queries import LabelRow, blind_labels, label_rows
from app.recalibration.change_plan import ChangePlan
from app.recalibration.evidence import (
    Judgement,
    begun_attempt,
    change_between,
    forgotten,
    since_first_champion,
    without_annotator,
)
from app.recalibration.gate_decision import FEWEST_ANNOTATORS, Evidence
from app.recalibration.predict_old_cases import predict_again
from app.recalibration.report import JudgementReport
from app.releases.gate_verdicts import Gate, record_judgement, standing_gate
from app.releases.queries import class_codes, existing_release, served_release_id
from app.releases.training import what_is_known
from ml.messages import Message
from ml.metrics.paired_difference import Change
from ml.release.card import CardContents

_JUDGED = "judged"


def judge_release(job: RunningJob) -> JobResult:
    """Job: predict old cases with a release, judge it against the champion, keep the verdict. It promotes nothing.

    Raises:
        Conflict: it is the champion.
        NoRelease: there is no champion.
    """
    known = job.recorded(_JUDGED)
    if known is not None:
        return known
    release_id = uuid.UUID(job.parameters["release"])
    plan = ChangePlan.read(job.context.settings.change_plan)
    predict_again(job)
    job.report(0.96, Message("judging against the champion"))
    with job.context.database.read_moment() as session:
        material = _gather(session, release_id, job.context.keys.training)
        basis = _basis(material, plan)
        standing = standing_gate(session, existing_release(session, release_id), material.champion_id, basis)
    gate = _gate(job, material, plan) if standing is None else _repeated(standing)

    def keep(session: Session) -> JobResult:
        if standing is None:
            row = existing_release(session, release_id)
            record_judgement(session, job.context.keys.audit, "gate", row, material.champion_id, gate, basis)
        return JudgementReport(
            release=str(release_id),
            champion=str(material.champion_id),
            gate=gate,
            n_evaluated=len(material.cohort.columns),
            n_left_out_of_judgement=material.n_left_out,
            n_labelled_not_predicted=material.n_not_predicted,
        ).to_dict()

    return job.batch(_JUDGED, keep)


def _repeated(standing: Gate) -> Gate:
    again = Message(
        "Nothing that it is judged by has changed since: this verdict stands, and asking again was no attempt."
    )
    return standing.model_copy(update={"findings": [again, *standing.findings]})


@dataclass(frozen=True)
class _Material:
    """Everything that the judgement reads, at one moment.

    Attributes:
        champion_id: against which.
        cohort: cases of the evaluation partition that both have predicted, with the champion's predictions and weights.
        after: the release's predictions of the same cases.
        labels: their blind planned labels.
        n_left_out: cases that either was trained on.
        n_not_predicted: labelled cases that the release has not predicted.
        findings: what is not known of its training, and of attempts before a backup, a sentence each.
    """

    champion_id: uuid.UUID
    cohort: Cohort
    after: Columns
    labels: list[LabelRow]
    n_left_out: int
    n_not_predicted: int
    findings: tuple[str, ...]


def _gather(session: Session, release_id: uuid.UUID, key: DerivedKey) -> _Material:
    """Read what the judgement needs.

    Args:
        session: for reading.
        release_id: what is judged.
        key: of this installation, for patients of training sets.

    Raises:
        Conflict: the release is the champion.
        NoRelease: there is no champion.
    """
    champion_id = served_release_id(session)
    if champion_id == release_id:
        raise Conflict("this release is the champion; there is nothing to judge it against")
    row = existing_release(session, release_id)
    classes, question = class_codes(row), Question()
    columns, after = (read_columns(session, one, classes) for one in (champion_id, release_id))
    rows = _rows_in(after, columns)
    trained_on = columns.trained_on.copy()
    trained_on[rows >= 0] |= after.trained_on[rows[rows >= 0]]
    cohort = cohort_of(held_out(columns, trained_on), question, time_of(session).timestamp())
    rows = _rows_in(after, cohort.columns)
    n_not_predicted = int(((rows < 0) & (cohort.columns.n_labels > 0)).sum())
    known = cohort.take(rows >= 0)
    return _Material(
        champion_id,
        known,
        after.take(rows[rows >= 0]),
        label_rows(session, blind_labels(), known.columns.ids()),
        left_out(columns, question, trained_on),
        n_not_predicted,
        _untold(row.card, key) + forgotten(session),
    )


def _basis(material: _Material, plan: ChangePlan) -> str:
    """Digest of what a verdict follows from: cases, labels, bounds, and what is known of training and of backups."""
    labels = sorted((str(row.case_id), row.annotator, row.class_code) for row in material.labels)
    cases = sorted(str(case_id) for case_id in material.cohort.columns.ids())
    return hashlib.sha256(json.dumps([cases, labels, plan.sha256(), material.findings]).encode()).hexdigest()


def _untold(card: CardContents, key: DerivedKey) -> tuple[str, ...]:
    """What a release does not say of its training, a sentence each."""
    images, patients = what_is_known(card, key)
    if images == "unknown":
        return (Message("Which cells it was trained on is unknown; overlaps with the evaluation cannot be left out."),)
    if patients == "unknown":
        return (Message("Whether it was trained on other cells of the patients who judge it is unknown."),)
    return ()


def _rows_in(others: Columns, columns: Columns) -> npt.NDArray[np.intp]:
    """Row (N,) of each case among other columns, −1 where it is not there."""
    row_of = {case_id.tobytes(): row for row, case_id in enumerate(others.case_id)}
    return np.array([row_of.get(case_id.tobytes(), -1) for case_id in columns.case_id], dtype=np.intp)


def _gate(job: RunningJob, material: _Material, plan: ChangePlan) -> Gate:
    """Judgement with everybody, and without each annotator: no label had a part in making the release."""
    attempt = begun_attempt(job, material.champion_id)
    cohort, after = material.cohort, material.after
    names = sorted({label.annotator for label in material.labels})
    without: dict[str, Change | str] = {}
    for name in names if len(names) >= FEWEST_ANNOTATORS else []:
        less = without_annotator(cohort, material.labels, name)
        without[name] = change_between(less, less.columns, after)
    with job.context.database.read_moment() as session:
        folders = job.context.folders
        first = since_first_champion(session, folders, material.champion_id, cohort, after)
    whole = change_between(cohort, cohort.columns, after)
    evidence = Evidence(whole, cohort.columns.cluster, len(names), first.change, without)
    return Judgement(material.champion_id, attempt, evidence, first, plan.max_increase, material.findings).gate()
