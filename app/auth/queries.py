"""Database access of accounts and keys, for lists."""

import uuid

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.platform.errors import Invalid
from app.tables import Account, ApiKey


def all_accounts(session: Session) -> list[Account]:
    """Every account, by name."""
    return list(session.execute(select(Account).order_by(Account.name)).scalars())


def count_annotators(session: Session) -> int:
    """Number of annotators who may sign in."""
    annotators = select(func.count()).where(Account.role == "annotator", Account.disabled_at.is_(None))
    return session.execute(annotators).scalar_one()


def keys_by_account(session: Session) -> dict[uuid.UUID, list[ApiKey]]:
    """API keys of each account that has any, oldest first."""
    keys: dict[uuid.UUID, list[ApiKey]] = {}
    for key in session.execute(select(ApiKey).order_by(ApiKey.id)).scalars():
        keys.setdefault(key.account_id, []).append(key)
    return keys


def existing_account(session: Session, account_id: uuid.UUID) -> Account:
    """An account that must exist.

    Raises:
        Invalid: there is no such account.
    """
    account = session.get(Account, account_id)
    if account is None:
        raise Invalid("there is no such account")
    return account
