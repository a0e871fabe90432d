"""A release compared with the champion on the current labels, each metric with the interval of its change."""

import uuid
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from sqlalchemy.orm import Session

from app.context import Context
from app.evaluations.cohort import Cohort, Question, cohort_of, evaluate_cohort
from app.evaluations.columns import Columns
from app.evaluations.held_out import held_out, left_out, trained_on_out
from app.evaluations.schemas import ComparedOut, ComparisonOut
from app.evaluations.snapshots import current_columns
from app.http.models import MetricOut
from app.releases.queries import class_codes, existing_release, served_release_id
from ml.metrics.paired_change import paired_changes


def compare(session: Session, context: Context, release_id: uuid.UUID, question: Question) -> ComparisonOut:
    """A release compared with the champion, on the cases that both have predicted and neither was trained on.

    Cases and weights are the champion's: whom to ask was its decision.

    Args:
        session: for reading.
        context: parts of the service.
        release_id: to be compared.
        question: which cases, how weighted.

    Raises:
        NoRelease: there is no champion.
        NotFound: no such release.
    """
    champion_id, home = served_release_id(session), context.settings.home
    other, champion = existing_release(session, release_id), existing_release(session, champion_id)
    classes = class_codes(other)
    columns = current_columns(session, home, champion_id, classes)
    after = current_columns(session, home, release_id, classes)
    row_of = {case_id.tobytes(): row for row, case_id in enumerate(after.case_id)}
    trained_on = columns.trained_on | _trained_on(columns, after, row_of)
    cohort = cohort_of(held_out(columns, trained_on), question, context.clock().timestamp())
    rows = np.array([row_of.get(case_id.tobytes(), -1) for case_id in cohort.columns.case_id], dtype=np.intp)
    labelled = cohort.columns.n_labels > 0
    before = cohort.take(rows >= 0)
    predicted = after.take(rows[rows >= 0])
    judged = replace(before.columns, class_probs=predicted.class_probs, disagreement_probs=predicted.disagreement_probs)
    return ComparisonOut(
        champion=str(champion_id),
        release=str(release_id),
        partition=question.partition,
        weighting=question.weighting,
        n_cases=len(before.columns),
        n_labels=int(before.columns.n_labels.sum()),
        n_labelled=int((labelled & (rows >= 0)).sum()),
        n_labelled_not_predicted=int((labelled & (rows < 0)).sum()),
        trained_on=trained_on_out(
            left_out(columns, question, trained_on), context.keys.training, champion.card, other.card
        ),
        metrics=_metrics(before, replace(before, columns=judged)),
    )


def _trained_on(columns: Columns, after: Columns, row_of: Mapping[bytes, int]) -> npt.NDArray[np.bool_]:
    """Mask (N,) of the champion's cases that the other release was trained on.

    Args:
        columns: of the champion.
        after: of the other release.
        row_of: its row of each case.
    """
    if not after.trained_on.any():
        return np.zeros(len(columns), dtype=bool)
    rows = np.array([row_of.get(case_id.tobytes(), -1) for case_id in columns.case_id], dtype=np.intp)
    return np.asarray((rows >= 0) & after.trained_on[rows])


def _metrics(before: Cohort, after: Cohort) -> dict[str, ComparedOut]:
    changes = paired_changes(
        before.counted(),
        (before.columns.class_probs, before.columns.disagreement_probs),
        (after.columns.class_probs, after.columns.disagreement_probs),
        first_label_counts=before.first_counts,
        readings=before.readings(),
        weights=before.weight,
        weights2=before.weight2,
        cluster=before.columns.cluster,
    )
    champion, release = (evaluate_cohort(cohort).metrics for cohort in (before, after))
    return {
        name: ComparedOut(
            champion=MetricOut.of(champion[name]), release=MetricOut.of(release[name]), change=MetricOut.of(change)
        )
        for name, change in changes.items()
    }
