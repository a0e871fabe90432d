"""Reads label files of every format, and detects the format."""

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, get_args

from ml.label_files.rows import UNNAMED, Format, LabelFileError, LabelRow, Rows
from ml.label_files.tables import find_kind_of_table, read_labels, read_wide

#: Bytes by which a format is detected.
START = 65536
_READERS: dict[Format, Callable[[BinaryIO, str], Rows]] = {"labels": read_labels, "wide": read_wide}


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
    return find_kind_of_table(text) if name.lower().endswith((".csv", ".txt")) else None


def read_label_file(source: BinaryIO | Path, format: Format | None = None) -> Rows:  # noqa: A002 - as in `open`
    """Read the labels of a file, in its order.

    Args:
        source: the file, or a seekable stream at its beginning.
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
        except OSError as exc:
            raise LabelFileError(f"{source}: {exc.strerror or exc}") from exc
        return
    yield from _read(source, Path(getattr(source, "name", None) or "").name, format)


def _read(stream: BinaryIO, name: str, form: Format | None) -> Rows:
    if form is None:
        form = detect_format(name, stream.read(START))
        stream.seek(0)
    if form is None:
        formats = ", ".join(get_args(Format))
        raise LabelFileError(f"{name}: the format of the labels cannot be detected: name one of {formats}")
    yield from _READERS[form](stream, name)


def read_class_folders(folder: Path) -> Rows:
    """Read the labels of images that are sorted into one folder per class."""
    for path in sorted(folder.glob("*/*")):
        if path.is_file() and not path.name.startswith("."):
            image = path.relative_to(folder).as_posix()
            yield LabelRow(image, UNNAMED, path.parent.name, None, False, image)
