"""Numbers, dates and names, written the same on every page and in every report."""

from datetime import UTC, datetime
from typing import Protocol

from markupsafe import Markup

from app.platform.values import ClassOut

#: What replaces a number that is not known.
NOTHING = "–"
MINUS = "\N{MINUS SIGN}"


def probability(value: float | None, digits: int = 3) -> str:
    """A probability or a metric.

    >>> probability(0.25), probability(-0.00004, 4), probability(-0.5, 1), probability(None)
    ('0.250', '0.0000', '−0.5', '–')
    """
    return NOTHING if value is None else f"{value:z.{digits}f}".replace("-", MINUS)


def change(value: float | None, digits: int = 3) -> str:
    """A difference, with its sign.

    >>> change(0.25), change(-0.5, 1), change(0.0, 1), change(None)
    ('+0.250', '−0.5', '0.0', '–')
    """
    text = probability(value, digits)
    return f"+{text}" if value is not None and float(f"{value:.{digits}f}") > 0 else text


class HasInterval(Protocol):
    """Something with a 95 % interval."""

    low: float | None
    high: float | None


def interval(estimate: HasInterval | None, digits: int = 4) -> str:
    """The 95 % interval of an estimate.

    >>> from types import SimpleNamespace
    >>> interval(SimpleNamespace(low=0.1, high=0.2), 1), interval(SimpleNamespace(low=None, high=None))
    ('0.1 to 0.2', '–')
    """
    if estimate is None or estimate.low is None:
        return NOTHING
    return f"{probability(estimate.low, digits)} to {probability(estimate.high, digits)}"


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


#: Filters for templates, by their names.
FILTERS = {
    function.__name__: function for function in (probability, change, interval, count, share, moment, words, by_group)
}
