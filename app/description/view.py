"""The OpenAPI document as a page shows it: operations in groups, the shapes of what they take and answer."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.description.examples import EXAMPLES

#: Words for the types of JSON Schema, and for formats that say more.
_WORDS = {"string": "text", "boolean": "true or false", "object": "object", "null": "null"}
_FORMATS = {"uuid": "UUID", "date-time": "date and time", "date": "date", "binary": "bytes"}
_REFERENCE = "#/components/schemas/"
_BODIES = ("application/json", "multipart/form-data")


@dataclass(frozen=True)
class Piece:
    """Some words of a type; ``shape`` is the one that they name."""

    text: str
    shape: str | None = None


@dataclass(frozen=True)
class Field:
    """A field of a shape, or a parameter of an operation."""

    name: str
    place: str
    required: bool
    type: tuple[Piece, ...]
    text: str


@dataclass(frozen=True)
class Shape:
    """What a JSON object contains."""

    name: str
    text: str
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Media:
    """A body in one content type."""

    kind: str
    type: tuple[Piece, ...]
    fields: tuple[Field, ...]
    example: str | None


@dataclass(frozen=True)
class Answer:
    """What an operation answers with one status; ``codes`` are those of problems."""

    status: str
    text: str
    bodies: tuple[Media, ...]
    codes: tuple[str, ...]


@dataclass(frozen=True)
class Operation:
    """One route with one method."""

    name: str
    method: str
    path: str
    summary: str
    text: str
    access: str
    parameters: tuple[Field, ...]
    bodies: tuple[Media, ...]
    answers: tuple[Answer, ...]
    curl: str


@dataclass(frozen=True)
class Group:
    """Operations of one subject."""

    name: str
    text: str
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class ApiView:
    """The whole document."""

    title: str
    version: str
    text: str
    schemes: tuple[tuple[str, str], ...]
    groups: tuple[Group, ...]
    shapes: tuple[Shape, ...]


def view(document: dict[str, Any]) -> ApiView:
    """A document as it is shown."""
    info, components = document["info"], document["components"]
    operations = [
        (operation["tags"][0], _operation(method, path, operation))
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return ApiView(
        info["title"],
        info["version"],
        info["description"],
        tuple((name, scheme["description"]) for name, scheme in components["securitySchemes"].items()),
        tuple(
            Group(tag["name"], tag["description"], tuple(shown for name, shown in operations if name == tag["name"]))
            for tag in document["tags"]
        ),
        tuple(_shape(name, schema) for name, schema in sorted(components["schemas"].items())),
    )


def _shape(name: str, schema: dict[str, Any]) -> Shape:
    return Shape(name, schema.get("description", ""), _fields(schema))


def _fields(schema: dict[str, Any]) -> tuple[Field, ...]:
    required = schema.get("required", [])
    return tuple(
        Field(name, "", name in required, tuple(_type(inner)), inner.get("description", ""))
        for name, inner in schema.get("properties", {}).items()
    )


def _joined(parts: list[list[Piece]], word: str) -> Iterator[Piece]:
    for number, part in enumerate(parts):
        if number:
            yield Piece(word)
        yield from part


def _type(schema: dict[str, Any]) -> Iterator[Piece]:
    """What a schema allows, in words."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_REFERENCE)
        yield Piece(name, name)
    elif "anyOf" in schema:
        yield from _joined([list(_type(inner)) for inner in schema["anyOf"]], " or ")
    elif "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        yield Piece(" or ".join(json.dumps(value) for value in values))
    elif schema.get("type") == "array":
        yield Piece("list of ")
        if "prefixItems" in schema:
            yield from _joined([list(_type(inner)) for inner in schema["prefixItems"]], ", ")
        else:
            yield from _type(schema.get("items", {}))
    elif isinstance(schema.get("additionalProperties"), dict):
        yield Piece("object of ")
        yield from _type(schema["additionalProperties"])
    else:
        kind = str(schema.get("type", "anything"))
        yield Piece(_FORMATS.get(schema.get("format", ""), _WORDS.get(kind, kind)))
        yield from _bounds(schema)


def _bounds(schema: dict[str, Any]) -> Iterator[Piece]:
    """Limits of a number or of a text."""
    words = {
        "minimum": "at least",
        "maximum": "at most",
        "exclusiveMinimum": "above",
        "exclusiveMaximum": "below",
        "maxLength": "characters: at most",
    }
    said = [f"{word} {schema[key]}" for key, word in words.items() if key in schema]
    if said:
        yield Piece(f" ({', '.join(said)})")


def _media(content: dict[str, Any]) -> tuple[Media, ...]:
    return tuple(
        Media(
            kind,
            tuple(_type(media.get("schema", {}))),
            _fields(media.get("schema", {})),
            json.dumps(media["example"], indent=2, ensure_ascii=False) if "example" in media else None,
        )
        for kind, media in content.items()
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> Operation:
    summary, text = operation["summary"], operation["description"]
    return Operation(
        operation["operationId"],
        method.upper(),
        path,
        summary,
        "" if text == f"{summary}." else text,
        _access(operation["security"]),
        tuple(
            Field(
                parameter["name"],
                parameter["in"],
                parameter.get("required", False),
                tuple(_type(parameter["schema"])),
                parameter.get("description", ""),
            )
            for parameter in operation.get("parameters", [])
        ),
        _media(operation.get("requestBody", {}).get("content", {})),
        tuple(_answer(status, answer, summary) for status, answer in sorted(operation["responses"].items())),
        curl(method.upper(), path, operation),
    )


def _answer(status: str, answer: dict[str, Any], summary: str) -> Answer:
    content = answer.get("content", {})
    codes = tuple(code for media in content.values() for code in media.get("examples", {}))
    text = "" if answer["description"] == summary else answer["description"]
    return Answer(status, text, () if codes else _media(content), codes)


def _access(security: list[dict[str, list[str]]]) -> str:
    scopes = sorted({scope for entry in security for scopes in entry.values() for scope in scopes})
    if scopes:
        return f"Needs the scope {' or '.join(f'`{scope}`' for scope in scopes)}."
    return "Needs the metrics token." if security else "Open to everybody."


def curl(method: str, path: str, operation: dict[str, Any]) -> str:
    """A command that sends the operation's example; ``$URL`` is the service, ``$KEY`` an API key."""
    example = EXAMPLES.get(operation["operationId"])
    address = path if example is None else example.path
    lines = ["curl" if method == "GET" else f"curl -X {method}"]
    if operation["security"]:
        lines.append('-H "Authorization: Bearer $KEY"')
    for parameter in operation.get("parameters", []):
        if parameter["name"] == "idempotency-key":
            lines.append('-H "Idempotency-Key: $(uuidgen)"')
        elif parameter["name"] == "if-match":
            lines.append("""-H 'If-Match: "0"'""")
    content = operation.get("requestBody", {}).get("content", {})
    kind = next((kind for kind in _BODIES if kind in content), next(iter(content), None))
    if kind == "application/json":
        body = json.dumps(content[kind].get("example"), ensure_ascii=False)
        lines += ["-H 'Content-Type: application/json'", f"-d {shlex.quote(body)}"]
    elif kind == "multipart/form-data":
        lines += [f"-F {name}={'@cell.png' if name == 'image' else 'slide-9-004'}" for name in _needed(content[kind])]
    elif kind is not None:
        lines += [f"-H 'Content-Type: {kind}'", "--data-binary @cells.zip"]
    if any(kind.startswith("image/") for kind in operation["responses"].get("200", {}).get("content", {})):
        lines.append("-o cell.png")
    return " \\\n  ".join([*lines, f'"$URL{address}"'])


def _needed(media: dict[str, Any]) -> list[str]:
    return list(media["schema"]["required"])
