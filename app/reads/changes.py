"""Changes of answers by their annotators, of labels and of answers to hidden repeats alike."""

import uuid

from sqlalchemy.orm import Session

from app.context import Context
from app.http.errors import NotFound
from app.http.principal import Principal
from app.reads import repeat_answers, service
from app.reads.schemas import RetractionIn, RevisionIn, SubmittedOut


def revise(
    session: Session, context: Context, principal: Principal, label_id: uuid.UUID, body: RevisionIn
) -> tuple[int, SubmittedOut]:
    """Change an answer by a new row, with a reason.

    Raises:
        NotFound: the caller has no such label.
        Superseded: it was changed before.
        Invalid: an unknown class.
    """
    try:
        return service.revise(session, context, principal, label_id, body)
    except NotFound:
        return repeat_answers.revise(session, context, principal, label_id, body)


def retract(
    session: Session, context: Context, principal: Principal, label_id: uuid.UUID, body: RetractionIn
) -> tuple[int, SubmittedOut]:
    """Take an answer back by a new row.

    Raises:
        NotFound: the caller has no such label.
        Superseded: it was changed or retracted before.
    """
    try:
        return service.retract(session, context, principal, label_id, body)
    except NotFound:
        return repeat_answers.retract(session, context, principal, label_id, body)
