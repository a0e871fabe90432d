"""HTML routes of people and keys, and help."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from sqlalchemy.orm import Session

from app.accounts import people as auth
from app.accounts.permissions import GuardedRoute, Policy
from app.accounts.queries import account_of_key, existing_account
from app.context import Context, Parts
from app.database.engine import Reader, Writer
from app.database.tables import Account
from app.http.errors import Conflict, Forbidden
from app.http.languages import gettext
from app.http.models import PageText
from app.http.principal import ROLE_SCOPES, SCOPES, Principal
from app.pages import people_views
from app.pages.render import go, page
from app.reports.report import WORDS
from ml.messages import Message

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
    everybody = people_views.people(session, context, shown.search, compute=request.method == "GET")
    status = 422 if shown.faults else 200
    return page(request, "people.html", principal, status, people=everybody, shown=shown, roles=list(ROLE_SCOPES))


def _person(
    request: Request, context: Context, principal: Principal, session: Session, account_id: uuid.UUID, shown: _Shown
) -> Response:
    """One person with their keys."""
    found = people_views.person(session, context, account_id, compute=request.method == "GET")
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
        return _person(request, context, principal, session, account.id, shown)
    return _new_password(request, context, principal, session, account)


def _new_password(
    request: Request, context: Context, principal: Principal, session: Session, account: Account
) -> Response:
    password = auth.issue_one_time_password(session, context.keys.audit, account.name, actor=principal.name)
    shown = _Shown(gettext("One-time password of %(name)s", name=account.name), password)
    return _person(request, context, principal, session, account.id, shown)


@router.get("/people/{account_id}")
def show_person(
    account_id: uuid.UUID, request: Request, context: Parts, principal: _Manager, session: Reader
) -> Response:
    """One account: sign-in, agreement, access, keys."""
    return _person(request, context, principal, session, account_id, _Shown())


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
        return _person(request, context, principal, session, account_id, shown)
    return _person(
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
