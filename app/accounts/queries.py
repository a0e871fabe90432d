"""Database access of accounts and keys, for lists."""

import uuid
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.database.tables import Account, ApiKey, BrowserSession
from app.http.errors import Invalid


def all_accounts(session: Session) -> list[Account]:
    """Every account, by name."""
    return list(session.execute(select(Account).order_by(Account.name)).scalars())


def last_sign_ins(session: Session) -> dict[uuid.UUID, datetime]:
    """When each account that ever signed in at a browser did so last."""
    newest = select(BrowserSession.account_id, func.max(BrowserSession.created_at)).group_by(BrowserSession.account_id)
    return {row[0]: row[1] for row in session.execute(newest)}


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


def account_of_key(session: Session, key_id: uuid.UUID) -> uuid.UUID:
    """The account of a key that exists."""
    return session.get_one(ApiKey, key_id).account_id


def existing_account(session: Session, account_id: uuid.UUID) -> Account:
    """An account that must exist.

    Raises:
        Invalid: there is no such account.
    """
    account = session.get(Account, account_id)
    if account is None:
        raise Invalid("there is no such account")
    return account
