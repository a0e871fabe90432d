"""Numbers and codes on pages, in the language of the page: the filters of ``app/http/formats.py`` over again."""

from collections.abc import Callable

from app.http import formats
from app.http.languages import decimal, gettext, language, said, term
from ml import shown_numbers
from ml.shown_numbers import NOTHING, HasInterval, HasNewInterval


def probability(value: float | None, digits: int = 3) -> str:
    """A probability or a metric."""
    return decimal(shown_numbers.probability(value, digits))


def change(value: float | None, digits: int = 3) -> str:
    """A difference, with its sign."""
    return decimal(shown_numbers.change(value, digits))


def count(value: int | None) -> str:
    """A whole number."""
    return decimal(shown_numbers.count(value))


def share(value: float | None) -> str:
    """A share in per cent."""
    return decimal(shown_numbers.share(value))


def _between(low: float | None, high: float | None, digits: int) -> str:
    return gettext("%(low)s to %(high)s", low=probability(low, digits), high=probability(high, digits))


def interval(estimate: HasInterval | None, digits: int = 4) -> str:
    """The 95 % interval of an estimate."""
    return NOTHING if estimate is None or estimate.low is None else _between(estimate.low, estimate.high, digits)


def new_interval(estimate: HasNewInterval | None, digits: int = 4) -> str:
    """The 95 % interval of an estimate for new annotators."""
    if estimate is None or estimate.low_new is None:
        return NOTHING
    return _between(estimate.low_new, estimate.high_new, digits)


def sentence(text: str) -> str:
    """The end of a sentence as a whole one, with the full stop of the language."""
    return formats.sentence(text, "。" if language() == "ja" else ".")


#: By their names in templates.
FILTERS: dict[str, Callable[..., str]] = {
    "probability": probability,
    "change": change,
    "count": count,
    "share": share,
    "interval": interval,
    "new_interval": new_interval,
    "decimal": decimal,
    "said": said,
    "sentence": sentence,
    "term": term,
}
