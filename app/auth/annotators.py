"""Who labels: the person of an account, or somebody known to an outside system by name."""

import uuid

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.platform.database import insert_if_absent
from app.platform.errors import Forbidden
from app.platform.principal import Principal
from app.tables import Annotator, new_id, now


def annotator_of_account(session: Session, account_id: uuid.UUID) -> Annotator | None:
    """The annotator of an account, None before the first read."""
    statement = select(Annotator).where(Annotator.account_id == account_id)
    return session.execute(statement).scalar_one_or_none()


def annotator_by_name(session: Session, name: str) -> Annotator | None:
    """The annotator of a name."""
    return session.execute(select(Annotator).where(Annotator.name == name)).scalar_one_or_none()


def own_annotator(session: Session, principal: Principal) -> Annotator:
    """The caller as annotator, made at their first read."""
    known = annotator_of_account(session, principal.account_id)
    return known or new_annotator(session, principal.name, principal.account_id)


def new_annotator(session: Session, name: str, account_id: uuid.UUID | None) -> Annotator:
    """Make an annotator, or find the one that another request is making.

    Raises:
        Forbidden: the name belongs to another annotator.
    """
    values = {"id": new_id(), "created_at": now(), "name": name, "account_id": account_id}
    insert_if_absent(session, Annotator, values)
    annotator = session.execute(select(Annotator).where(Annotator.name == name)).scalar_one()
    if annotator.account_id != account_id:
        raise Forbidden("this name belongs to another annotator; ask for another one")
    return annotator
