"""Reading an uploaded image: a multipart part ``image``, of a case with another part ``field``, or the raw body."""

from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from app.cases.schemas import CaseIn
from app.http.errors import BadRequest, Invalid
from app.http.limits import MAX_UPLOAD

_MAX_FIELDS, _MAX_PART = 10, 64 * 1024
_IMAGE_TYPES = ["image/png", "image/jpeg", "image/tiff", "application/octet-stream"]


class _InMemory(MultiPartParser):
    """Keeps what is received in memory, whose bounds are counted, rather than in the folder for temporary files."""

    spool_max_size = MAX_UPLOAD


@dataclass(frozen=True)
class Form:
    """A parsed multipart body."""

    files: dict[str, bytes]
    fields: dict[str, str]


@dataclass(frozen=True)
class CaseForm:
    """What is sent of a case: its fields, its image, and the wider field around the cell; None without one."""

    fields: CaseIn
    image: bytes
    field: bytes | None = None


async def _multipart(request: Request, *optional: str) -> Form:
    """A multipart body with the file ``image``, and perhaps others.

    Raises:
        BadRequest: it cannot be read.
        Invalid: the image is not there, or another file is.
    """
    known = ("image", *optional)
    try:
        form = await _InMemory(
            request.headers,
            request.stream(),
            max_files=len(known),
            max_fields=_MAX_FIELDS,
            max_part_size=_MAX_PART,
        ).parse()
    except MultiPartException as exc:
        raise BadRequest("the multipart body cannot be read, or has too many or too large parts") from exc
    sent = {name: value for name, value in form.multi_items() if isinstance(value, UploadFile)}
    try:
        if "image" not in sent:
            raise Invalid("send the image as a file in the multipart field `image`")
        if not sent.keys() <= set(known):
            raise Invalid("there is a file in another multipart field than those that are read here")
        files = {name: await value.read() for name, value in sent.items()}
        return Form(files, {name: value for name, value in form.items() if isinstance(value, str)})
    finally:
        await form.close()


def _is_multipart(request: Request) -> bool:
    return request.headers.get("content-type", "").lower().startswith("multipart/form-data")


async def image_bytes(request: Request) -> bytes:
    """The uploaded image, from a multipart field or the raw body.

    Raises:
        Invalid: nothing was sent.
    """
    if _is_multipart(request):
        return (await _multipart(request)).files["image"]
    body = await request.body()
    if not body:
        raise Invalid("send the image as the body, or as a file in the multipart field `image`")
    return body


async def case_form(request: Request) -> CaseForm:
    """Fields and image of a case, and the field around the cell where it is sent.

    Raises:
        Invalid: the body is not multipart.
        RequestValidationError: a field is missing or not acceptable.
    """
    if not _is_multipart(request):
        raise Invalid("send multipart/form-data with the fields image and external_id")
    form = await _multipart(request, "field")
    try:
        return CaseForm(CaseIn.model_validate(form.fields), form.files["image"], form.files.get("field"))
    except ValidationError as exc:
        errors = [e | {"loc": ("body", *e["loc"])} for e in exc.errors(include_input=False, include_context=False)]
        raise RequestValidationError(errors) from exc


def upload_schema(*, case: bool) -> dict[str, Any]:
    """OpenAPI of the request body."""
    binary = {"type": "string", "format": "binary"}
    properties: dict[str, Any] = {"image": binary}
    required = ["image"]
    if case:
        text = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"^[^\u0000]*$"}
        metadata = {"type": "string", "description": "JSON object of at most 20 texts"}
        around = "Wider field around the cell, for people alone; shown on request, never used for a prediction."
        properties["field"] = binary | {"description": around}
        properties |= {"external_id": text, "patient": text, "site": text, "metadata": metadata}
        required.append("external_id")
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    multipart = {"schema": schema}
    content: dict[str, Any] = {"multipart/form-data": multipart}
    if not case:
        content |= {kind: {"schema": binary} for kind in _IMAGE_TYPES}
    return {"requestBody": {"required": True, "content": content}}
