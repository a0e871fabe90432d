"""Template filters, translated codes and CSV files."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from fastapi import Response

from app.http import formats
from app.http.languages import get_page_language, gettext, localize_decimal, translate_sentence, translate_term
from ml.util import number_format
from ml.util.number_format import NOTHING, HasInterval, HasNewInterval


def probability(value: float | None, digits: int = 3) -> str:
    """A probability or a metric."""
    return localize_decimal(number_format.probability(value, digits))


def change(value: float | None, digits: int = 3) -> str:
    """A difference, with its sign."""
    return localize_decimal(number_format.change(value, digits))


def count(value: int | None) -> str:
    """A whole number."""
    return localize_decimal(number_format.count(value))


def share(value: float | None) -> str:
    """A setting in per cent, with the decimals that it has."""
    return NOTHING if value is None else localize_decimal(f"{100 * value:.3g}%")


def _format_range(low: float | None, high: float | None, digits: int) -> str:
    return gettext("%(low)s to %(high)s", low=probability(low, digits), high=probability(high, digits))


def interval(estimate: HasInterval | None, digits: int = 4) -> str:
    """The 95% interval of an estimate."""
    return NOTHING if estimate is None or estimate.low is None else _format_range(estimate.low, estimate.high, digits)


def new_interval(estimate: HasNewInterval | None, digits: int = 4) -> str:
    """The 95% interval of an estimate for new annotators."""
    if estimate is None or estimate.low_new is None:
        return NOTHING
    return _format_range(estimate.low_new, estimate.high_new, digits)


def sentence(text: str) -> str:
    """Complete a sentence with a capital letter and the full stop of the language."""
    return formats.complete_sentence(text, "。" if get_page_language() == "ja" else ".")


#: By their names in templates.
FILTERS: dict[str, Callable[..., str]] = {
    "probability": probability,
    "change": change,
    "count": count,
    "share": share,
    "interval": interval,
    "new_interval": new_interval,
    "decimal": localize_decimal,
    "said": translate_sentence,
    "sentence": sentence,
    "term": translate_term,
}


TERMS = (
    # roles
    *("admin", "annotator", "viewer", "service", "lab viewer"),
    # partitions
    *("evaluation", "calibration", "all"),
    # states of reads, requests and jobs
    *(
        "open",
        "leased",
        "committed",
        "declined",
        "closed",
        "answered",
        "cancelled",
        "queued",
        "running",
        "succeeded",
        "failed",
    ),
    # reasons to plan a read
    *("first", "triage", "audit", "adjudication", "further"),
    # why a read is declined
    *("cannot tell", "image quality", "not my field", "know this case", "other"),
    # rules of the policy, and when predictions are shown
    *("disagreement", "expected gain", "capacity", "graded", "specimen value"),
    *("after commit", "after case closed", "never"),
    *("single read", "second read", "temperature", "vector", "matrix"),
    # jobs
    *("check", "evaluation", "import", "judgement", "prediction", "readers", "recalibration", "report"),
    # changes of images that a release was tried on, and how strong
    *("unshifted", "half magnification", "double magnification", "off centre", "defocus", "hue"),
    *("stain density", "brightness", "compression", "noise", "none", "mild", "standard"),
    # results of imported rows
    *("created", "known", "differs", "ignored"),
    # kinds and strengths of image shifts
    *("unshifted", "half magnification", "double magnification", "off centre", "defocus", "hue"),
    *("stain density", "brightness", "compression", "noise", "none", "mild", "standard"),
    # decisions at a threshold, states of specimens, what signatures stand for and what intervals leave out
    *("above", "below", "decided", "signed", "reviewed", "approved"),
    *("annotator variance unknown", "cells independent within the specimen", "label is the truth of a cell"),
    # purposes of sets, names of releases, ways to fit
    *("training", "qualification", "champion", "challenger"),
)


#: What makes a spreadsheet take a text for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_file(name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Response:
    """Rows as a file to download."""
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(header)
    writer.writerows([_format_csv_cell(value) for value in row] for row in rows)
    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return Response(stream.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


def _format_csv_cell(value: object) -> object:
    """Format a value for a CSV cell.

    >>> _format_csv_cell("=1+1"), _format_csv_cell(-1), _format_csv_cell(None)
    ("'=1+1", -1, '')
    """
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat()
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
