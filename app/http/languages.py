"""The languages of the pages: which one a request is answered in, and what is said in it.

English is the source. Catalogues are gettext's, each read once; ``docs/how-to.md`` says how to change them.
The API, the command line and what is stored speak English.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from functools import cache
from gettext import GNUTranslations, NullTranslations
from pathlib import Path
from typing import Any

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from ml.messages import Message, Term

SOURCE = "en"
#: By their codes, each by the name that it has for itself.
LANGUAGES: Mapping[str, str] = {SOURCE: "English", "de": "Deutsch", "ja": "日本語"}
FOLDER = Path(__file__).parents[1] / "web" / "locales"
#: Of sentences that the domains make in English for every caller: pages look them up as they are shown.
SAID = "said"
#: Of codes in words, and of what the scripts say.
TERM, SCRIPT = "term", "script"
#: What a browser was told on the sign-in page.
COOKIE = "sr_language"
_API = "/v1/"
_asked: ContextVar[Request | None] = ContextVar("asked", default=None)


def file_of(language: str, kind: str = "mo") -> Path:
    """The catalogue of a language: ``po``, which people edit, or ``mo``, which is made of it."""
    return FOLDER / language / "LC_MESSAGES" / f"secondread.{kind}"


@cache
def catalogue(language: str) -> NullTranslations:
    """What there is in a language; of the source nothing, so that everything stays as it is written."""
    if language == SOURCE:
        return NullTranslations()
    with file_of(language).open("rb") as file:
        return GNUTranslations(file)


class Languages:
    """ASGI middleware that remembers which request is being answered, so that every sentence finds its language.

    Args:
        app: the application inside.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection. What it remembers outlasts the application: a page about a defect is made outside."""
        if scope["type"] == "http":
            scope.setdefault("state", {})  # which the application shares
            _asked.set(None if scope["path"].startswith(_API) else Request(scope))
        await self.app(scope, receive, send)


def language() -> str:
    """Of the page that is being made: its account's, else what its browser was told here, else what it asks for."""
    request = _asked.get()
    if request is None:
        return SOURCE
    caller = getattr(request.state, "caller", None)
    for chosen in (getattr(caller, "language", None), request.cookies.get(COOKIE)):
        if chosen in LANGUAGES:
            return str(chosen)
    return _preferred(request.headers.get("accept-language", ""))


def _wanted(part: str) -> tuple[float, str]:
    name, _, quality = part.partition(";q=")
    try:
        return float(quality or 1), name.strip()
    except ValueError:
        return 0.0, ""


def _preferred(header: str) -> str:
    """The language that a browser likes best, of those that there are.

    >>> _preferred("fr;q=0.4, ja-JP, de;q=0.9"), _preferred("tlh"), _preferred("de;q=0, fr;q=zero")
    ('ja', 'en', 'en')
    """
    wanted = sorted((_wanted(part) for part in header[:500].split(",")), key=lambda one: -one[0])
    codes = [name.partition("-")[0].lower() for quality, name in wanted if quality > 0]
    return next((code for code in codes if code in LANGUAGES), SOURCE)


def known() -> NullTranslations:
    """What there is in the language of the page."""
    return catalogue(language())


def gettext(message: str, **values: Any) -> str:
    """A sentence in the language of the page; ``%(name)s`` stands for a value, ``%%`` for a per cent sign."""
    return known().gettext(message) % values


def ngettext(one: str, many: str, n: int, **values: Any) -> str:
    """The same of a number, which is ``%(n)s`` unless it is given."""
    return known().ngettext(one, many, n) % ({"n": n} | values)


def noted(message: str) -> str:
    """A sentence that is looked up when it is shown; here it is only marked for the catalogue."""
    return message


def term(code: str) -> str:
    """A code of the service in words.

    >>> term("cannot_tell")
    'cannot tell'
    """
    return known().pgettext(TERM, code.replace("_", " "))


def said(text: str) -> str:
    """A sentence that a domain has made in English, in the language of the page, or as it is without a translation."""
    return translated(text, known()) if text else text


def translated(text: str, catalogue: NullTranslations) -> str:
    """A sentence of a domain by a catalogue, which has it with ``{name}`` for every value.

    >>> translated(Message("at most {n} cases", n=12), NullTranslations())
    'at most 12 cases'
    """
    if isinstance(text, Term):
        return catalogue.pgettext(TERM, text)
    if not isinstance(text, Message):
        return catalogue.pgettext(SAID, text)
    found = catalogue.pgettext(SAID, text.code)
    values = {
        name: translated(value, catalogue) if isinstance(value, Message | Term) else value
        for name, value in text.values.items()
    }
    return found.format_map(values) if values else found


def entries(spoken: str, context: str) -> dict[str, str]:
    """What a catalogue has for one kind of text."""
    catalogued: Mapping[object, str] = getattr(catalogue(spoken), "_catalog", {})
    start = f"{context}\x04"
    keys = [key for key in catalogued if isinstance(key, str) and key.startswith(start)]
    return {key.removeprefix(start): catalogued[key] for key in keys}


def script_words() -> Markup | None:
    """What the pages' scripts say, as JSON for ``words.js``; None in English, which the scripts contain."""
    spoken = language()
    return None if spoken == SOURCE else _script_words(spoken)


@cache
def _script_words(spoken: str) -> Markup:
    return htmlsafe_json_dumps(entries(spoken, SCRIPT))


def decimal(value: object) -> str:
    """A number that is written with a point, with the decimal sign of the language; commas of thousands change places.

    >>> decimal("1,234.5")
    '1,234.5'
    """
    return str(value).translate(_SIGNS) if language() == "de" else str(value)


_SIGNS = str.maketrans(",.", ".,")
