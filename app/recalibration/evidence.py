"""Gate evidence on the evaluation partition: changes from the champion and from the first champion."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from sqlalchemy.orm import Session

from app.audit.anchor import list_restores
from app.http.models import MetricOut
from app.jobs.service import JobResult, RunningJob
from app.metrics.service import Cohort, CohortQuery, LabelRow, build_cohort
from app.recalibration import gate_decision
from app.recalibration.training_data import count_case_labels, first_answers, read_stored_outputs
from app.releases import service as release_service
from app.storage.bundles import SharedFolders
from ml.messages import Message
from ml.metrics.paired_difference import Change, paired_change, shifts_of
from ml.release.artifact import ReleaseError, read_release
from ml.util.arrays import FloatArray


class JudgedPredictions(Protocol):
    """Probabilities of N predictions that the gate judges."""

    @property
    def class_probs(self) -> FloatArray:
        """Class probabilities (N, K)."""

    @property
    def disagreement_probs(self) -> FloatArray:
        """Disagreement probabilities (N,)."""


def measure_paired_change(cohort: Cohort, before: JudgedPredictions, after: JudgedPredictions) -> Change:
    """Paired change of L and of L_φ from one prediction of a cohort's cases to another, weighted and by patient."""
    return paired_change(
        cohort.counted(),
        (before.class_probs, before.disagreement_probs),
        (after.class_probs, after.disagreement_probs),
        first_label_counts=cohort.first_counts,
        sample_weight=(cohort.weight, cohort.weight2),
        cluster=cohort.columns.cluster,
    )


def exclude_annotator(cohort: Cohort, labels: list[LabelRow], name: str) -> Cohort:
    """Exclude one annotator's labels from a cohort; a case that loses one counts as unanswered."""
    # At the moment of the cohort, so that reads which were due then are due here, whatever became of the clock.
    ids, classes = cohort.columns.ids(), cohort.columns.classes
    counts = count_case_labels(labels, ids, classes, name)
    columns = replace(cohort.columns, label_counts=counts, first_class=first_answers(labels, ids, classes, name))
    return build_cohort(columns, CohortQuery(), cohort.at)


def begin_job_attempt(job: RunningJob, champion_id: uuid.UUID) -> int:
    """Begin a job's attempt on a champion, recorded once; return its number."""
    with job.context.database.read() as session:
        served = release_service.served_sha256(release_service.existing_release(session, champion_id))

    def begin(session: Session) -> JobResult:
        return {"number": release_service.begin_attempt(session, job.context.keys.audit, champion_id, job.job_id)}

    return int(str(job.batch(f"attempt {served}", begin)["number"]))


@dataclass(frozen=True)
class _PredictionSubset:
    """Predictions of some of the cases."""

    class_probs: FloatArray
    disagreement_probs: FloatArray

    @classmethod
    def of(cls, all_cases: JudgedPredictions, rows: np.ndarray) -> "_PredictionSubset":
        return cls(all_cases.class_probs[rows], all_cases.disagreement_probs[rows])


@dataclass(frozen=True)
class SinceFirstChampion:
    """Comparison with the first champion."""

    # its identifier; None where nobody knows which it was
    release: uuid.UUID | None
    # from it to the candidate, or a sentence why that is unknown; None where it is the champion
    change: Change | str | None
    # on which it was compared
    n_cases: int = 0


def compare_with_first_champion(
    session: Session, folders: SharedFolders, champion_id: uuid.UUID, cohort: Cohort, after: JudgedPredictions
) -> SinceFirstChampion:
    """Change from the release that was promoted first in this service, by what its network made of the same cases."""
    first_id = release_service.first_champion_id(session)
    if first_id is None:
        return SinceFirstChampion(None, Message("the audit log does not show which model release was promoted first"))
    first_row, champion_row = (
        release_service.existing_release(session, first_id),
        release_service.existing_release(session, champion_id),
    )
    if release_service.served_sha256(first_row) == release_service.served_sha256(champion_row):
        return SinceFirstChampion(first_id, None)
    try:
        first = read_release(folders.path(f"releases/{first_id}"))
    except ReleaseError as exc:
        return SinceFirstChampion(first_id, Message("its folder cannot be read ({exc})", exc=exc))
    outputs = read_stored_outputs(session, first.network_sha256, "evaluation", seen_by=first_id)
    row_of = {case_id: row for row, case_id in enumerate(outputs.case_ids)}
    rows = np.array([row_of.get(case_id, -1) for case_id in cohort.columns.ids()], dtype=np.intp)
    predicted_rows = np.flatnonzero(rows >= 0)
    if not predicted_rows.size:
        return SinceFirstChampion(first_id, Message("its network was not trained on any of these cells"))
    before = outputs.take(rows[predicted_rows]).predicted(first, first.calibration)
    change = measure_paired_change(cohort.take(rows >= 0), before, _PredictionSubset.of(after, predicted_rows))
    return SinceFirstChampion(first_id, change, int(predicted_rows.size))


def describe_lost_attempts(session: Session) -> tuple[str, ...]:
    """Describe each restored backup: later attempts are not counted."""
    return tuple(
        Message(
            "A backup was restored on {at:%Y-%m-%d at %H:%M} UTC. It ended with event {last} of "
            "the audit log; later attempts are not counted.",
            at=event["created_at"],
            last=last,
        )
        for event, last in list_restores(session)
    )


@dataclass(frozen=True)
class GateJudgement:
    """Inputs of a gate decision."""

    champion_id: uuid.UUID
    # number of the attempt on it, from 1
    attempt: int
    evidence: gate_decision.GateEvidence
    # what is known of the first champion
    first: SinceFirstChampion
    # margin of the change plan, None for none
    max_increase: float | None = None
    # what was found before, a sentence each
    findings: tuple[str, ...] = ()

    def gate(self) -> release_service.Gate:
        """The decision with all its numbers."""
        decision = gate_decision.decide_gate(self.evidence, self.attempt, self.max_increase)
        whole, without = self.evidence.whole, self.evidence.without
        checked = self.evidence.n_annotators >= gate_decision.FEWEST_ANNOTATORS
        stability = gate_decision.AnnotatorStability(whole, self.evidence.cluster, self.evidence.n_annotators)
        level, p_values = (
            gate_decision.attempt_level(self.attempt),
            [p for _, _, p in gate_decision.loss_changes_with_p(whole)],
        )
        return release_service.Gate(
            passed=not decision.reasons,
            reasons=decision.reasons,
            findings=[*self.findings, *decision.findings],
            L=MetricOut.of(whole.loss),
            L_D=MetricOut.of(whole.disagreement_loss),
            without_annotator=self._without(without) if checked else [],
            champion=str(self.champion_id),
            attempt=release_service.Attempt(
                number=self.attempt,
                level=level,
                level_of_each_loss=level / 2,
                p_L=p_values[0],
                p_L_D=p_values[1],
                stability_limit=stability.limit if checked else None,
                max_increase=self.max_increase,
            ),
            since_first=self._since_first(),
        )

    def _without(self, without: Mapping[str, Change | str]) -> list[release_service.WithoutAnnotator]:
        rows = []
        for name, change in without.items():
            if isinstance(change, str):
                rows.append(release_service.WithoutAnnotator(annotator=name, failed=change))
                continue
            shifts = shifts_of(change, self.evidence.whole, self.evidence.cluster)
            worse = {loss: release_service.Worse.of(shift.value, shift.se) for loss, shift in shifts.items()}
            changes = {"L": MetricOut.of(change.loss), "L_D": MetricOut.of(change.disagreement_loss)}
            rows.append(release_service.WithoutAnnotator(annotator=name, **changes, worse=worse))
        return rows

    def _since_first(self) -> release_service.SinceFirst:
        first, change = self.first, self.first.change
        release = None if first.release is None else str(first.release)
        if change is None:
            return release_service.SinceFirst(release=release, is_champion=True)
        if isinstance(change, str):
            return release_service.SinceFirst(release=release, unknown=change)
        return release_service.SinceFirst(
            release=release,
            n_cases=first.n_cases,
            L=MetricOut.of(change.loss),
            L_D=MetricOut.of(change.disagreement_loss),
        )
