"""HTML routes of the audit: events as sentences, and as a CSV file."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BeforeValidator
from sqlalchemy.orm import Session

from app.accounts.service import GuardedRoute, RequireScope, all_accounts
from app.audit.chain import events as chain_events
from app.audit.events import AuditEventsOut, DayRange, list_audit_event_page
from app.audit.sentences import WORDS, Say, SentencePart, describe_events, strip_links, summarize_action
from app.database.engine import ReadSession
from app.http import languages
from app.http.models import PageText
from app.web.filters import csv_file
from app.web.page import ManagerPage

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_Day = Annotated[date | None, BeforeValidator(lambda text: text or None), Query()]
#: Who acts without an account.
_PROGRAMS = ("command line", "gate", "readers", "recalibration", "service", "worker")


@dataclass(frozen=True)
class AuditFilter:
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


def _read_audit_filter(
    actor: Annotated[PageText, Query(max_length=100)] = "",
    action: Annotated[PageText, Query(max_length=50)] = "",
    about: Annotated[PageText, Query(max_length=200)] = "",
    object_id: Annotated[PageText, Query(max_length=100)] = "",
    since: _Day = None,
    until: _Day = None,
    cursor: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
) -> AuditFilter:
    return AuditFilter(actor.strip(), action, about.strip() or object_id, since, until, cursor)


_FilterQuery = Annotated[AuditFilter, Depends(_read_audit_filter)]


def translate_event_text(text: str) -> str:
    """A part of an event's sentence in the language of the page."""
    translated = languages.translate_sentence(text)
    return languages.translate_term(text) if translated == text else translated


def _load_event_page(
    session: Session, asked: AuditFilter, say: Say = str
) -> tuple[AuditEventsOut, dict[int, list[SentencePart]]]:
    events = list_audit_event_page(
        session,
        cursor=asked.cursor,
        actor=asked.actor or None,
        action=asked.action or None,
        days=DayRange(asked.since, asked.until),
        about=asked.about or None,
    )
    return events, describe_events(session, events.items, say)


_ = languages.gettext_noop
#: Actions by the first word of their codes, as the filter offers them.
_GROUPS = {
    _("Reading"): ("label", "read", "repeat", "request"),
    _("Cells"): ("case", "comment", "definition", "outcome", "patient", "predictions", "reference", "specimen"),
    _("Models"): ("alias", "gate", "readers", "release"),
    _("People"): ("account", "annotator", "invitation", "key", "practice", "session"),
    _("Policy"): ("classes", "policy", "specimens", "targets"),
    _("System"): ("db", "job", "rows"),
}


def _list_actions(kinds: Sequence[str]) -> list[tuple[str, str]]:
    actions = [action for action in WORDS if action.partition(".")[0] in kinds]
    return sorted(((one, summarize_action(one, translate_event_text)) for one in actions), key=lambda choice: choice[1])


@router.get("/audit")
def show_audit(page: ManagerPage, asked: _FilterQuery) -> Response:
    """Who did what, newest first."""
    events, texts_by_event = _load_event_page(page.session, asked, translate_event_text)
    details = {event.sequence: json.dumps(event.details, ensure_ascii=False) for event in events.items}
    return page.render(
        "audit.html",
        events=events,
        said=texts_by_event,
        details=details,
        asked=asked,
        here=urlencode(asked.query(str(asked.cursor or ""))),
        older=urlencode(asked.query(events.next_cursor)),
        actors=[*(account.name for account in all_accounts(page.session)), *_PROGRAMS],
        actions={languages.gettext(name): _list_actions(kinds) for name, kinds in _GROUPS.items()},
        head=chain_events.read_head_text(page.session),
        public_key=page.context.keys.audit.public_key,
    )


@router.get("/audit.csv", dependencies=[Depends(RequireScope("manage"))])
def audit_file(session: ReadSession, asked: _FilterQuery) -> Response:
    """The events that the page shows."""
    events, texts_by_event = _load_event_page(session, asked)
    header = ("number", "time", "who", "what", "why", "action", "object")
    rows = [
        (
            *(event.sequence, event.created_at, event.actor, strip_links(texts_by_event[event.sequence])),
            *(event.reason, event.action, event.object),
        )
        for event in events.items
    ]
    return csv_file("audit", header, rows)
