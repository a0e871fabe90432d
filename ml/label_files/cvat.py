"""Labels of whole images in "CVAT for images 1.1"."""

from collections import Counter
from collections.abc import Mapping
from typing import BinaryIO
from xml.parsers import expat

from ml.label_files.rows import UNNAMED, BadRow, LabelFileError, LabelRow, Rows
from ml.messages import Message

_CHUNK = 65536


def read_cvat(stream: BinaryIO, name: str) -> Rows:
    """Read the tags of images."""
    images, parser = _Images(name), expat.ParserCreate()
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = images.refuse_document_type
    parser.StartElementHandler = images.start
    parser.CharacterDataHandler = images.add_text
    parser.EndElementHandler = images.end
    more = True
    while more:
        chunk = stream.read(_CHUNK)
        more = bool(chunk)
        try:
            parser.Parse(chunk, not more)
        except expat.ExpatError as exc:
            raise LabelFileError(f"{name}: this is no XML: {exc}") from exc
        yield from images.rows
        images.rows.clear()


class _Images:
    """Rows of the images that the parser has read."""

    def __init__(self, name: str) -> None:
        self.rows: list[LabelRow | BadRow] = []
        self._name, self._path, self._text = name, list[str](), ""
        # of a job, task or project, and of each task of a project by its id
        self._assignees: dict[str, str] = {}
        self._task = ""
        self._image: Mapping[str, str] = {}
        # label and annotator of each tag
        self._tags: list[tuple[str, str]] = []
        self._attribute = ""

    def refuse_document_type(self, *_: object) -> None:
        """Refuse declarations, which CVAT never writes and which can make a small file huge."""
        raise LabelFileError(f"{self._name}: a document type is not allowed: export the labels again")

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Begin an element."""
        self._path.append(tag)
        self._text = ""
        if len(self._path) == 1 and tag != "annotations":
            raise LabelFileError(f"{self._name}: this is no export of CVAT: its first element is {tag!r}")
        if self._path == ["annotations", "image"]:
            self._image, self._tags = attributes, []
        elif self._path == ["annotations", "image", "tag"]:
            self._tags.append((attributes.get("label", ""), self._assignee()))
        elif self._path == ["annotations", "image", "tag", "attribute"]:
            self._attribute = attributes.get("name", "")
        elif self._path[:2] == ["annotations", "image"] and len(self._path) == 3:
            self._add_bad_row(Message("{kind} is not a label of the whole image", kind=tag))
        elif self._path == ["annotations", "track"]:
            place = f"track {attributes.get('id', '')}".rstrip()
            self.rows.append(BadRow(place, Message("{kind} is not a label of the whole image", kind=tag)))

    def add_text(self, text: str) -> None:
        """Take text of an element."""
        self._text += text

    def end(self, tag: str) -> None:
        """End an element."""
        text = self._text.strip()
        if self._path[-2:] == ["task", "id"]:
            self._task = text
        elif self._path[-2:] == ["assignee", "username"] and text:
            owner = self._path[-3]
            self._assignees[owner] = text
            if owner == "task":
                self._assignees[self._task] = text
        elif self._path == ["annotations", "image", "tag", "attribute"] and self._attribute == "annotator" and text:
            self._tags[-1] = (self._tags[-1][0], text)
        elif self._path == ["annotations", "image"]:
            self._end_image()
        self._path.pop()
        self._text = ""

    def _assignee(self) -> str:
        owners = (self._image["task_id"], "project") if "task_id" in self._image else ("job", "task", "project")
        return next((self._assignees[owner] for owner in owners if owner in self._assignees), UNNAMED)

    def _end_image(self) -> None:
        image = self._image.get("name", "").replace("\\", "/")
        for annotator, n in Counter(annotator for _, annotator in self._tags).items():
            labels = [label for label, other in self._tags if other == annotator]
            if n > 1:
                self._add_bad_row(Message("{n} tags of {annotator}, and one is needed", n=n, annotator=annotator))
            elif not image or not labels[0]:
                self._add_bad_row(Message("the label is empty") if image else Message("the image is not named"))
            else:
                self.rows.append(LabelRow(image, annotator, labels[0], None, False, self._place()))

    def _add_bad_row(self, reason: str) -> None:
        self.rows.append(BadRow(self._place(), reason))

    def _place(self) -> str:
        return f"image {self._image.get('name') or self._image.get('id', '')}"
