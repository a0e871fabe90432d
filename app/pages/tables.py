"""Tables of pages as CSV files."""

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import datetime

from fastapi import Response

#: What makes a spreadsheet take a text for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_file(name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Response:
    """Rows as a file to download.

    Args:
        name: of the file, without its ending.
        header: names of the columns.
        rows: of numbers, times, texts or None; texts that a spreadsheet would compute begin with an apostrophe.
    """
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(header)
    writer.writerows([_cell(value) for value in row] for row in rows)
    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return Response(stream.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


def _cell(value: object) -> object:
    """A value as it stands in a file.

    >>> _cell("=1+1"), _cell(-1), _cell(None)
    ("'=1+1", -1, '')
    """
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat()
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
