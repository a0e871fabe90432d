"""Labels in the JSON exports of Label Studio and in the manner of COCO."""

import json
import re
from collections.abc import Mapping
from typing import Any, BinaryIO
from urllib.parse import parse_qs, unquote, urlsplit

from ml.label_files.rows import IMAGE_END, UNNAMED, BadRow, LabelFileError, LabelRow, Rows, read_time
from ml.messages import Message

#: Where Label Studio serves files of a folder or a bucket from, and the key of their name.
_SERVED = {"/data/local-files": "d", "/storage-data/uploaded": "filepath"}
#: Before the name of an uploaded file.
_UPLOAD = re.compile(r"(/?data/)?upload/\d+/([0-9a-f]{8}-)?")
#: Answers of Label Studio that go with a choice.
_NOTES = {"textarea", "rating"}


def read_label_studio(stream: BinaryIO) -> Rows:
    """Read the annotations of tasks, without the skipped ones."""
    for number, task in enumerate(_load(stream, list), start=1):
        if not isinstance(task, dict) or not isinstance(task.get("data"), dict):
            raise LabelFileError(f"task {number}: there is no 'data': export the project as JSON, not JSON-MIN")
        annotations = task.get("annotations")
        if not isinstance(annotations, list):
            raise LabelFileError(f"task {number}: there is no list 'annotations': export the project as JSON")
        for position, annotation in enumerate(annotations, start=1):
            if not isinstance(annotation, dict):
                yield BadRow(f"task {task.get('id', number)} annotation {position}", Message("it is not an object"))
            elif not annotation.get("was_cancelled"):
                place = f"task {task.get('id', number)} annotation {annotation.get('id', position)}"
                yield _read_annotation(place, task["data"], annotation)


def _read_annotation(place: str, data: Mapping[str, Any], annotation: Mapping[str, Any]) -> LabelRow | BadRow:
    results = annotation.get("result")
    answers = [row for row in results if isinstance(row, dict)] if isinstance(results, list) else []
    answers = [row for row in answers if str(row.get("type")) not in _NOTES]
    others = [str(row.get("type")) for row in answers if row.get("type") != "choices"]
    if others:
        return BadRow(place, Message("{kind} is not a label of the whole image", kind=others[0][:80]))
    choices = [choice for row in answers for choice in _list_choices(row.get("value"))]
    if len(choices) != 1 or not isinstance(choices[0], str) or not choices[0]:
        return BadRow(place, Message("{n} choices, and one is needed", n=len(choices)))
    image = _find_image(data, answers[0].get("to_name"))
    if image is None:
        return BadRow(place, Message("the image is not named"))
    try:
        at = annotation.get("updated_at") or annotation.get("created_at")
        time = None if at is None else read_time(str(at))
    except ValueError as exc:
        return BadRow(place, exc.args[0])
    return LabelRow(image, _name_annotator(annotation.get("completed_by")), choices[0], time, False, place)


def _list_choices(value: Any) -> list[Any]:
    choices = value.get("choices") if isinstance(value, dict) else None
    return choices if isinstance(choices, list) else []


def _find_image(data: Mapping[str, Any], to_name: Any) -> str | None:
    """External id of a task, else its file: under the name of the labelled object, else the first that is an image."""
    texts = {key: value for key, value in data.items() if isinstance(value, str) and value}
    if "external_id" in texts:
        return texts["external_id"]
    if str(to_name) in texts:
        return cut_storage(texts[str(to_name)])
    return next((cut for cut in map(cut_storage, texts.values()) if IMAGE_END.search(cut)), None)


def cut_storage(address: str) -> str:
    """File of an address, without what Label Studio puts before it.

    >>> cut_storage("/data/upload/1/0a1b2c3d-cell%207.png"), cut_storage("/data/local-files/?d=slide-1/cell.png")
    ('cell 7.png', 'slide-1/cell.png')
    >>> cut_storage("s3://bucket/slide-1/cell.png")
    'slide-1/cell.png'
    """
    address = address.replace("\\", "/")
    if "://" in address or address.startswith(("/data/", "/storage-data/", "upload/")):
        try:
            parts = urlsplit(address)
        except ValueError:  # an address with a broken host
            return address
        key = next((key for path, key in _SERVED.items() if parts.path.rstrip("/").endswith(path)), None)
        served = parse_qs(parts.query).get(key or "")
        address = served[-1] if served else unquote(parts.path)
    return _UPLOAD.sub("", address.lstrip("/"), count=1)


def _name_annotator(completed_by: Any) -> str:
    if isinstance(completed_by, dict):
        completed_by = next((completed_by[key] for key in ("email", "username", "id") if completed_by.get(key)), None)
    return UNNAMED if completed_by is None else str(completed_by) or UNNAMED


def read_coco(stream: BinaryIO) -> Rows:
    """Read the annotations of whole images in the manner of COCO."""
    document = _load(stream, dict)
    images, categories = _names(document, "images", "file_name"), _names(document, "categories", "name")
    annotations = document.get("annotations")
    if not isinstance(annotations, list):
        raise LabelFileError("'annotations' must be a list")
    for position, row in enumerate(annotations, start=1):
        if not isinstance(row, dict):
            yield BadRow(f"annotation {position}", Message("it is not an object"))
            continue
        place, image, label = f"annotation {row.get('id', position)}", row.get("image_id"), row.get("category_id")
        if row.get("bbox") or row.get("segmentation"):
            kind = "bbox" if row.get("bbox") else "segmentation"
            yield BadRow(place, Message("{kind} is not a label of the whole image", kind=kind))
        elif str(image) not in images or str(label) not in categories:
            key, value = ("image_id", image) if str(image) not in images else ("category_id", label)
            yield BadRow(place, Message("the file has no {key} {value}", key=key, value=repr(value)[:80]))
        else:
            attributes = row.get("attributes")
            stated = row.get("annotator") or (attributes.get("annotator") if isinstance(attributes, dict) else None)
            yield LabelRow(images[str(image)], str(stated or UNNAMED), categories[str(label)], None, False, place)


def _names(document: Mapping[str, Any], what: str, key: str) -> dict[str, str]:
    """Names of images or categories by their id."""
    names: dict[str, str] = {}
    try:
        for row in document.get(what):  # type: ignore[union-attr]
            name = str(row[key]).replace("\\", "/")
            if names.setdefault(str(row["id"]), name) != name:
                raise LabelFileError(f"'{what}': id {str(row['id'])[:80]} is given twice; number them again")
    except (KeyError, TypeError) as exc:
        raise LabelFileError(f"'{what}' must be a list of objects with id and {key}") from exc
    return names


def _load(stream: BinaryIO, kind: type) -> Any:
    try:
        text = stream.read().decode("utf-8-sig")
        document = json.loads(text)
        if "\\u" in text:  # half of a surrogate pair cannot be stored
            json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as exc:
        raise LabelFileError(f"this is no JSON: {exc}") from exc
    if "\\u0000" in text:
        raise LabelFileError("a text contains the character U+0000: delete it")
    if not isinstance(document, kind):
        expected = "a list of tasks" if kind is list else "an object with images, annotations and categories"
        raise LabelFileError(f"{expected} is needed, got {type(document).__name__}")
    return document
