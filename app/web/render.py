"""Rendering of pages: templates, static assets and security headers."""

import hashlib
import os
from datetime import datetime
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

from fastapi import Response
from fastapi.responses import RedirectResponse
from fastapi.staticfiles import StaticFiles
from fastapi.templating import Jinja2Templates
from starlette.requests import Request
from starlette.types import Scope

from app.accounts.service import SEEN_EVERY, SESSION_IDLE, caller_of
from app.http import languages
from app.http.errors import Problem, Unauthenticated
from app.http.formats import templates_in
from app.http.principal import Principal
from app.reports.service import FILTERS, STYLE, TEMPLATES
from app.web import filters
from app.web.forms import TypedForm, account_handle
from app.web.navigation import navigation_for

FOLDER = Path(__file__).parent / "static"
#: What reports that open offline have inside.
_OF_REPORTS = STYLE.parent


@cache
def _digest_static_files() -> str:
    """Digest of all static files together, since scripts name each other by relative paths."""
    digest = hashlib.sha256()
    files = [file for folder in (FOLDER, _OF_REPORTS) for file in folder.rglob("*") if file.is_file()]
    for file in sorted(files):
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:12]


@cache
def asset_url(name: str) -> str:
    """URL of a static file, with the digest of all of them."""
    return f"/static/{_digest_static_files()}/{name}"


class StaticAssets(StaticFiles):
    """Static files: kept for a year under an address with a digest, revalidated without one."""

    def __init__(self) -> None:
        super().__init__(directory=FOLDER)
        self.all_directories.append(_OF_REPORTS)

    def get_path(self, scope: Scope) -> str:
        """Path in the folder: what follows a digest, of these files or of those before them, in the address."""
        version, _, name = super().get_path(scope).partition(os.sep)
        return name or version

    def file_response(
        self, full_path: PathLike[str] | str, stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """The file, with how long it may be kept."""
        response = super().file_response(full_path, stat_result, scope, status_code)
        kept = super().get_path(scope).startswith(_digest_static_files() + os.sep)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if kept else "no-cache"
        return response


SEE_OTHER = 303
_FAILED = 500

#: Of pages, with those of reports.
ENVIRONMENT = templates_in(Path(__file__).parent / "templates", TEMPLATES)
ENVIRONMENT.globals |= {
    "asset": asset_url,
    "language": languages.get_page_language,
    "script_words": languages.script_words,
}
ENVIRONMENT.filters |= FILTERS | filters.FILTERS
ENVIRONMENT.install_gettext_callables(  # type: ignore[attr-defined]
    lambda text: languages.get_page_catalogue().gettext(text),
    lambda one, many, n: languages.get_page_catalogue().ngettext(one, many, n),
    newstyle=True,
    pgettext=lambda context, text: languages.get_page_catalogue().pgettext(context, text),
    npgettext=lambda context, one, many, n: languages.get_page_catalogue().npgettext(context, one, many, n),
)
_templates = Jinja2Templates(env=ENVIRONMENT)


def render_page(request: Request, name: str, principal: Principal | None, status: int = 200, **values: Any) -> Response:
    """Render a template as a page."""
    values |= {"principal": principal, "path": request.url.path}
    values["refused"] = getattr(request.state, "refused", TypedForm())
    if principal is not None:
        values["navigation"] = navigation_for(principal, request.url.path, request.url.query)
        values["account"] = account_handle(request.app.state.context.keys.readers, principal.account_id)
        values |= _session_times(principal, request.app.state.context.clock())
    return _templates.TemplateResponse(request, name, values, status)


def _session_times(principal: Principal, at: datetime) -> dict[str, int | None]:
    if principal.session_ends is None:
        return {"session_idle": None, "session_rest": None}
    idle, rest = SESSION_IDLE - SEEN_EVERY, principal.session_ends - at - SEEN_EVERY
    return {"session_idle": int(idle.total_seconds()), "session_rest": int(rest.total_seconds())}


def redirect_to(path: str) -> Response:
    """Redirect the browser after a form (303)."""
    return RedirectResponse(path, SEE_OTHER)


def problem_page(request: Request, problem: Problem) -> Response | None:
    """A problem as a page, where a person's browser asked for one outside the API."""
    path = request.url.path
    if path.startswith("/v1"):
        return None
    if "text/html" not in request.headers.get("accept", ""):
        problem.detail = languages.translate_sentence(problem.detail)  # which the page's script shows
        return None
    if isinstance(problem, Unauthenticated) and path != "/login":
        return redirect_to("/login")
    return render_page(request, "problem.html", _find_caller(request, problem), problem.status, problem=problem)


def _find_caller(request: Request, problem: Problem) -> Principal | None:
    """Find the caller for the page's navigation; no look-up after a server error."""
    if hasattr(request.state, "caller") or problem.status >= _FAILED:
        earlier_caller: Principal | None = getattr(request.state, "caller", None)
        return earlier_caller
    try:
        return caller_of(request)
    except Problem:
        return None
