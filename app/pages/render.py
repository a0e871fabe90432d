"""Rendering pages: one environment, numbers and dates written the same everywhere."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from fastapi.templating import Jinja2Templates
from markupsafe import Markup

from app.auth.principal import Principal
from app.errors import Problem, Unauthenticated
from app.schemas import ClassOut

SEE_OTHER = 303
#: What replaces a number that is not known.
NOTHING = "–"


def probability(value: float | None, digits: int = 3) -> str:
    """A probability or a metric.

    >>> probability(0.25), probability(None)
    ('0.250', '–')
    """
    return NOTHING if value is None else f"{value:.{digits}f}"


def interval(estimate: dict[str, Any] | None, digits: int = 4) -> str:
    """The 95 % interval of an estimate.

    >>> interval({"low": 0.1, "high": 0.2}, 1), interval({"low": None, "high": None})
    ('0.1 to 0.2', '–')
    """
    if estimate is None or estimate["low"] is None:
        return NOTHING
    return f"{estimate['low']:.{digits}f} to {estimate['high']:.{digits}f}"


def count(value: int | None) -> str:
    """A whole number.

    >>> count(12345)
    '12,345'
    """
    return NOTHING if value is None else f"{value:,}"


def share(value: float | None) -> str:
    """A share in per cent.

    >>> share(0.125)
    '12.5 %'
    """
    return NOTHING if value is None else f"{100 * value:.1f} %"


def moment(value: datetime | None) -> str:
    """A time, with its zone.

    >>> str(moment(datetime(2026, 1, 2, 3, 4, tzinfo=UTC)))
    '<time datetime="2026-01-02T03:04:00+00:00">2026-01-02 03:04 UTC</time>'
    """
    if value is None:
        return NOTHING
    utc = value.astimezone(UTC)
    return Markup('<time datetime="{}">{}</time>').format(utc.isoformat(), utc.strftime("%Y-%m-%d %H:%M UTC"))


def words(value: str) -> str:
    """A code in words.

    >>> words("cannot_tell")
    'cannot tell'
    """
    return value.replace("_", " ")


def by_group(classes: list[ClassOut]) -> list[tuple[str, list[ClassOut]]]:
    """Classes under their headings, in order of first appearance; those without one come last.

    >>> pairs = (("a", ""), ("b", "B"), ("c", ""))
    >>> one, two, three = (ClassOut(code=code, name=code, shortcut="", group=group) for code, group in pairs)
    >>> [(heading, [info.code for info in inside]) for heading, inside in by_group([one, two, three])]
    [('B', ['b']), ('', ['a', 'c'])]
    """
    groups: dict[str, list[ClassOut]] = {}
    for info in sorted(classes, key=lambda info: not info.group):
        groups.setdefault(info.group, []).append(info)
    return list(groups.items())


_templates = Jinja2Templates(Path(__file__).parent / "templates")
_templates.env.trim_blocks = _templates.env.lstrip_blocks = True
_FILTERS = (probability, interval, count, share, moment, words, by_group)
_templates.env.filters.update({function.__name__: function for function in _FILTERS})


def page(request: Request, name: str, principal: Principal | None, status: int = 200, **values: Any) -> Response:
    """A page from its template."""
    values |= {"principal": principal, "path": request.url.path}
    return _templates.TemplateResponse(request, name, values, status)


def go(path: str) -> Response:
    """Send the browser on after a form."""
    return RedirectResponse(path, SEE_OTHER)


def problem_page(request: Request, problem: Problem) -> Response | None:
    """A problem as a page, where a person's browser asked for one outside the API."""
    path = request.url.path
    if path.startswith("/v1") or "text/html" not in request.headers.get("accept", ""):
        return None
    if isinstance(problem, Unauthenticated) and path != "/login":
        return go("/login")
    return page(request, "problem.html", None, problem.status, problem=problem)
