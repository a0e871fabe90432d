"""A label as a file states it, or the reason why there is none."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from ml.messages import Message

#: Formats of label files: a table of secondread, or exports of other tools.
Format = Literal["labels", "label-studio", "cvat", "coco", "wide"]
#: Annotator of labels in files that name none.
UNNAMED = "unnamed"
#: Ends of the names of images.
IMAGE_END = re.compile(r"\.(png|jpe?g|tiff?|bmp|gif|webp|dcm)$", re.IGNORECASE)


class LabelFileError(ValueError):
    """A file that has no labels to read; the message is what is wrong and what to do."""


@dataclass(frozen=True)
class LabelRow:
    """A label of an image.

    Attributes:
        image: file name or external id as the file states it, with ``/`` between folders.
        annotator: name, number or address of the annotator as the file states it; ``UNNAMED`` if it states none.
        label: class name or code as the file states it.
        at: time of the label in UTC, if stated.
        blinded: whether the file states that the annotator saw no prediction.
        place: row, task or image in the file, for messages.
    """

    image: str
    annotator: str
    label: str
    at: datetime | None
    blinded: bool
    place: str


@dataclass(frozen=True)
class BadRow:
    """A row, annotation or tag that states no label of an image, and why."""

    place: str
    reason: str


#: Rows of a file in its order.
Rows = Iterator[LabelRow | BadRow]


def read_time(text: str) -> datetime:
    """A time of ISO 8601 in UTC; without a zone it is UTC already.

    Raises:
        ValueError: no such time.

    >>> read_time("2026-03-01T12:00:00+02:00").isoformat()
    '2026-03-01T10:00:00+00:00'
    """
    try:
        at = datetime.fromisoformat(text)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError) as exc:
        raise ValueError(Message("{text} is not a time (ISO 8601)", text=repr(text[:80]))) from exc
