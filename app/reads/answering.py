"""Answers of annotators to reads that they hold: the only way by which a label of an account's person enters."""

import uuid

from sqlalchemy.orm import Session

from app.context import Context
from app.platform.errors import AlreadyLabelled, LeaseLost
from app.platform.principal import Principal
from app.reads import leases, queries
from app.reads.schemas import OwnLabelIn, SubmittedOut
from app.reads.service import Author, store_first


def commit_read(
    session: Session, context: Context, principal: Principal, read_id: uuid.UUID, body: OwnLabelIn
) -> tuple[int, SubmittedOut]:
    """End a lease by a label.

    Returns:
        201, the label and the posterior where it may be shown.

    Raises:
        NotFound: the caller has no such read.
        LeaseLost: the read ended, or somebody else has it.
        Invalid: an unknown class.
    """
    lease = leases.own_lease(session, principal, read_id)
    at_hand = queries.case_at_hand(session, lease.read.case_id)
    author = Author(lease.annotator, True, lease.request, lease.read, lease.request.round)
    return store_first(session, context, principal, at_hand, author, body)


def answer_read(
    session: Session, context: Context, principal: Principal, read_id: uuid.UUID, body: OwnLabelIn
) -> uuid.UUID:
    """End a lease by a label that a browser may send more than once: after the first time nothing is stored.

    Only the class must be the same, since a browser keeps nothing else of an answer through a reload.

    Returns:
        The case.

    Raises:
        NotFound: the caller has no such read.
        LeaseLost: the read ended, or somebody else has it.
        AlreadyLabelled: the read has another answer of the caller's.
        Invalid: an unknown class.
    """
    try:
        _, stored = commit_read(session, context, principal, read_id, body)
    except LeaseLost:
        read, _ = queries.own_read(session, principal.account_id, read_id)
        if read.state != "committed":
            raise
        if queries.answer_to(session, read) != body.label:
            raise AlreadyLabelled("you have given this case another class before; correct that label instead") from None
        return read.case_id
    return uuid.UUID(stored.label.case_id)
