"""Numbers, dates and days as people read them, and the template environment."""

from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from app.http.languages import class_name
from app.http.models import ClassOut
from ml.util.number_format import NOTHING, change, count, interval, new_interval, probability


def format_time(value: datetime | None) -> str:
    """Format a time with its zone, as an HTML element.

    >>> str(format_time(datetime(2026, 1, 2, 3, 4, tzinfo=UTC)))
    '<time datetime="2026-01-02T03:04:00+00:00">2026-01-02 03:04 UTC</time>'
    """
    if value is None:
        return NOTHING
    utc = value.astimezone(UTC)
    return Markup('<time datetime="{}">{}</time>').format(utc.isoformat(), utc.strftime("%Y-%m-%d %H:%M UTC"))


def isolate_name(name: object) -> str:
    """Put a name from outside into an element of its own, so that its direction turns nothing else.

    >>> str(isolate_name("a<b"))
    '<bdi>a&lt;b</bdi>'
    """
    return Markup("<bdi>{}</bdi>").format(name)


def humanize_code(value: str) -> str:
    """Write a code in words.

    >>> humanize_code("cannot_tell")
    'cannot tell'
    """
    return value.replace("_", " ")


def upper_first(text: str) -> str:
    """A sentence with its first letter in upper case.

    >>> upper_first("say why"), upper_first("")
    ('Say why', '')
    """
    return text[:1].upper() + text[1:]


def complete_sentence(text: str, stop: str = ".") -> str:
    """Complete the end of a sentence with a capital letter and a full stop.

    >>> complete_sentence("say why")
    'Say why.'
    """
    return f"{upper_first(text)}{stop}"


def keep_untranslated(text: str) -> str:
    """Return text that is already in the reader's language."""
    return str(text)


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


#: Filters for templates, by their names.
FILTERS = {
    "probability": probability,
    "change": change,
    "interval": interval,
    "new_interval": new_interval,
    "count": count,
    "moment": format_time,
    "class_name": class_name,
    "isolated": isolate_name,
    "upper_first": upper_first,
    "sentence": complete_sentence,
    "by_group": by_group,
    "said": keep_untranslated,
    "decimal": keep_untranslated,
    "term": humanize_code,
}


def templates_in(*folders: Path) -> Environment:
    """The templates of some folders, with the filters above."""
    # A name that is not there is an error: a blank would pass for a field that is empty.
    environment = Environment(
        loader=FileSystemLoader(folders),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        extensions=["jinja2.ext.i18n"],
    )
    environment.install_null_translations(newstyle=True)  # type: ignore[attr-defined]
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.filters.update(FILTERS)
    return environment
