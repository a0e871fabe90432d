"""Page of people, keys and passwords."""

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from sqlalchemy.orm import Session

from app.accounts import people as auth
from app.accounts.permissions import GuardedRoute, Policy
from app.accounts.queries import account_of_key, all_accounts, existing_account, keys_by_account, last_sign_ins
from app.annotators.schemas import PulledOut
from app.annotators.service import agreements, last_monday
from app.context import Context, Parts
from app.database.engine import Reader, Writer
from app.database.tables import Account, ApiKey
from app.http.errors import Conflict, Forbidden, NoRelease
from app.http.languages import gettext
from app.http.models import PageText
from app.http.principal import ROLE_SCOPES, SCOPES, Principal
from app.reports.report import WORDS
from app.web.render import go, page
from ml.messages import Message

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


router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_Manager = Annotated[Principal, Depends(Policy("manage"))]
_Anybody = Annotated[Principal, Depends(Policy("metrics:read", "reads:own", "cases:write"))]
_Name = Annotated[PageText, Form(max_length=100)]


@dataclass(frozen=True)
class _Shown:
    """What a page of people says besides: what was done, a secret that is shown this once, and what is wrong."""

    notice: str = ""
    secret: str = ""
    faults: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    role: str = ""
    search: str = ""


def _people(request: Request, context: Context, principal: Principal, session: Session, shown: _Shown) -> Response:
    """The list of people; 422 with what is wrong where somebody could not be added."""
    everybody = people(session, context, shown.search, compute=request.method == "GET")
    status = 422 if shown.faults else 200
    return page(request, "people.html", principal, status, people=everybody, shown=shown, roles=list(ROLE_SCOPES))


def _person_of_people_routes(
    request: Request, context: Context, principal: Principal, session: Session, account_id: uuid.UUID, shown: _Shown
) -> Response:
    """One person with their keys."""
    found = person(session, context, account_id, compute=request.method == "GET")
    values = {"person": found, "scopes": SCOPES, "now": context.clock()}
    return page(request, "person.html", principal, 422 if shown.faults else 200, shown=shown, **values)


@router.get("/people")
def people(
    request: Request,
    context: Parts,
    principal: _Manager,
    session: Reader,
    search: Annotated[PageText, Query(max_length=100)] = "",
) -> Response:
    """Accounts, when they signed in last, and how annotators agree with the others."""
    return _people(request, context, principal, session, _Shown(search=search.strip()))


@router.post("/people")
def add_person(
    request: Request, context: Parts, principal: _Manager, session: Writer, name: _Name = "", role: _Name = ""
) -> Response:
    """Make an account; a person gets a one-time password, shown this once."""
    try:
        account = auth.add_account(session, context.keys.audit, name.strip(), role, actor=principal.name)
    except (Conflict, ValueError) as exc:
        session.rollback()
        shown = _Shown(faults={"name": str(exc)}, name=name, role=role)
        return _people(request, context, principal, session, shown)
    if role == "service":
        shown = _Shown(gettext("%(name)s was added; give it a key.", name=account.name))
        return _person_of_people_routes(request, context, principal, session, account.id, shown)
    return _new_password(request, context, principal, session, account)


def _new_password(
    request: Request, context: Context, principal: Principal, session: Session, account: Account
) -> Response:
    password = auth.issue_one_time_password(session, context.keys.audit, account.name, actor=principal.name)
    shown = _Shown(gettext("One-time password of %(name)s", name=account.name), password)
    return _person_of_people_routes(request, context, principal, session, account.id, shown)


@router.get("/people/{account_id}")
def show_person(
    account_id: uuid.UUID, request: Request, context: Parts, principal: _Manager, session: Reader
) -> Response:
    """One account: sign-in, agreement, access, keys."""
    return _person_of_people_routes(request, context, principal, session, account_id, _Shown())


@router.post("/people/{account_id}/password")
def one_time_password(
    account_id: uuid.UUID, request: Request, context: Parts, principal: _Manager, session: Writer
) -> Response:
    """Make a new one-time password, shown this once."""
    return _new_password(request, context, principal, session, existing_account(session, account_id))


@router.post("/people/{account_id}/state")
def set_state(
    account_id: uuid.UUID,
    context: Parts,
    principal: _Manager,
    session: Writer,
    disabled: Annotated[bool, Form()] = True,
) -> Response:
    """Let somebody in no more, or in again.

    Raises:
        Forbidden: it is oneself.
    """
    if account_id == principal.account_id:
        raise Forbidden("you cannot lock yourself out; ask another admin")
    name = existing_account(session, account_id).name
    auth.set_disabled(session, context.keys.audit, name, disabled=disabled, actor=principal.name)
    return go(f"/people/{account_id}")


@router.post("/people/{account_id}/keys")
def add_key(
    account_id: uuid.UUID,
    request: Request,
    context: Parts,
    principal: _Manager,
    session: Writer,
    scopes: Annotated[list[str] | None, Form(max_length=10)] = None,
    days: Annotated[PageText, Form(max_length=5)] = "",
) -> Response:
    """Make an API key, shown this once."""
    name = existing_account(session, account_id).name
    try:
        expires = _expiry(days.strip(), context.clock())
        token = auth.add_key(session, context.keys.audit, name, scopes or [], expires, actor=principal.name)[1]
    except ValueError as exc:
        session.rollback()
        shown = _Shown(faults={"days" if "days" in str(exc) else "scopes": str(exc)})
        return _person_of_people_routes(request, context, principal, session, account_id, shown)
    return _person_of_people_routes(
        request, context, principal, session, account_id, _Shown(gettext("API key of %(name)s", name=name), token)
    )


def _expiry(days: str, at: datetime) -> datetime | None:
    """When a key that is made at a time ends, None for never.

    Raises:
        ValueError: no whole number of days.
    """
    if days and (not days.isascii() or not days.isdigit() or int(days) == 0):
        raise ValueError(Message("a whole number of days, or nothing for a key without end"))
    return at + timedelta(days=int(days)) if days else None


@router.post("/keys/{key_id}/revoke")
def revoke(key_id: uuid.UUID, context: Parts, principal: _Manager, session: Writer) -> Response:
    """Revoke a key."""
    auth.revoke_key(session, context.keys.audit, key_id, actor=principal.name)
    return go(f"/people/{account_of_key(session, key_id)}")


@router.get("/help")
def help_page(request: Request, principal: _Anybody) -> Response:
    """Keys, and what each number means."""
    return page(request, "help.html", principal, words=WORDS)


@router.get("/display")
def display_page(request: Request, principal: _Anybody) -> Response:
    """Patterns by which a person sees whether a screen shows what images hold."""
    return page(request, "display.html", principal)
