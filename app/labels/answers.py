"""Answers of annotators to reads that they hold, and what they change later."""

import uuid
from typing import cast

from sqlalchemy.orm import Session

from app.context import ServiceContext
from app.database.tables import Annotator, Read, ReadRequest, Repeat
from app.http.errors import NotFound
from app.http.principal import Principal
from app.labels import leases, queries, repeat_answers, submission
from app.labels.errors import AlreadyLabelled, LeaseLost
from app.labels.locked_context import LockedCaseContext, lock_case_context
from app.labels.schemas import OwnLabelIn, RetractionIn, RevisionIn, SubmittedOut
from app.labels.submission import LabelAuthor, store_first_label


def commit_read(
    session: Session, context: ServiceContext, principal: Principal, read_id: uuid.UUID, body: OwnLabelIn
) -> tuple[int, SubmittedOut]:
    """End a read by a label."""
    # A read that ran out is taken up again while nobody else has its request; afterwards its label is kept as late.
    try:
        lease = leases.get_own_lease(session, principal, read_id, case=True)
    except LeaseLost:
        read, annotator = queries.own_read(session, principal.account_id, read_id)
        since = queries.find_later_read(session, read)
        if read.state != "expired" or (since is not None and since.state != "leased"):
            raise
        if since is None and isinstance(read, Read):
            return _store_late(session, context, principal, read, annotator, body)
        if since is None:  # a repeat that was withdrawn
            raise
        lease = leases.get_own_lease(session, principal, since.id, case=True)
    read, request = lease.read, lease.request
    case = lease.case or lock_case_context(session, read.case_id)
    if isinstance(request, Repeat):
        return repeat_answers.store_first_answer(session, context, principal, lease, request, case, body)
    # what answers a request of a case is a read
    author = LabelAuthor(lease.annotator, True, request, cast(Read, read), request.round)
    at_hand = case if isinstance(case, LockedCaseContext) else lock_case_context(session, read.case_id)
    return store_first_label(session, context, principal, at_hand, author, body)


def _store_late(
    session: Session, context: ServiceContext, principal: Principal, read: Read, annotator: Annotator, body: OwnLabelIn
) -> tuple[int, SubmittedOut]:
    """Keep an answer to a read that ran out, and whose request has gone to somebody else."""
    request = session.get_one(ReadRequest, read.request_id)
    author = LabelAuthor(annotator, True, None, read, request.round, late=True)
    return store_first_label(session, context, principal, lock_case_context(session, read.case_id), author, body)


def answer_read(
    session: Session, context: ServiceContext, principal: Principal, read_id: uuid.UUID, body: OwnLabelIn
) -> uuid.UUID:
    """End a read by a label that a browser may send more than once: after the first time nothing is stored."""
    # Only the class must be the same, since a browser keeps nothing else of an answer through a reload.
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


def revise_answer(
    session: Session, context: ServiceContext, principal: Principal, label_id: uuid.UUID, body: RevisionIn
) -> tuple[int, SubmittedOut]:
    """Change an answer by a new row, with a reason."""
    try:
        return submission.revise_case_label(session, context, principal, label_id, body)
    except NotFound:
        return repeat_answers.revise_repeat_answer(session, context, principal, label_id, body)


def retract_answer(
    session: Session, context: ServiceContext, principal: Principal, label_id: uuid.UUID, body: RetractionIn
) -> tuple[int, SubmittedOut]:
    """Take an answer back by a new row."""
    try:
        return submission.retract_case_label(session, context, principal, label_id, body)
    except NotFound:
        return repeat_answers.retract_repeat_answer(session, context, principal, label_id, body)
