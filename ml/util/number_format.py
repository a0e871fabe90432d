"""Number formats shared by pages and reports."""

from math import isfinite
from typing import Protocol

#: What replaces a number that is not known.
NOTHING = "–"
MINUS = "\N{MINUS SIGN}"


def finite(value: float | None) -> float | None:
    """None where a value is not a number.

    >>> finite(float("nan")), finite(0.5)
    (None, 0.5)
    """
    return None if value is None or not isfinite(value) else value


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

    @property
    def low(self) -> float | None:
        """Lower end."""

    @property
    def high(self) -> float | None:
        """Upper end."""


def interval(estimate: HasInterval | None, digits: int = 4) -> str:
    """The 95 % interval of an estimate.

    >>> from types import SimpleNamespace
    >>> interval(SimpleNamespace(low=0.1, high=0.2), 1), interval(SimpleNamespace(low=None, high=None))
    ('0.1 to 0.2', '–')
    """
    if estimate is None or estimate.low is None:
        return NOTHING
    return f"{probability(estimate.low, digits)} to {probability(estimate.high, digits)}"


class HasNewInterval(Protocol):
    """Something with an interval for new annotators."""

    @property
    def low_new(self) -> float | None:
        """Lower end."""

    @property
    def high_new(self) -> float | None:
        """Upper end."""


def new_interval(estimate: HasNewInterval | None, digits: int = 4) -> str:
    """The 95 % interval of an estimate for new annotators.

    >>> from types import SimpleNamespace
    >>> new_interval(SimpleNamespace(low_new=0.1, high_new=0.2), 1)
    '0.1 to 0.2'
    """
    if estimate is None or estimate.low_new is None:
        return NOTHING
    return f"{probability(estimate.low_new, digits)} to {probability(estimate.high_new, digits)}"


def count(value: int | None) -> str:
    """A whole number.

    >>> count(12345)
    '12,345'
    """
    return NOTHING if value is None else f"{value:,}"


def share(value: float | None) -> str:
    """A share in per cent.

    >>> share(0.125)
    '12.5%'
    """
    return NOTHING if value is None else f"{value:z.1%}".replace("-", MINUS)
