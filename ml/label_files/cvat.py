"""Labels of whole images in "CVAT for images 1.1"."""

from collections import defaultdict
from typing import BinaryIO
from xml.etree import ElementTree

from ml.label_files.rows import UNNAMED, BadRow, LabelFileError, LabelRow, Rows
from ml.messages import Message


class _Tree(ElementTree.TreeBuilder):
    """Refuses declarations, which CVAT never writes and which can make a small file huge."""

    def doctype(self, *_: object) -> None:
        """Refuse a document type before anything in it is read."""
        raise LabelFileError("a document type is not allowed: export the labels again")


def read_cvat(stream: BinaryIO) -> Rows:
    """Read the tags of images; the annotator is an attribute of the tag, else the assignee."""
    try:
        root = ElementTree.parse(stream, ElementTree.XMLParser(target=_Tree())).getroot()  # noqa: S314 - see _Tree
    except (ElementTree.ParseError, LookupError) as exc:
        raise LabelFileError(f"this is no XML: {exc}") from exc
    if root.tag != "annotations":
        raise LabelFileError(f"this is no export of CVAT: its first element is {root.tag!r}")
    assignees = _list_assignees(root)
    for part in root:
        if part.tag == "image":
            owners = (part.get("task_id"), "project") if "task_id" in part.attrib else ("job", "task", "project")
            yield from _read_image(part, next((assignees[key] for key in owners if key in assignees), UNNAMED))
        elif part.tag not in {"version", "meta"}:
            place = f"{part.tag} {part.get('id', '')}".rstrip()
            yield BadRow(place, Message("{kind} is not a label of the whole image", kind=part.tag))


def _list_assignees(root: ElementTree.Element) -> dict[str | None, str]:
    """Assignees of the job, task and project, and of each task by its id."""
    assignees: dict[str | None, str] = {}
    for kind in ("job", "task", "project"):
        for owner in root.iterfind(f"meta//{kind}"):
            if assignee := (owner.findtext("assignee/username") or "").strip():
                assignees |= {kind: assignee, **({owner.findtext("id"): assignee} if kind == "task" else {})}
    return assignees


def _read_image(image: ElementTree.Element, assignee: str) -> Rows:
    name, labels = image.get("name", "").replace("\\", "/"), defaultdict[str, list[str]](list)
    place = f"image {name or image.get('id', '')}"
    for part in image:
        if part.tag == "tag":
            labels[part.findtext("attribute[@name='annotator']") or assignee].append(part.get("label", ""))
        else:
            yield BadRow(place, Message("{kind} is not a label of the whole image", kind=part.tag))
    for annotator, (label, *others) in labels.items():
        if others:
            n = 1 + len(others)
            yield BadRow(place, Message("{n} tags of {annotator}, and one is needed", n=n, annotator=annotator))
        elif not name or not label:
            yield BadRow(place, Message("the label is empty") if name else Message("the image is not named"))
        else:
            yield LabelRow(name, annotator, label, None, False, place)
