"""Reads label files of every format, and detects the format."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePath
from typing import BinaryIO, get_args

from ml.label_files.cvat import read_cvat
from ml.label_files.json_exports import read_coco, read_label_studio
from ml.label_files.rows import UNNAMED, Format, LabelFileError, LabelRow, Rows
from ml.label_files.tables import find_kind_of_table, read_labels, read_wide

#: Bytes by which a format is detected.
START = 65536
_READERS: dict[Format, Callable[[BinaryIO], Rows]] = {
    "labels": read_labels,
    "label-studio": read_label_studio,
    "cvat": read_cvat,
    "coco": read_coco,
    "wide": read_wide,
}


def detect_format(name: str, start: bytes) -> Format | None:
    """Detect the format of a label file.

    Args:
        name: file name.
        start: the first bytes, ``START`` of them if there are so many.

    Returns:
        The format, or None if the file is of none.

    >>> detect_format("labels.csv", b"image,annotator,label")
    'labels'
    """
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] == b"<":
        return "cvat" if b"<annotations" in text else None
    if text[:1] == b"[":
        return "label-studio"
    if text[:1] == b"{":
        return "coco" if any(key in text for key in (b'"images"', b'"annotations"', b'"categories"')) else None
    return find_kind_of_table(text) if not name or name.lower().endswith((".csv", ".txt")) else None


def read_label_file(source: BinaryIO | Path, format: Format | None = None) -> Rows:
    """Read the labels of a file, in its order.

    Args:
        source: the file, or a seekable stream at its beginning, whose name is in the places if it has one.
        format: format of the file; detected if omitted.

    Yields:
        Labels, and rows that state none with the reason. A label of another kind than a class of a whole image, such
        as a box, is a bad row too.

    Raises:
        LabelFileError: no such file, or none of this format.
    """
    if isinstance(source, Path):
        try:
            with source.open("rb") as stream:
                yield from _read(stream, source.name, format)
        except (LabelFileError, OSError) as exc:
            raise LabelFileError(f"{source}: {getattr(exc, 'strerror', None) or exc}") from exc
        return
    name = PurePath(str(getattr(source, "name", ""))).name
    try:
        for row in _read(source, name, format):
            yield replace(row, place=f"{name} {row.place}".lstrip())
    except LabelFileError as exc:
        raise LabelFileError(f"{name or 'labels'}: {exc}") from exc


def _read(stream: BinaryIO, name: str, form: Format | None) -> Rows:
    if form is None:
        form = detect_format(name, stream.read(START))
        stream.seek(0)
    if form is None:
        formats = ", ".join(get_args(Format))
        raise LabelFileError(f"the format of the labels cannot be detected: name one of {formats}")
    yield from _READERS[form](stream)


def read_class_folders(folder: Path) -> Rows:
    """Read the labels of images that are sorted into one folder per class.

    Raises:
        LabelFileError: no such folder.
    """
    if not folder.is_dir():
        raise LabelFileError(f"{folder}: no such folder")
    for path in sorted(folder.glob("*/*")):
        if path.is_file() and not path.name.startswith("."):
            image = path.relative_to(folder).as_posix()
            yield LabelRow(image, UNNAMED, path.parent.name, None, False, image)
