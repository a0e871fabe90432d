"""Rendering pages: one environment, with the sections that pages share with reports that open offline."""

from datetime import datetime
from pathlib import Path
from typing import Any

from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from fastapi.templating import Jinja2Templates

from app.accounts.people import SEEN_EVERY, SESSION_IDLE
from app.accounts.permissions import caller_of
from app.http import languages
from app.http.errors import Problem, Unauthenticated
from app.http.formats import templates_in
from app.http.principal import Principal
from app.pages import shown
from app.pages.assets import asset
from app.pages.handles import account_handle
from app.reports.report import FILTERS, TEMPLATES

SEE_OTHER = 303
_FAILED = 500

#: Of pages, with those of reports.
ENVIRONMENT = templates_in(Path(__file__).parent / "templates", TEMPLATES)
ENVIRONMENT.globals |= {"asset": asset, "language": languages.language, "script_words": languages.script_words}
ENVIRONMENT.filters |= FILTERS | shown.FILTERS
ENVIRONMENT.install_gettext_callables(  # type: ignore[attr-defined]
    lambda text: languages.known().gettext(text),
    lambda one, many, n: languages.known().ngettext(one, many, n),
    newstyle=True,
    pgettext=lambda context, text: languages.known().pgettext(context, text),
    npgettext=lambda context, one, many, n: languages.known().npgettext(context, one, many, n),
)
_templates = Jinja2Templates(env=ENVIRONMENT)


def page(request: Request, name: str, principal: Principal | None, status: int = 200, **values: Any) -> Response:
    """A page from its template."""
    values |= {"principal": principal, "path": request.url.path}
    if principal is not None:
        values["account"] = account_handle(request.app.state.context.keys.readers, principal.account_id)
        values |= _session_times(principal, request.app.state.context.clock())
    return _templates.TemplateResponse(request, name, values, status)


def _session_times(principal: Principal, at: datetime) -> dict[str, int | None]:
    """Seconds for which the session lasts at least, without a request and at the longest; None for a key."""
    if principal.session_ends is None:
        return {"session_idle": None, "session_rest": None}
    idle, rest = SESSION_IDLE - SEEN_EVERY, principal.session_ends - at - SEEN_EVERY
    return {"session_idle": int(idle.total_seconds()), "session_rest": int(rest.total_seconds())}


def go(path: str) -> Response:
    """Send the browser on after a form."""
    return RedirectResponse(path, SEE_OTHER)


def problem_page(request: Request, problem: Problem) -> Response | None:
    """A problem as a page, where a person's browser asked for one outside the API."""
    path = request.url.path
    if path.startswith("/v1"):
        return None
    if "text/html" not in request.headers.get("accept", ""):
        problem.detail = languages.said(problem.detail)  # which the page's script shows
        return None
    if isinstance(problem, Unauthenticated) and path != "/login":
        return go("/login")
    return page(request, "problem.html", _caller(request, problem), problem.status, problem=problem)


def _caller(request: Request, problem: Problem) -> Principal | None:
    """Who asked, so that the page keeps its navigation; where something failed, nobody is looked up any more."""
    if hasattr(request.state, "caller") or problem.status >= _FAILED:
        known: Principal | None = getattr(request.state, "caller", None)
        return known
    try:
        return caller_of(request)
    except Problem:
        return None
