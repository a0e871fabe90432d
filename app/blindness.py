"""Commit, then reveal: who may see predictions and others' labels of a case."""

import uuid

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.auth.principal import Principal
from app.errors import BlindReadPending
from app.tables import Annotator, Label


def has_committed(session: Session, principal: Principal, case_id: uuid.UUID) -> bool:
    """Whether this caller has given a label for the case."""
    found = (
        select(Label.id)
        .join(Annotator, Annotator.id == Label.annotator_id)
        .where(Label.case_id == case_id, Annotator.account_id == principal.account_id)
        .limit(1)
    )
    return session.execute(found).first() is not None


def ensure_revealed(session: Session, principal: Principal, case_id: uuid.UUID) -> None:
    """Stop an annotator who has not committed a label yet.

    Raises:
        BlindReadPending: what is asked for would unblind the read.
    """
    if principal.blind and not has_committed(session, principal, case_id):
        raise BlindReadPending("commit your own label first; then this is shown")
