"""Labels that an evaluation does not use, each with its reason."""

import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any, get_args

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.cases.service import is_provisional
from app.database.tables import Annotator, CountedLabel
from app.metrics.cohort import Cohort, CohortQuery, query_case_mask
from app.metrics.dataset import EvaluationDataset
from app.metrics.queries import LabelRow, blind_labels, label_rows, used_by
from app.metrics.schemas import LeftOutOut, LeftOutReason


def count_left_out_labels(
    session: Session, predicted: EvaluationDataset, question: CohortQuery, cohort: Cohort
) -> list[LeftOutOut]:
    """Count the labels that no estimate of a cohort uses, by the first reason that applies.

    ``predicted``: all cases with a prediction. With those that are used they are all counted labels of the database,
    where an answer with its corrections and revisions is one.
    """
    is_used, why = used_by(cohort), _reason_by_case(predicted, question, cohort)
    usable = {(label.case_id, label.annotator): label for label in label_rows(session, blind_labels(), None)}
    provisional = is_provisional(CountedLabel.case_id, CountedLabel.annotator_id)
    chains = (
        select(
            CountedLabel.case_id,
            Annotator.name,
            CountedLabel.blind,
            CountedLabel.round,
            CountedLabel.late,
            provisional.label("provisional"),
        )
        .join(Annotator, Annotator.id == CountedLabel.annotator_id)
        .where(CountedLabel.supersedes_id.is_(None))
    )
    reasons: Counter[LeftOutReason] = Counter()
    for chain in session.execute(chains).yield_per(10_000):
        label = usable.get((chain.case_id, chain.name))
        if label is None:
            reasons[_unusable_reason(chain)] += 1
        elif label.class_code not in predicted.classes:
            reasons["other-class"] += 1
        elif not is_used(label):
            reasons[why(label)] += 1
    return [LeftOutOut(reason=one, n_labels=reasons[one]) for one in get_args(LeftOutReason) if reasons[one]]


def _unusable_reason(chain: Any) -> LeftOutReason:
    """Why the labels of an annotator for a case may judge nothing."""
    if not chain.blind:
        return "not-blinded"
    if chain.round != "planned":
        return "adjudication"
    if chain.late:
        return "late"
    return "correctable" if chain.provisional else "withdrawn"


def _reason_by_case(
    predicted: EvaluationDataset, question: CohortQuery, cohort: Cohort
) -> Callable[[LabelRow], LeftOutReason]:
    """Why a usable label is not used, by its case."""
    row_of: dict[uuid.UUID, int] = {case_id: row for row, case_id in enumerate(predicted.ids())}
    in_cohort, in_question = set(cohort.columns.ids()), query_case_mask(predicted, question)

    def reason(label: LabelRow) -> LeftOutReason:
        row = row_of.get(label.case_id)
        if row is None:
            return "no-prediction"
        if predicted.trained_on[row]:
            return "trained-on"
        if question.partition not in {"all", "evaluation" if predicted.evaluation[row] else "calibration"}:
            return "partition"
        if not in_question[row]:
            return "other-cells"
        if label.case_id not in in_cohort:
            return "open"
        return "outside" if predicted.outside[row] else "unanswered"

    return reason
