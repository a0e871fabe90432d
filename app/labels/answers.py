"""Answers of annotators to reads that they hold, and what they change later."""

import uuid
from typing import cast

from sqlalchemy.orm import Session

from app.context import Context
from app.database.tables import Annotator, Read, ReadRequest, Repeat
from app.http.errors import AlreadyLabelled, LeaseLost, NotFound
from app.http.principal import Principal
from app.labels import leases, queries, repeat_answers, submission
from app.labels.locked_context import CaseAtHand, case_at_hand
from app.labels.schemas import OwnLabelIn, RetractionIn, RevisionIn, SubmittedOut
from app.labels.submission import Author, store_first


def commit_read(
    session: Session, context: Context, principal: Principal, read_id: uuid.UUID, body: OwnLabelIn
) -> tuple[int, SubmittedOut]:
    """End a read by a label.

    A read that ran out is taken up again while nobody else has its request; afterwards its label is kept as late.

    Returns:
        201, the label and the posterior where it may be shown.

    Raises:
        NotFound: the caller has no such read.
        LeaseLost: the read ended by a label, a decline or a release.
        Invalid: an unknown class.
    """
    try:
        lease = leases.own_lease(session, principal, read_id, case=True)
    except LeaseLost:
        read, annotator = queries.own_read(session, principal.account_id, read_id)
        since = queries.read_since(session, read)
        if read.state != "expired" or (since is not None and since.state != "leased"):
            raise
        if since is None and isinstance(read, Read):
            return _store_late(session, context, principal, read, annotator, body)
        if since is None:  # a repeat that was withdrawn
            raise
        lease = leases.own_lease(session, principal, since.id, case=True)
    read, request = lease.read, lease.request
    case = lease.case or case_at_hand(session, read.case_id)
    if isinstance(request, Repeat):
        return repeat_answers.store_first(session, context, principal, lease, request, case, body)
    # what answers a request of a case is a read
    author = Author(lease.annotator, True, request, cast(Read, read), request.round)
    at_hand = case if isinstance(case, CaseAtHand) else case_at_hand(session, read.case_id)
    return store_first(session, context, principal, at_hand, author, body)


def _store_late(
    session: Session, context: Context, principal: Principal, read: Read, annotator: Annotator, body: OwnLabelIn
) -> tuple[int, SubmittedOut]:
    """Keep an answer to a read that ran out, and whose request has gone to somebody else."""
    asked = session.get_one(ReadRequest, read.request_id)
    author = Author(annotator, True, None, read, asked.round, late=True)
    return store_first(session, context, principal, case_at_hand(session, read.case_id), author, body)


def answer_read(
    session: Session, context: Context, principal: Principal, read_id: uuid.UUID, body: OwnLabelIn
) -> uuid.UUID:
    """End a read by a label that a browser may send more than once: after the first time nothing is stored.

    Only the class must be the same, since a browser keeps nothing else of an answer through a reload.

    Returns:
        The case, as what its annotator's handle is made from.

    Raises:
        NotFound: the caller has no such read.
        LeaseLost: the read ended by a decline or a release.
        AlreadyLabelled: the case has another answer of the caller's.
        Invalid: an unknown class.
    """
    try:
        _, stored = commit_read(session, context, principal, read_id, body)
    except LeaseLost:
        read, _ = queries.own_read(session, principal.account_id, read_id)
        given = queries.own_answer(session, read)
        if given is None:
            raise
        if given.class_code != body.label:
            raise AlreadyLabelled("you have given this case another class before; correct that label instead") from None
        return read.named
    return uuid.UUID(stored.label.case_id)


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
        return submission.revise(session, context, principal, label_id, body)
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
        return submission.retract(session, context, principal, label_id, body)
    except NotFound:
        return repeat_answers.retract(session, context, principal, label_id, body)
