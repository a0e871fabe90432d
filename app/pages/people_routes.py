"""HTML routes of people and keys, of the audit, and help."""

import json
import uuid
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from sqlalchemy.orm import Session

from app.auth import service as auth
from app.auth.policy import GuardedRoute, Policy
from app.auth.queries import all_accounts, existing_account, keys_by_account
from app.context import Parts
from app.evaluations.report import WORDS
from app.operations.audit_events import page_of_events
from app.pages.render import go, page
from app.platform import audit_chain
from app.platform.database import Reader, Writer
from app.platform.errors import Forbidden, Invalid
from app.platform.principal import ROLE_SCOPES, SCOPES, Principal
from app.platform.values import PageText
from app.tables import now

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_Manager = Annotated[Principal, Depends(Policy("manage"))]
_Anybody = Annotated[Principal, Depends(Policy("metrics:read", "reads:own", "cases:write"))]
_Name = Annotated[PageText, Form(max_length=100)]


def _people(
    request: Request, principal: Principal, session: Session, *, notice: str = "", secret: str = ""
) -> Response:
    values = {"accounts": all_accounts(session), "keys": keys_by_account(session)}
    choices = {"roles": list(ROLE_SCOPES), "scopes": SCOPES}
    return page(request, "people.html", principal, 200, notice=notice, secret=secret, now=now(), **values, **choices)


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
        account = auth.add_account(session, context.keys.audit, name.strip(), role, actor=principal.name)
    except ValueError as exc:
        raise Invalid(str(exc)) from exc
    if role == "service":
        return _people(request, principal, session, notice=f"{account.name} was added; give it a key.")
    password = auth.issue_one_time_password(session, context.keys.audit, account.name, actor=principal.name)
    return _people(request, principal, session, notice=f"One-time password of {account.name}", secret=password)


@router.post("/people/{account_id}/password")
def one_time_password(
    account_id: uuid.UUID, request: Request, context: Parts, principal: _Manager, session: Writer
) -> Response:
    """Make a new one-time password, shown this once."""
    account = existing_account(session, account_id)
    password = auth.issue_one_time_password(session, context.keys.audit, account.name, actor=principal.name)
    return _people(request, principal, session, notice=f"One-time password of {account.name}", secret=password)


@router.post("/people/{account_id}/state")
def set_state(
    account_id: uuid.UUID,
    context: Parts,
    principal: _Manager,
    session: Writer,
    disabled: Annotated[bool, Form()] = True,
) -> Response:
    """Disable an account, or enable it again.

    Raises:
        Forbidden: it is one's own.
    """
    if account_id == principal.account_id:
        raise Forbidden("you cannot lock yourself out; ask another admin")
    name = existing_account(session, account_id).name
    auth.set_disabled(session, context.keys.audit, name, disabled=disabled, actor=principal.name)
    return go("/people")


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
    """Make an API key, shown this once.

    Raises:
        Invalid: unknown scopes, or scopes for a role that has its own.
    """
    if days and (not days.isascii() or not days.isdigit() or int(days) == 0):
        raise Invalid("days until the key expires: a whole number, or nothing for a key without end")
    expires = now() + timedelta(days=int(days)) if days else None
    name = existing_account(session, account_id).name
    try:
        token = auth.add_key(session, context.keys.audit, name, scopes or [], expires, actor=principal.name)[1]
    except ValueError as exc:
        raise Invalid(str(exc)) from exc
    return _people(request, principal, session, notice=f"API key of {name}", secret=token)


@router.post("/keys/{key_id}/revoke")
def revoke(key_id: uuid.UUID, context: Parts, principal: _Manager, session: Writer) -> Response:
    """Revoke a key."""
    auth.revoke_key(session, context.keys.audit, key_id, actor=principal.name)
    return go("/people")


@router.get("/audit")
def audit(
    request: Request,
    context: Parts,
    principal: _Manager,
    session: Reader,
    cursor: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
    actor: Annotated[PageText, Query(max_length=100)] = "",
    action: Annotated[PageText, Query(max_length=50)] = "",
    object_id: Annotated[PageText, Query(max_length=100)] = "",
) -> Response:
    """Who did what, newest first."""
    events = page_of_events(
        session, cursor=cursor, object_id=object_id or None, actor=actor or None, action=action or None
    )
    details = {event.sequence: json.dumps(event.details, ensure_ascii=False) for event in events.items}
    values = {"events": events, "details": details, "actor": actor, "action": action, "object_id": object_id}
    proof = {"head": audit_chain.newest(session), "public_key": context.keys.audit.public_key}
    return page(request, "audit.html", principal, 200, **values, **proof)


@router.get("/help")
def help_page(request: Request, principal: _Anybody) -> Response:
    """Keys, and what each number means."""
    return page(request, "help.html", principal, words=WORDS)
