"""HTML routes of people and keys, of the audit, and help."""

import json
import uuid
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.auth import service as auth
from app.auth.policy import Policy
from app.context import Parts
from app.evaluations.report import WORDS
from app.operations.audit_routes import list_audit_events
from app.pages.render import go, page
from app.platform.database import Reader, Writer
from app.platform.errors import Forbidden, Invalid
from app.platform.principal import ROLE_SCOPES, SCOPES, Principal
from app.tables import Account, ApiKey, now

router = APIRouter(include_in_schema=False)
_Manager = Annotated[Principal, Depends(Policy("manage"))]
_Anybody = Annotated[Principal, Depends(Policy("metrics:read", "reads:own", "cases:write"))]
_Name = Annotated[str, Form(max_length=100)]


def _people(request: Request, principal: Principal, session: Session, *, told: str = "", secret: str = "") -> Response:
    accounts = list(session.execute(select(Account).order_by(Account.name)).scalars())
    keys: dict[uuid.UUID, list[ApiKey]] = {}
    for key in session.execute(select(ApiKey).order_by(ApiKey.id)).scalars():
        keys.setdefault(key.account_id, []).append(key)
    values = {"accounts": accounts, "keys": keys, "roles": list(ROLE_SCOPES), "scopes": SCOPES}
    return page(request, "people.html", principal, 200, told=told, secret=secret, now=now(), **values)


@router.get("/people")
def people(request: Request, principal: _Manager, session: Reader) -> Response:
    """Accounts and their keys."""
    return _people(request, principal, session)


@router.post("/people")
def add_person(
    request: Request, context: Parts, principal: _Manager, session: Writer, name: _Name = "", role: _Name = ""
) -> Response:
    """Make an account; a person gets a one-time password, shown this once.

    Raises:
        Invalid: an unusable name or role.
    """
    try:
        account = auth.add_account(session, context.secret, name.strip(), role, actor=principal.name)
    except ValueError as exc:
        raise Invalid(str(exc)) from exc
    if role == "service":
        return _people(request, principal, session, told=f"{account.name} was added; give it a key.")
    password = auth.issue_one_time_password(session, context.secret, account.name, actor=principal.name)
    return _people(request, principal, session, told=f"One-time password of {account.name}", secret=password)


def _account(session: Session, account_id: uuid.UUID) -> Account:
    account = session.get(Account, account_id)
    if account is None:
        raise Invalid("there is no such account")
    return account


@router.post("/people/{account_id}/password")
def one_time_password(
    account_id: uuid.UUID, request: Request, context: Parts, principal: _Manager, session: Writer
) -> Response:
    """Make a new one-time password, shown this once."""
    account = _account(session, account_id)
    password = auth.issue_one_time_password(session, context.secret, account.name, actor=principal.name)
    return _people(request, principal, session, told=f"One-time password of {account.name}", secret=password)


@router.post("/people/{account_id}/state")
def let_in(
    account_id: uuid.UUID,
    context: Parts,
    principal: _Manager,
    session: Writer,
    disabled: Annotated[bool, Form()] = True,
) -> Response:
    """Let an account in no more, or again.

    Raises:
        Forbidden: it is one's own.
    """
    if account_id == principal.account_id:
        raise Forbidden("you cannot lock yourself out; ask another admin")
    name = _account(session, account_id).name
    auth.set_disabled(session, context.secret, name, disabled=disabled, actor=principal.name)
    return go("/people")


@router.post("/people/{account_id}/keys")
def add_key(
    account_id: uuid.UUID,
    request: Request,
    context: Parts,
    principal: _Manager,
    session: Writer,
    scopes: Annotated[list[str] | None, Form(max_length=10)] = None,
    days: Annotated[str, Form(max_length=5)] = "",
) -> Response:
    """Make an API key, shown this once.

    Raises:
        Invalid: unknown scopes, or scopes for a role that has its own.
    """
    if days and (not days.isascii() or not days.isdigit() or int(days) == 0):
        raise Invalid("days until the key expires: a whole number, or nothing for a key without end")
    expires = now() + timedelta(days=int(days)) if days else None
    name = _account(session, account_id).name
    try:
        token = auth.add_key(session, context.secret, name, scopes or [], expires, actor=principal.name)[1]
    except ValueError as exc:
        raise Invalid(str(exc)) from exc
    return _people(request, principal, session, told=f"API key of {name}", secret=token)


@router.post("/keys/{key_id}/revoke")
def revoke(key_id: uuid.UUID, context: Parts, principal: _Manager, session: Writer) -> Response:
    """Make a key useless."""
    auth.revoke_key(session, context.secret, key_id, actor=principal.name)
    return go("/people")


@router.get("/audit")
def audit(
    request: Request,
    principal: _Manager,
    session: Reader,
    cursor: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
    actor: Annotated[str, Query(max_length=100)] = "",
    action: Annotated[str, Query(max_length=50)] = "",
    object_id: Annotated[str, Query(max_length=100)] = "",
) -> Response:
    """Who did what, newest first."""
    found = list_audit_events(session, cursor, 100, object_id or None, actor or None, action or None)
    details = {one.sequence: json.dumps(one.details, ensure_ascii=False) for one in found.items}
    values = {"found": found, "details": details, "actor": actor, "action": action, "object_id": object_id}
    return page(request, "audit.html", principal, 200, **values)


@router.get("/help")
def help_page(request: Request, principal: _Anybody) -> Response:
    """Keys, and what each number means."""
    return page(request, "help.html", principal, words=WORDS)
