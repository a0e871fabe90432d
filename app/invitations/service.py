"""Invite an annotator to named cells, and sign them in once by the link."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from fastapi import Request
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.accounts import service as accounts
from app.audit.chain import events
from app.audit.chain.keys import AuditKeys, DerivedKey
from app.context import Call
from app.database.engine import Database
from app.database.tables import Account, Annotator, Case, Invitation, ReadRequest, new_id, time_of
from app.http.errors import InvalidValue
from app.outcomes.service import ask_annotator
from app.triage.service import lock_open_reads

#: Time for which a link works.
LIFETIME = timedelta(hours=72)


def invite_annotator(call: Call, name: str, case_ids: Sequence[uuid.UUID]) -> tuple[Invitation, str]:
    """Ask an annotator, a guest if there is none of this name, to read cells; gives the name as it is stored too."""
    session, keys, actor = call.session, call.context.keys.audit, call.principal.name
    try:
        account = accounts.account_to_invite(session, keys, name, actor=actor)
    except ValueError as exc:
        raise InvalidValue(str(exc)) from exc
    annotator = accounts.annotator_of_account(session, account.id)
    annotator = annotator or accounts.add_annotator(session, account.name, account.id)
    cases = sorted({*case_ids})
    lock_open_reads(session, Case.id.in_(cases))  # of all cells, before any cell: in the order of everything else
    for case_id in cases:
        ask_annotator(session, keys, call.principal, case_id, annotator.id)
    invitation_id = new_id()
    invitation = Invitation(
        id=invitation_id,
        account_id=account.id,
        token_sha256=accounts.hash_secret(_make_token(call.context.keys.invitations, invitation_id)),
        cases=[str(case_id) for case_id in cases],
        expires_at=time_of(session) + LIFETIME,
        created_by=call.principal.account_id,
    )
    session.add(invitation)
    session.flush()
    events.record_event(
        session,
        keys,
        actor=actor,
        action="invitation.create",
        object_id=account.id,
        details={"account": account.name, "invitation": str(invitation_id), "cells": invitation.cases},
    )
    return invitation, account.name


def _make_token(key: DerivedKey, invitation_id: uuid.UUID) -> str:
    """The secret of a link: it follows from the key, so that a retried request gets the same and no row has it."""
    return key.digest(invitation_id.bytes).hex()


def link_of(request: Request, call: Call, invitation_id: uuid.UUID) -> str:
    """Address of the page of an invitation."""
    base = call.context.settings.public_url or str(request.base_url)
    return f"{base.rstrip('/')}/invitations/{_make_token(call.context.keys.invitations, invitation_id)}"


@dataclass(frozen=True)
class OpenInvitation:
    """An invitation whose link still works."""

    name: str
    # named cells that are still to be read
    n_cells: int
    expires_at: datetime


def open_invitation(session: Session, token: str) -> OpenInvitation | None:
    """The invitation of a link; None if the link is used, expired or unknown."""
    match = _find(session, token)
    if match is None:
        return None
    invitation, account = match
    waiting = (
        select(func.count(ReadRequest.case_id.distinct()))
        .join(Annotator, Annotator.id == ReadRequest.annotator_id)
        .where(Annotator.account_id == account.id, ReadRequest.state.in_(("open", "leased")))
        .where(ReadRequest.case_id.in_([uuid.UUID(case_id) for case_id in invitation.cases]))
    )
    return OpenInvitation(account.name, session.execute(waiting).scalar_one(), invitation.expires_at)


def is_known_link(session: Session, token: str) -> bool:
    """Whether a link was ever made, though it may be used or expired."""
    of_token = select(Invitation.id).where(Invitation.token_sha256 == accounts.hash_secret(token))
    return session.execute(of_token).first() is not None


def use_invitation(database: Database, keys: AuditKeys, token: str) -> str | None:
    """Use a link up and begin a browser session; gives its token, None if the link is used, expired or unknown."""
    with database.read() as session:
        if _find(session, token) is None:
            return None
    with database.write() as session:
        match = _find(session, token, lock=True)
        if match is None:
            return None
        invitation, account = match
        invitation.used_at = time_of(session)
        details = {"invitation": str(invitation.id)}
        events.record_event(
            session, keys, actor=account.name, action="invitation.use", object_id=account.id, details=details
        )
        return accounts.begin_session(session, keys, account)


def _find(session: Session, token: str, *, lock: bool = False) -> tuple[Invitation, Account] | None:
    statement = (
        select(Invitation, Account)
        .join(Account, Account.id == Invitation.account_id)
        .where(Invitation.token_sha256 == accounts.hash_secret(token), Invitation.used_at.is_(None))
        .where(Invitation.expires_at > time_of(session), Account.disabled_at.is_(None))
    )
    row = session.execute(statement.with_for_update(of=Invitation) if lock else statement).first()
    return None if row is None else (row[0], row[1])
