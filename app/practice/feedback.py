"""How others answered a cell that somebody has just answered in training: shares, never one right answer."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.cases import correction_window
from app.cases.blindness import expose, hidden_after_commit
from app.cases.queries import label_history, latest_prediction
from app.database.tables import PracticeItem, ReadRequest
from app.labels.posterior import posterior
from app.practice.schemas import FeedbackOut
from app.practice.words import feedback_sentences
from app.releases.queries import reading_classes
from ml.messages import Message

_CLOSED = Message("This cell is being read again, or the policy keeps it closed: how others answered is not shown now.")


def feedback_on(session: Session, item: PracticeItem, label: str) -> FeedbackOut:
    """How others answered a cell, shown as far as it is shown to annotators who have labelled the case.

    Args:
        session: for reading.
        item: cell of a training run.
        label: the annotator's own answer.
    """
    if not may_be_shown(session, item):
        return FeedbackOut(label=label, label_counts=None, class_probs=None, sentences=[_CLOSED])
    after = posterior(session, item.case_id)
    names = {info.code: info.name for info in reading_classes(session)}
    return FeedbackOut(
        label=label,
        label_counts=after.label_counts,
        class_probs=after.class_probs,
        sentences=feedback_sentences(label, after.label_counts, after.class_probs, names),
    )


def may_be_shown(session: Session, item: PracticeItem) -> bool:
    """Whether the policy shows a cell to annotators, and nobody is to read it."""
    requests = session.execute(select(ReadRequest).where(ReadRequest.case_id == item.case_id)).scalars().all()
    unsettled = correction_window.any_of_case(session, item.case_id)
    wanted = any(request.state in {"open", "leased"} for request in requests)
    return not wanted and hidden_after_commit(session, requests, unsettled=unsettled) is None


def note_shown(session: Session, item: PracticeItem) -> None:
    """Record in a writing session that a cell is shown to an annotator in full."""
    if may_be_shown(session, item):
        newest = max(row.label.id for row in label_history(session, item.case_id))
        release_id = latest_prediction(session, item.case_id).release_id
        expose(session, item.annotator_id, item.case_id, release_id, newest)
