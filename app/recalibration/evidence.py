"""Candidates judged on the evaluation partition: against the champion, against the first champion, by everybody."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from sqlalchemy.orm import Session

from app.audit.anchor import restored_at
from app.http.models import MetricOut
from app.jobs.handle import JobResult, RunningJob
from app.metrics.cohort import Cohort, Question, cohort_of
from app.metrics.queries import LabelRow
from app.recalibration.gate_decision import FEWEST_ANNOTATORS, Evidence, Stability, changes_with_p, decide, level_of
from app.recalibration.training_data import first_answers, histograms, stored_outputs
from app.releases.gate_verdicts import (
    Attempt,
    Gate,
    SinceFirst,
    WithoutAnnotator,
    Worse,
    begin_attempt,
    first_champion_id,
)
from app.releases.queries import existing_release, served_sha256
from app.storage.bundles import SharedFolders
from ml.messages import Message
from ml.metrics.paired_difference import Change, paired_change, shifts_of
from ml.release.artifact import ReleaseError, read_release
from ml.util.arrays import FloatArray


class Predictions(Protocol):
    """What is judged of N predictions."""

    @property
    def class_probs(self) -> FloatArray:
        """Class probabilities (N, K)."""

    @property
    def disagreement_probs(self) -> FloatArray:
        """Disagreement probabilities (N,)."""


def change_between(cohort: Cohort, before: Predictions, after: Predictions) -> Change:
    """Paired change of L and of L_φ from one prediction of a cohort's cases to another, weighted and by patient."""
    return paired_change(
        cohort.counted(),
        (before.class_probs, before.disagreement_probs),
        (after.class_probs, after.disagreement_probs),
        first_label_counts=cohort.first_counts,
        weights=cohort.weight,
        weights2=cohort.weight2,
        cluster=cohort.columns.cluster,
    )


def without_annotator(cohort: Cohort, labels: list[LabelRow], name: str) -> Cohort:
    """The same cases without one annotator's labels: a case that loses one counts as not answered.

    At the moment of the cohort, so that reads which were due then are due here, whatever became of the clock.

    Args:
        cohort: evaluation partition.
        labels: blind planned labels of its cases.
        name: of the annotator.
    """
    ids, classes = cohort.columns.ids(), cohort.columns.classes
    counts = histograms(labels, ids, classes, name)
    columns = replace(cohort.columns, label_counts=counts, first_class=first_answers(labels, ids, classes, name))
    return cohort_of(columns, Question(), cohort.at)


def begun_attempt(job: RunningJob, champion_id: uuid.UUID) -> int:
    """Number of the attempt on a champion that a job is: recorded once, whoever dies when."""
    with job.context.database.read() as session:
        served = served_sha256(existing_release(session, champion_id))

    def begin(session: Session) -> JobResult:
        return {"number": begin_attempt(session, job.context.keys.audit, champion_id, job.job_id)}

    return int(str(job.batch(f"attempt {served}", begin)["number"]))


@dataclass(frozen=True)
class _Some:
    """Predictions of some of the cases."""

    class_probs: FloatArray
    disagreement_probs: FloatArray

    @classmethod
    def of(cls, all_cases: Predictions, rows: np.ndarray) -> "_Some":
        return cls(all_cases.class_probs[rows], all_cases.disagreement_probs[rows])


@dataclass(frozen=True)
class SinceFirstChampion:
    """What is known of the first champion.

    Attributes:
        release: its identifier; None where nobody knows which it was.
        change: from it to the candidate, or a sentence why that is unknown; None where it is the champion.
        n_cases: on which it was compared.
    """

    release: uuid.UUID | None
    change: Change | str | None
    n_cases: int = 0


def since_first_champion(
    session: Session, folders: SharedFolders, champion_id: uuid.UUID, cohort: Cohort, after: Predictions
) -> SinceFirstChampion:
    """Change from the release that was promoted first in this service, by what its network made of the same cases.

    Args:
        session: for reading.
        folders: of the service, with its releases.
        champion_id: the present champion.
        cohort: evaluation partition.
        after: the candidate's predictions of its cases.
    """
    first_id = first_champion_id(session)
    if first_id is None:
        return SinceFirstChampion(None, Message("the audit does not tell which release was promoted first"))
    first_row, champion_row = existing_release(session, first_id), existing_release(session, champion_id)
    if served_sha256(first_row) == served_sha256(champion_row):
        return SinceFirstChampion(first_id, None)
    try:
        first = read_release(folders.path(f"releases/{first_id}"))
    except ReleaseError as exc:
        return SinceFirstChampion(first_id, Message("its folder cannot be read ({exc})", exc=exc))
    outputs = stored_outputs(session, first.network_sha256, "evaluation", seen_by=first_id)
    row_of = {case_id: row for row, case_id in enumerate(outputs.case_ids)}
    rows = np.array([row_of.get(case_id, -1) for case_id in cohort.columns.ids()], dtype=np.intp)
    known = np.flatnonzero(rows >= 0)
    if not known.size:
        return SinceFirstChampion(first_id, Message("its network has seen none of these cases"))
    before = outputs.take(rows[known]).predicted(first, first.calibration)
    change = change_between(cohort.take(rows >= 0), before, _Some.of(after, known))
    return SinceFirstChampion(first_id, change, int(known.size))


def forgotten(session: Session) -> tuple[str, ...]:
    """A sentence for each backup that was brought back: attempts which it does not know are not counted."""
    return tuple(
        Message(
            "A backup was brought back on {at:%Y-%m-%d at %H:%M} UTC. It ended with event {last} of "
            "the audit; attempts after it are not counted.",
            at=at,
            last=last,
        )
        for at, last in restored_at(session)
    )


@dataclass(frozen=True)
class Judgement:
    """Everything that a gate says follows from.

    Attributes:
        champion_id: against which.
        attempt: number of the attempt on it, from 1.
        evidence: changes.
        first: what is known of the first champion.
        max_increase: margin of the change plan, None for none.
        findings: what was found before, a sentence each.
    """

    champion_id: uuid.UUID
    attempt: int
    evidence: Evidence
    first: SinceFirstChampion
    max_increase: float | None = None
    findings: tuple[str, ...] = ()

    def gate(self) -> Gate:
        """The decision with all its numbers."""
        decision = decide(self.evidence, self.attempt, self.max_increase)
        whole, without = self.evidence.whole, self.evidence.without
        checked = self.evidence.n_annotators >= FEWEST_ANNOTATORS
        stability = Stability(whole, self.evidence.cluster, self.evidence.n_annotators)
        level, p_values = level_of(self.attempt), [p for _, _, p in changes_with_p(whole)]
        return Gate(
            passed=not decision.reasons,
            reasons=decision.reasons,
            findings=[*self.findings, *decision.findings],
            L=MetricOut.of(whole.loss),
            L_D=MetricOut.of(whole.disagreement_loss),
            without_annotator=self._without(without) if checked else [],
            champion=str(self.champion_id),
            attempt=Attempt(
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

    def _without(self, without: Mapping[str, Change | str]) -> list[WithoutAnnotator]:
        rows = []
        for name, change in without.items():
            if isinstance(change, str):
                rows.append(WithoutAnnotator(annotator=name, failed=change))
                continue
            shifts = shifts_of(change, self.evidence.whole, self.evidence.cluster)
            worse = {loss: Worse.of(shift.value, shift.se) for loss, shift in shifts.items()}
            changes = {"L": MetricOut.of(change.loss), "L_D": MetricOut.of(change.disagreement_loss)}
            rows.append(WithoutAnnotator(annotator=name, **changes, worse=worse))
        return rows

    def _since_first(self) -> SinceFirst:
        first, change = self.first, self.first.change
        release = None if first.release is None else str(first.release)
        if change is None:
            return SinceFirst(release=release, is_champion=True)
        if isinstance(change, str):
            return SinceFirst(release=release, unknown=change)
        return SinceFirst(
            release=release,
            n_cases=first.n_cases,
            L=MetricOut.of(change.loss),
            L_D=MetricOut.of(change.disagreement_loss),
        )
