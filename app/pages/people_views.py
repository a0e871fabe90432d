"""What the pages of people show, gathered from the domains."""

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from app.accounts.queries import all_accounts, existing_account, keys_by_account, last_sign_ins
from app.annotators.schemas import PulledOut
from app.annotators.service import agreements, last_monday
from app.context import Context
from app.database.tables import Account, ApiKey
from app.http.errors import NoRelease

#: Agreements change on Mondays; an erasure in between is seen after so many seconds.
_SECONDS = 600.0
#: By installation and week: when they were computed, and what was found.
_recent: dict[tuple[str, datetime], tuple[float, Mapping[uuid.UUID, PulledOut]]] = {}


@dataclass(frozen=True)
class Person:
    """An account as admins see it.

    Attributes:
        account: its row.
        signed_in: when last, None for never.
        agreement: share of answers that another annotator gives too, None while it is not known.
        compared: whether the agreements were looked at.
        keys: API keys, oldest first.
    """

    account: Account
    signed_in: datetime | None
    agreement: PulledOut | None
    compared: bool
    keys: list[ApiKey]


def _agreements(session: Session, context: Context, *, compute: bool) -> Mapping[uuid.UUID, PulledOut] | None:
    """Agreement of annotators by account, as it was on the last Monday; None where it would have to be computed now."""
    key, moment = (str(context.settings.home), last_monday(context.clock())), time.monotonic()
    known = _recent.get(key)
    if known is not None and moment - known[0] < _SECONDS:
        return known[1]
    if not compute:
        return None
    try:
        found = agreements(session)
    except NoRelease:
        return {}
    for other in [other for other in _recent if other[0] == key[0]]:
        del _recent[other]
    _recent[key] = moment, found
    return found


def people(session: Session, context: Context, search: str = "", *, compute: bool = True) -> list[Person]:
    """Accounts by name, those whose name contains a text where one is given.

    Args:
        session: for reading.
        context: parts of the service.
        search: what the names must contain, in any case of letters.
        compute: whether to wait for the agreements; not while the session keeps others from writing.
    """
    keys, signed_in = keys_by_account(session), last_sign_ins(session)
    known = _agreements(session, context, compute=compute)
    return [
        _person(account, signed_in, known, keys.get(account.id, []))
        for account in all_accounts(session)
        if search.casefold() in account.name.casefold()
    ]


def person(session: Session, context: Context, account_id: uuid.UUID, *, compute: bool = True) -> Person:
    """One account.

    Args:
        session: for reading.
        context: parts of the service.
        account_id: whose.
        compute: whether to wait for the agreements; not while the session keeps others from writing.

    Raises:
        Invalid: there is no such account.
    """
    account = existing_account(session, account_id)
    keys = keys_by_account(session).get(account_id, [])
    return _person(account, last_sign_ins(session), _agreements(session, context, compute=compute), keys)


def _person(
    account: Account,
    signed_in: Mapping[uuid.UUID, datetime],
    known: Mapping[uuid.UUID, PulledOut] | None,
    keys: list[ApiKey],
) -> Person:
    agreement = None if known is None else known.get(account.id)
    return Person(account, signed_in.get(account.id), agreement, known is not None, keys)
