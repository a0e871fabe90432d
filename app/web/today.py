"""Today: what waits, what changed since yesterday and what needs a lead; first steps of an empty service."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from fastapi import APIRouter, Response
from sqlalchemy.orm import Session

from app.accounts.service import GuardedRoute, count_annotators
from app.audit.events import DayRange, count_audit_events, list_audit_event_page
from app.audit.sentences import SentencePart, describe_events
from app.cases import service as cases
from app.http.days import start_of_day
from app.http.languages import gettext, ngettext, translate_sentence
from app.imports.service import count_failed_rows
from app.jobs.service import count_living_workers
from app.recalibration.service import is_refusal
from app.releases.service import champion_since
from app.specimens.service import list_notices
from app.triage.service import current_policy, missing_annotators
from app.web.audit import translate_event_text
from app.web.cells import CellQuery
from app.web.page import Page, PeoplePage
from app.web.releases import load_recalibration_view
from app.web.render import redirect_to

State = Literal["done", "next", "later", "waits"]
#: A second opinion needs another annotator.
ENOUGH_ANNOTATORS = 2
#: What changes what is predicted or read, for the list of changes; and how many of each it has at most.
_CHANGES, _MOST_CHANGES = ("alias.move", "release.add", "policy.change", "classes.change", "patient.erase"), 3
#: How long a job that went wrong is named.
_NAMED = timedelta(days=7)


@dataclass(frozen=True)
class FirstSteps:
    """Progress of a service towards its first case."""

    # of the steps release, people, policy, import: done, next, later (can be done now too) or waits
    states: dict[str, State]
    # when the release that is served was added; None without one
    release_since: datetime | None
    # accounts of annotators that may sign in
    n_annotators: int
    # in force; the first came with the tables
    policy_version: int


def first_steps(session: Session) -> FirstSteps | None:
    """The steps of a service without a case; None once there is one."""
    if not cases.is_empty(session):
        return None
    since = champion_since(session)
    n_annotators, version = count_annotators(session), current_policy(session).version
    done = {"release": since is not None, "people": n_annotators >= ENOUGH_ANNOTATORS, "policy": version > 1}
    states: dict[str, State] = {}
    for name in ("release", "people", "policy", "import"):
        if done.get(name, False):
            states[name] = "done"
        elif name == "import" and since is None:
            states[name] = "waits"
        else:
            states[name] = "later" if "next" in states.values() else "next"
    return FirstSteps(states, since, n_annotators, version)


@dataclass(frozen=True)
class Need:
    """Something that a lead has to do, and the page where it is done."""

    text: str
    button: str
    path: str
    since: datetime | None = None


@dataclass(frozen=True)
class Today:
    """A lead's day: numbers, what changed since a moment, and what needs them."""

    n_to_read: int
    n_overdue: int
    n_to_settle: int
    since: datetime
    changes: cases.Changes
    events: list[tuple[datetime, str, list[SentencePart]]]
    # events since then that are not listed
    n_more: int
    needs: list[Need]


def load_today(page: Page) -> Today:
    """What a lead sees first on a day."""
    session, now = page.session, page.context.clock()
    since = start_of_day(start_of_day(now, page.zone) - timedelta(hours=12), page.zone)
    manages = "manage" in page.principal.scopes
    n_to_settle = cases.count_cases(session, CellQuery(state="to_settle").filter(session))
    n_overdue = cases.count_cases(session, CellQuery(state="overdue").filter(session))
    events = _list_events(session, since) if manages else []
    return Today(
        cases.count_cases(session, CellQuery(state="to_read").filter(session)),
        n_overdue,
        n_to_settle,
        since,
        cases.count_changes(session, since),
        events,
        count_audit_events(session, _CHANGES, since) - len(events) if manages else 0,
        list(_iter_needs(page, n_to_settle, n_overdue)) if manages else [],
    )


def _list_events(session: Session, since: datetime) -> list[tuple[datetime, str, list[SentencePart]]]:
    days = DayRange(since.date(), None)
    newest = [
        event
        for action in _CHANGES
        for event in list_audit_event_page(session, limit=_MOST_CHANGES, action=action, days=days).items
        if event.created_at >= since
    ]
    texts = describe_events(session, newest, translate_event_text)
    newest.sort(key=lambda event: -event.sequence)
    return [(event.created_at, event.actor, texts[event.sequence]) for event in newest]


def _iter_needs(page: Page, n_to_settle: int, n_overdue: int) -> Iterator[Need]:
    session = page.session
    for notice in list_notices(session, page.principal.account_id):
        text = " ".join(map(translate_sentence, notice.sentences))
        yield Need(text, gettext("Look at it"), f"/specimens/{notice.specimen_id}")
    if n_to_settle:
        text = ngettext(
            "%(n)s cell needs another read, and no annotator is left who may do it.",
            "%(n)s cells need another read, and no annotator is left who may do it.",
            n_to_settle,
        )
        yield Need(text, gettext("Settle"), "/cells?state=to_settle")
    missing = missing_annotators(session)
    if missing:
        text = ngettext(
            "The reading policy needs %(n)s more annotator.", "The reading policy needs %(n)s more annotators.", missing
        )
        yield Need(text, gettext("Add an annotator"), "/people")
    if n_overdue:
        text = ngettext("%(n)s cell is overdue.", "%(n)s cells are overdue.", n_overdue)
        yield Need(text, gettext("Assign"), "/cells?state=overdue&sort=due&down=false")
    yield from _iter_job_needs(page)
    n_flagged = cases.count_cases(session, cases.CaseFilter(state="flagged"))
    if n_flagged:
        text = ngettext("Annotators flagged %(n)s cell.", "Annotators flagged %(n)s cells.", n_flagged)
        yield Need(text, gettext("Look at it") if n_flagged == 1 else gettext("Look at them"), "/flagged")


def _iter_job_needs(page: Page) -> Iterator[Need]:
    session, since = page.session, page.context.clock() - _NAMED
    if not count_living_workers(session):
        yield Need(
            gettext("No worker is running: imports, reports and recalibrations wait."), gettext("Look at jobs"), "/jobs"
        )
    view = load_recalibration_view(session, page.context)
    refused = view.last is not None and is_refusal(view.last.error) and view.last.created_at >= since
    if refused and not view.running:
        yield Need(gettext("The last recalibration was refused."), gettext("Look at the reasons"), "/releases")
    elif view.candidate is not None and view.verdict == "passed" and "champion" not in view.candidate.aliases:
        yield Need(gettext("A candidate passed the promotion check."), gettext("Decide on it"), "/releases")
    for job_id, asked_at, n_failed in count_failed_rows(session, since):
        text = ngettext("%(n)s row of an import failed.", "%(n)s rows of an import failed.", n_failed)
        yield Need(text, gettext("Show the rows"), f"/imports/{job_id}?status=failed", asked_at)


router = APIRouter(include_in_schema=False, route_class=GuardedRoute)


@router.get("/today")
def show_today(page: PeoplePage) -> Response:
    """A lead's first page; annotators continue with their reads."""
    if page.principal.blind:
        return redirect_to("/worklist")
    steps = first_steps(page.session) if "manage" in page.principal.scopes else None
    if steps is not None:
        return page.render("first_steps.html", view=steps)
    return page.render("today.html", view=load_today(page))
