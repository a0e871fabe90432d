"""HTML routes of the audit: who did what, in words, and as a file."""

import json
from dataclasses import dataclass
from datetime import date
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BeforeValidator
from sqlalchemy.orm import Session

from app.accounts.permissions import GuardedRoute, Policy
from app.accounts.queries import all_accounts
from app.audit.chain import events as chain_events
from app.audit.events import AuditEventsOut, Days, page_of_events
from app.audit.sentences import WORDS, Part, Say, plain, sentences, short
from app.context import Parts
from app.database.engine import Reader
from app.http import languages
from app.http.models import PageText
from app.http.principal import Principal
from app.web.filters import csv_file
from app.web.render import page

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_Manager = Annotated[Principal, Depends(Policy("manage"))]
_Day = Annotated[date | None, BeforeValidator(lambda text: text or None), Query()]
#: Who acts without an account.
_PROGRAMS = ("command line", "gate", "readers", "recalibration", "service", "worker")


@dataclass(frozen=True)
class Asked:
    """Which events a page shows."""

    actor: str
    action: str
    about: str
    since: date | None
    until: date | None
    cursor: int | None

    def query(self, cursor: str | None) -> dict[str, str]:
        """The same as parameters of an address, from a cursor on."""
        values = {"actor": self.actor, "action": self.action, "about": self.about, "cursor": cursor or ""}
        values |= {"since": str(self.since or ""), "until": str(self.until or "")}
        return {name: value for name, value in values.items() if value}


def _asked(
    actor: Annotated[PageText, Query(max_length=100)] = "",
    action: Annotated[PageText, Query(max_length=50)] = "",
    about: Annotated[PageText, Query(max_length=200)] = "",
    object_id: Annotated[PageText, Query(max_length=100)] = "",
    since: _Day = None,
    until: _Day = None,
    cursor: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
) -> Asked:
    return Asked(actor.strip(), action, about.strip() or object_id, since, until, cursor)


_Asked = Annotated[Asked, Depends(_asked)]


def _say(text: str) -> str:
    """What an event says in words, and codes in it; names of people, cases and classes do not come here."""
    found = languages.said(text)
    return languages.term(text) if found == text else found


def _events(session: Session, asked: Asked, say: Say = str) -> tuple[AuditEventsOut, dict[int, list[Part]]]:
    """A page of events, and what each says."""
    events = page_of_events(
        session,
        cursor=asked.cursor,
        actor=asked.actor or None,
        action=asked.action or None,
        days=Days(asked.since, asked.until),
        about=asked.about or None,
    )
    return events, sentences(session, events.items, say)


@router.get("/audit")
def audit(request: Request, context: Parts, principal: _Manager, session: Reader, asked: _Asked) -> Response:
    """Who did what, newest first."""
    events, said = _events(session, asked, _say)
    details = {event.stamp: json.dumps(event.details, ensure_ascii=False) for event in events.items}
    return page(
        request,
        "audit.html",
        principal,
        events=events,
        said=said,
        details=details,
        asked=asked,
        here=urlencode(asked.query(str(asked.cursor or ""))),
        older=urlencode(asked.query(events.next_cursor)),
        actors=[*(account.name for account in all_accounts(session)), *_PROGRAMS],
        actions=sorted(((action, short(action, _say)) for action in WORDS), key=lambda choice: choice[1]),
        head=chain_events.newest(session),
        public_key=context.keys.audit.public_key,
    )


@router.get("/audit.csv", dependencies=[Depends(Policy("manage"))])
def audit_file(session: Reader, asked: _Asked) -> Response:
    """The events that the page shows."""
    events, said = _events(session, asked)
    header = ("number", "time", "who", "what", "why", "action", "object")
    rows = [
        (
            *(event.sequence, event.created_at, event.actor, plain(said[event.stamp])),
            *(event.reason, event.action, event.object),
        )
        for event in events.items
    ]
    return csv_file("audit", header, rows)
