"""Label files in CSV: one row per label, or one column per annotator."""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from io import TextIOWrapper
from typing import BinaryIO, Literal

from ml.label_files.rows import UNNAMED, BadRow, LabelFileError, LabelRow, Rows, read_time
from ml.messages import Message

#: Columns that name the image of a label and its time, the preferred one first.
_IMAGE = ("image", "case_id", "file", "external_id")
_TIME = ("at", "time")
_BLINDED = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False, "": False}
#: Columns of other tables, and of those with a row per label: no annotator is named after them.
_OTHERS = re.compile(
    r"(prob|count):|(case_id|image|file|external_id|patient|site|specimen|partition|annotator|label|at|time|blinded)$"
)
#: Class numbers as pandas writes a column of them with gaps.
_WHOLE = re.compile(r"(-?\d+)\.0")


def find_kind_of_table(start: bytes) -> Literal["labels", "wide"] | None:
    """Tell a table of labels from one with a column per annotator, by its first line."""
    cells = next(csv.reader([start.splitlines()[0].decode("utf-8", errors="replace")]), []) if start else []
    header = [cell.strip().casefold() for cell in cells]
    if "label" in header:
        return "labels" if set(_IMAGE) & set(header) else None
    return None if len(header) < 3 or any(map(_OTHERS.match, header[1:])) else "wide"


def read_labels(stream: BinaryIO) -> Rows:
    """Read a table with one row per label."""
    for place, row in _read_rows(stream, ("label",)):
        yield row if isinstance(row, BadRow) else _read_label(place, row)


def _read_label(place: str, row: Mapping[str, str]) -> LabelRow | BadRow:
    image, label = (row[next(key for key in _IMAGE if key in row)], row["label"])
    if not image or not label:
        return BadRow(place, Message("the image is not named") if not image else Message("the label is empty"))
    at = next((row[key] for key in _TIME if row.get(key)), None)
    blinded = row.get("blinded", "").lower()
    if blinded not in _BLINDED:
        return BadRow(place, Message("{text} in column blinded is neither yes nor no", text=repr(row["blinded"])))
    try:
        time = None if at is None else read_time(at)
    except ValueError as exc:
        return BadRow(place, exc.args[0])
    image = image.replace("\\", "/")
    return LabelRow(image, row.get("annotator") or UNNAMED, label, time, _BLINDED[blinded], place)


def read_wide(stream: BinaryIO) -> Rows:
    """Read a table with one row per image and one column per annotator."""
    for place, row in _read_rows(stream, ()):
        if isinstance(row, BadRow):
            yield row
            continue
        (_, image), *labels = row.items()
        if not image:
            yield BadRow(place, Message("the image is not named"))
            continue
        for annotator, label in labels:
            if label:
                label = _WHOLE.sub(r"\1", label) if _WHOLE.fullmatch(label) else label
                yield LabelRow(image.replace("\\", "/"), annotator or UNNAMED, label, None, False, place)


def _read_rows(stream: BinaryIO, required: tuple[str, ...]) -> Iterator[tuple[str, Mapping[str, str] | BadRow]]:
    """Place and cells by column of each row that is not empty."""
    text = TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    try:
        rows = csv.reader(text, strict=True)
        header = [cell.strip() for cell in next(rows, [])]
        if required:  # else columns are named after annotators
            header = [name.casefold() for name in header]
        _check_header(header, required)
        for number, cells in enumerate(rows, start=2):
            place = f"row {number}"
            if len(cells) == len(header):
                yield place, dict(zip(header, map(str.strip, cells), strict=True))
            elif cells:
                n, total = len(cells), len(header)
                yield place, BadRow(place, Message("{n} cells, and the header has {total}", n=n, total=total))
    except (UnicodeDecodeError, csv.Error) as exc:
        raise LabelFileError(
            f"after row {rows.line_num}: {exc}: save the file as 'CSV UTF-8 (comma delimited)'"
        ) from exc
    finally:
        text.detach()


def _check_header(header: list[str], required: tuple[str, ...]) -> None:
    if len(header) < 2:
        raise LabelFileError("row 1: at least two columns, separated by commas, are needed")
    ((name, n),) = Counter(header).most_common(1)
    if n > 1:
        raise LabelFileError(f"row 1: there are several columns {name[:80]!r}")
    names = ", ".join(header)[:200]
    if not set(required) <= set(header) or (required and not set(_IMAGE) & set(header)):
        raise LabelFileError(f"row 1: columns label and image (or case_id, file, external_id) are needed, not {names}")
