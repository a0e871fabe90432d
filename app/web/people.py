"""Pages of people, keys and passwords, and pages that only explain: help, display, API."""

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from fastapi.responses import HTMLResponse
from sqlalchemy.orm import Session

from app.accounts import service as accounts
from app.accounts.service import GuardedRoute, RequireScope
from app.annotators.service import PulledOut, estimate_account_agreements, last_monday
from app.cases import service as cases
from app.context import ServiceContext
from app.database.tables import Account, ApiKey
from app.http.errors import Forbidden, NoRelease
from app.http.languages import gettext
from app.http.middleware import POLICY
from app.http.models import PageText
from app.http.principal import ROLE_SCOPES, SCOPES, Principal
from app.invitations.service import invite_annotator, link_of
from app.reports.service import METRIC_MEANINGS
from app.web.forms import WrongFields, back_to
from app.web.page import ManagerForm, ManagerPage, Page
from app.web.render import ENVIRONMENT, redirect_to, render_page
from ml.messages import Message

#: Agreements change on Mondays; an erasure in between is seen after so many seconds.
_SECONDS = 600.0
#: By installation and week: when they were computed, and what was found.
_recent: dict[tuple[str, datetime], tuple[float, Mapping[uuid.UUID, PulledOut]]] = {}


@dataclass(frozen=True)
class PersonView:
    """An account as admins see it."""

    account: Account
    # when last, None for never
    signed_in: datetime | None
    # share of answers that another annotator gives too, None while it is not known
    agreement: PulledOut | None
    # whether the agreements were looked at
    compared: bool
    # API keys, oldest first
    keys: list[ApiKey]


def _load_agreements(
    session: Session, context: ServiceContext, *, compute: bool
) -> Mapping[uuid.UUID, PulledOut] | None:
    key, moment = (str(context.settings.home), last_monday(context.clock())), time.monotonic()
    cached = _recent.get(key)
    if cached is not None and moment - cached[0] < _SECONDS:
        return cached[1]
    if not compute:
        return None
    try:
        agreement_by_account = estimate_account_agreements(session)
    except NoRelease:
        return {}
    for other in [other for other in _recent if other[0] == key[0]]:
        del _recent[other]
    _recent[key] = moment, agreement_by_account
    return agreement_by_account


def load_people(
    session: Session, context: ServiceContext, search: str = "", *, compute: bool = True
) -> list[PersonView]:
    """Accounts by name, those whose name contains a text where one is given."""
    keys, signed_in = accounts.keys_by_account(session), accounts.last_sign_ins(session)
    agreement_by_account = _load_agreements(session, context, compute=compute)
    return [
        _build_person_view(account, signed_in, agreement_by_account, keys.get(account.id, []))
        for account in accounts.all_accounts(session)
        if search.casefold() in account.name.casefold()
    ]


def load_person(
    session: Session, context: ServiceContext, account_id: uuid.UUID, *, compute: bool = True
) -> PersonView:
    """One account."""
    account = accounts.existing_account(session, account_id)
    keys = accounts.keys_by_account(session).get(account_id, [])
    return _build_person_view(
        account, accounts.last_sign_ins(session), _load_agreements(session, context, compute=compute), keys
    )


def _build_person_view(
    account: Account,
    signed_in: Mapping[uuid.UUID, datetime],
    known: Mapping[uuid.UUID, PulledOut] | None,
    keys: list[ApiKey],
) -> PersonView:
    agreement = None if known is None else known.get(account.id)
    return PersonView(account, signed_in.get(account.id), agreement, known is not None, keys)


router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_Anybody = Annotated[Principal, Depends(RequireScope("metrics:read", "reads:own", "cases:write"))]
_Name = Annotated[PageText, Form(max_length=100)]


@dataclass(frozen=True)
class _PeoplePageState:
    """What an account page says or shows besides: notice, one-time secret, search, cells to invite somebody for."""

    notice: str = ""
    secret: str = ""
    search: str = ""
    cells: str = ""


#: Role that the form offers for a viewer of the laboratory, and the scopes of the key that comes with it.
LAB_VIEWER, _LAB_VIEWER_SCOPES = "lab viewer", ["cases:read", "cases:write", "labels:write"]
#: Cells that one invitation is for at most.
_MOST_CELLS = 100


def _render_people(page: Page, shown: _PeoplePageState) -> Response:
    everybody = load_people(page.session, page.context, shown.search, compute=page.request.method == "GET")
    return page.render("people.html", people=everybody, shown=shown, roles=[*ROLE_SCOPES, LAB_VIEWER])


def _render_person(page: Page, account_id: uuid.UUID, shown: _PeoplePageState) -> Response:
    person_view = load_person(page.session, page.context, account_id, compute=page.request.method == "GET")
    return page.render("person.html", shown=shown, person=person_view, scopes=SCOPES, now=page.context.clock())


@router.get("/people")
def show_people(
    page: ManagerPage,
    search: Annotated[PageText, Query(max_length=100)] = "",
    cell: Annotated[uuid.UUID | None, Query()] = None,
) -> Response:
    """Accounts, when they signed in last, and how annotators agree with the others; a form to invite one."""
    cells = "" if cell is None else cases.case_by_id(page.session, cell).external_id
    return _render_people(page, _PeoplePageState(search=search.strip(), cells=cells))


@router.post("/people")
@back_to(show_people, {"": "name"})
def add_person(page: ManagerForm, name: _Name = "", role: _Name = "") -> Response:
    """Make an account; a person gets a one-time password and a lab viewer a key, shown this once."""
    keys, actor, kind = page.context.keys.audit, page.principal.name, "service" if role == LAB_VIEWER else role
    try:
        account = accounts.add_account(page.session, keys, name.strip(), kind, actor=actor)
    except ValueError as exc:
        raise WrongFields({"name": str(exc)}) from exc
    if role == LAB_VIEWER:
        token = accounts.add_key(page.session, keys, account.name, _LAB_VIEWER_SCOPES, None, actor=actor)[1]
        page_state = _PeoplePageState(gettext("API key of %(name)s", name=account.name), token)
        return _render_person(page, account.id, page_state)
    if role == "service":
        page_state = _PeoplePageState(gettext("%(name)s was added. Create an API key for it.", name=account.name))
        return _render_person(page, account.id, page_state)
    return _new_password(page, account)


@router.post("/people/invitations")
@back_to(show_people, {"": "cells"})
def invite_person(
    page: ManagerForm, annotator: _Name = "", cells: Annotated[PageText, Form(max_length=20_200)] = ""
) -> Response:
    """Invite an annotator to read cells, one external id in each line; the link is shown this once."""
    faults: dict[str, str] = {} if annotator.strip() else {"annotator": Message("is missing")}
    named = {line.strip() for line in cells.splitlines() if line.strip()}
    by_name = {name: cases.case_by_external_id(page.session, name) for name in sorted(named)[:_MOST_CELLS]}
    if not 1 <= len(named) <= _MOST_CELLS:
        faults["cells"] = Message("name 1 to {most} cells, one in each line", most=_MOST_CELLS)
    elif missing := [name for name, case in by_name.items() if case is None]:
        faults["cells"] = Message("there is no cell {name}", name=missing[0])
    if faults:
        raise WrongFields(faults)
    invitation, name = invite_annotator(page, annotator, [case.id for case in by_name.values() if case is not None])
    page_state = _PeoplePageState(
        gettext("Invitation of %(name)s: send them this link", name=name), link_of(page.request, page, invitation.id)
    )
    return _render_person(page, invitation.account_id, page_state)


def _new_password(page: Page, account: Account) -> Response:
    password = accounts.issue_one_time_password(
        page.session, page.context.keys.audit, account.name, actor=page.principal.name
    )
    page_state = _PeoplePageState(gettext("One-time password of %(name)s", name=account.name), password)
    return _render_person(page, account.id, page_state)


@router.get("/people/{account_id}")
def show_person(account_id: uuid.UUID, page: ManagerPage) -> Response:
    """One account: sign-in, agreement, access, keys."""
    return _render_person(page, account_id, _PeoplePageState())


@router.post("/people/{account_id}/password")
def one_time_password(account_id: uuid.UUID, page: ManagerForm) -> Response:
    """Make a new one-time password, shown this once."""
    return _new_password(page, accounts.existing_account(page.session, account_id))


@router.post("/people/{account_id}/state")
def set_state(account_id: uuid.UUID, page: ManagerForm, disabled: Annotated[bool, Form()] = True) -> Response:
    """Let somebody in no more, or in again."""
    if account_id == page.principal.account_id:
        raise Forbidden("you cannot disable your own account; ask another admin")
    name = accounts.existing_account(page.session, account_id).name
    accounts.set_disabled(page.session, page.context.keys.audit, name, disabled=disabled, actor=page.principal.name)
    return redirect_to(f"/people/{account_id}")


@router.post("/people/{account_id}/keys")
@back_to(show_person)
def add_key(
    account_id: uuid.UUID,
    page: ManagerForm,
    scopes: Annotated[list[str] | None, Form(max_length=10)] = None,
    days: Annotated[PageText, Form(max_length=5)] = "",
) -> Response:
    """Make an API key, shown this once."""
    name = accounts.existing_account(page.session, account_id).name
    try:
        expires = _parse_expiry(days.strip(), page.context.clock())
        token = accounts.add_key(
            page.session, page.context.keys.audit, name, scopes or [], expires, actor=page.principal.name
        )[1]
    except ValueError as exc:
        raise WrongFields({"days" if "days" in str(exc) else "scopes": str(exc)}) from exc
    return _render_person(page, account_id, _PeoplePageState(gettext("API key of %(name)s", name=name), token))


def _parse_expiry(days: str, at: datetime) -> datetime | None:
    if days and (not days.isascii() or not days.isdigit() or int(days) == 0):
        raise ValueError(Message("enter a whole number of days, or leave empty for a key that never expires"))
    return at + timedelta(days=int(days)) if days else None


@router.post("/keys/{key_id}/revoke")
def revoke_key(key_id: uuid.UUID, page: ManagerForm) -> Response:
    """Revoke a key."""
    accounts.revoke_key(page.session, page.context.keys.audit, key_id, actor=page.principal.name)
    return redirect_to(f"/people/{accounts.account_of_key(page.session, key_id)}")


@router.get("/help")
def help_page(request: Request, principal: _Anybody) -> Response:
    """Keys, and what each number means."""
    return render_page(request, "help.html", principal, words=METRIC_MEANINGS)


@router.get("/display")
def display_page(request: Request, principal: _Anybody) -> Response:
    """Patterns by which a person sees whether a screen shows what images hold."""
    return render_page(request, "display.html", principal)


#: The viewer styles its elements in place, and its styles contain icons. Only this page allows that.
_API_POLICY = POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'").replace(
    "img-src 'self'", "img-src 'self' data:"
)


@router.get("/v1/docs", dependencies=[Depends(accounts.allow_everyone)])
def show_api() -> HTMLResponse:
    """Every operation with its access, fields, errors and an example, and a button to try it."""
    headers = {"Cache-Control": "no-cache", "Content-Security-Policy": _API_POLICY}
    return HTMLResponse(ENVIRONMENT.get_template("api.html").render(), headers=headers)
