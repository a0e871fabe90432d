"""Page languages: chooses the language of a request and translates its sentences."""

import re
from collections.abc import Mapping
from contextvars import ContextVar
from functools import cache
from gettext import GNUTranslations, NullTranslations
from pathlib import Path
from typing import Any

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from starlette.requests import Request

from ml.messages import Message, Number, Share, Term

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
#: The request that is being answered; None for the API, whose answers are in English, and outside a request.
current_request: ContextVar[Request | None] = ContextVar("request", default=None)


def get_catalogue_path(language: str, kind: str = "mo") -> Path:
    """The catalogue of a language: ``po``, which people edit, or ``mo``, which is made of it."""
    return FOLDER / language / "LC_MESSAGES" / f"secondread.{kind}"


@cache
def load_catalogue(language: str) -> NullTranslations:
    """Load the catalogue of a language; the source language has an empty one."""
    if language == SOURCE:
        return NullTranslations()
    with get_catalogue_path(language).open("rb") as file:
        return GNUTranslations(file)


def get_page_language() -> str:
    """Language of the page: the account's, the browser's cookie, or the Accept-Language header."""
    request = current_request.get()
    if request is None:
        return SOURCE
    caller = getattr(request.state, "caller", None)
    for chosen in (getattr(caller, "language", None), request.cookies.get(COOKIE)):
        if chosen in LANGUAGES:
            return str(chosen)
    return _negotiate_language(request.headers.get("accept-language", ""))


def _parse_language_range(part: str) -> tuple[float, str]:
    name, _, quality = part.partition(";q=")
    try:
        return float(quality or 1), name.strip()
    except ValueError:
        return 0.0, ""


def _negotiate_language(header: str) -> str:
    """The language that a browser likes best, of those that there are.

    >>> [_negotiate_language(header) for header in ("fr;q=0.4, ja-JP, de;q=0.9", "tlh", "de;q=0, fr;q=zero")]
    ['ja', 'en', 'en']
    """
    weighted_names = sorted((_parse_language_range(part) for part in header[:500].split(",")), key=lambda one: -one[0])
    codes = [name.partition("-")[0].lower() for quality, name in weighted_names if quality > 0]
    return next((code for code in codes if code in LANGUAGES), SOURCE)


def get_page_catalogue() -> NullTranslations:
    """Catalogue of the page's language."""
    return load_catalogue(get_page_language())


def gettext(message: str, **values: Any) -> str:
    """A sentence in the language of the page; ``%(name)s`` stands for a value, ``%%`` for a per cent sign."""
    return get_page_catalogue().gettext(message) % values


def ngettext(one: str, many: str, n: int, /, **values: Any) -> str:
    """Translate a sentence with a number, ``%(n)s`` unless it is given."""
    return get_page_catalogue().ngettext(one, many, n) % ({"n": n} | values)


def gettext_noop(message: str) -> str:
    """Mark a sentence for the catalogue; it is translated when it is shown."""
    return message


def translate_term(code: str) -> str:
    """Translate a code of the service into words.

    >>> translate_term("cannot_tell")
    'cannot tell'
    """
    words = code.replace("_", " ")
    translation = get_page_catalogue().pgettext(TERM, words)
    return _ENGLISH.get(words, words) if translation == words else translation


def class_name(code: str, names: Mapping[str, str] = {}) -> str:
    """The name of a class in the language of the page, by its code in ``names``; a name itself needs none."""
    return get_page_catalogue().pgettext(TERM, names.get(code, code))


#: Codes that English pages show in other words than the API.
_ENGLISH = {
    "audit": "random sample",
    "leased": "assigned",
    "committed": "submitted",
    "declined": "skipped",
    "readers": "annotator model",
    "judgement": "promotion check",
    "after commit": "after submission",
    "after case closed": "after the cell is closed",
    "know this case": "known cell",
}


def translate_sentence(text: str) -> str:
    """Translate an English sentence of a domain; unchanged without a translation."""
    return translated(text, get_page_catalogue()) if text else text


def translated(text: str, catalogue: NullTranslations) -> str:
    """A sentence of a domain by a catalogue, which has it with ``{name}`` for every value.

    >>> translated(Message("at most {n} cases", n=12), NullTranslations())
    'at most 12 cases'
    >>> translated(Message("{name} read it", name="\N{HEBREW LETTER ALEF}"), NullTranslations())[0] == FIRST_STRONG
    True
    """
    if isinstance(text, Term):
        return catalogue.pgettext(TERM, text)
    if not isinstance(text, Message):
        return catalogue.pgettext(SAID, text)
    translation = catalogue.pgettext(SAID, text.code)
    values = {name: _translate_value(value, catalogue) for name, value in text.values.items()}
    return translation.format_map(values) if values else translation


def _translate_value(value: str, catalogue: NullTranslations) -> str:
    if isinstance(value, Message | Term):
        return translated(value, catalogue)
    if isinstance(value, Share):
        return localize_decimal(f"{float(value):.0%}")
    if isinstance(value, Number):
        return localize_decimal(value)
    # a name that is written from right to left must not turn the sentence around it
    return f"{FIRST_STRONG}{value}{_END}" if _RIGHT_TO_LEFT.search(value) else value


FIRST_STRONG, _END = "\N{FIRST STRONG ISOLATE}", "\N{POP DIRECTIONAL ISOLATE}"
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")


def list_catalogue_entries(spoken: str, context: str) -> dict[str, str]:
    """List the catalogue's entries of one context."""
    catalogued: Mapping[object, str] = getattr(load_catalogue(spoken), "_catalog", {})
    start = f"{context}\x04"
    keys = [key for key in catalogued if isinstance(key, str) and key.startswith(start)]
    return {key.removeprefix(start): catalogued[key] for key in keys}


def script_words() -> Markup | None:
    """Sentences of the pages' scripts as JSON for ``words.js``; None in English."""
    spoken = get_page_language()
    return None if spoken == SOURCE else _script_words(spoken)


@cache
def _script_words(spoken: str) -> Markup:
    return htmlsafe_json_dumps(list_catalogue_entries(spoken, SCRIPT))


def localize_decimal(value: object) -> str:
    """Write a number with the signs of the page's language.

    >>> localize_decimal("1,234.5")
    '1,234.5'
    """
    return _PERCENT.sub(" %", str(value).translate(_SIGNS)) if get_page_language() == "de" else str(value)


_SIGNS = str.maketrans(",.", ".,")
_PERCENT = re.compile(r"(?<=\d)%")
