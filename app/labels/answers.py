"""Answers of annotators to reads that they hold."""

import uuid
from dataclasses import replace

from sqlalchemy.orm import Session

from app.context import ServiceContext
from app.database.tables import Annotator, Read, Repeat
from app.http.principal import Principal
from app.labels import leases, queries
from app.labels.errors import AlreadyLabelled, LeaseLost
from app.labels.locked_context import lock_case_context
from app.labels.queries import AnyRequest
from app.labels.schemas import OwnLabelIn, SubmittedOut
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
        if since is None:
            return _store_late(session, context, principal, read, annotator, body)
        lease = leases.get_own_lease(session, principal, since.id, case=True)
    author = _author_of_answer(lease.annotator, lease.read, lease.request)
    at_hand = lease.case or lock_case_context(session, lease.read.case_id)
    return store_first_label(session, context, principal, at_hand, author, body)


def _author_of_answer(annotator: Annotator, read: Read, request: AnyRequest) -> LabelAuthor:
    repeat = request if isinstance(request, Repeat) else None
    return LabelAuthor(annotator, True, request, read, request.round, repeat=repeat)


def _store_late(
    session: Session, context: ServiceContext, principal: Principal, read: Read, annotator: Annotator, body: OwnLabelIn
) -> tuple[int, SubmittedOut]:
    """Keep an answer to a read that ran out, and whose request has gone to somebody else."""
    author = _author_of_answer(annotator, read, queries.request_of_read(session, read))
    author = replace(author, request=None, late=True)
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
        chain = queries.own_chain(session, read)
        if not chain:
            raise
        if chain[0].class_code != body.label:
            raise AlreadyLabelled("you have given this case another class before; correct that label instead") from None
        return read.named
    return uuid.UUID(stored.label.case_id)
