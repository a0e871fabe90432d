"""OpenAPI document: access rules, texts, worked examples and the errors of each route."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from fastapi import FastAPI
from fastapi.routing import APIRoute

from app.http.descriptions import add_descriptions, describe
from app.http.errors import PROBLEM_JSON, TYPE_PREFIX, Problem
from app.http.principal import COOKIE, SCOPES, SECURE_COOKIE
from app.http.routing import walk_routes

FILE = Path(__file__).parent / "examples.json"


@dataclass(frozen=True)
class RecordedExample:
    """A request and its response; long lists keep only their first entries."""

    # with its query, as it was asked for
    path: str
    # body in JSON, or fields of a multipart body; None without one
    request: Any = None
    # body in JSON
    response: Any = None
    # other bodies by their media type: the first lines of a text, or a ``data:`` address of bytes
    others: dict[str, str] = field(default_factory=dict)


def _load_examples() -> dict[str, RecordedExample]:
    return (
        {name: RecordedExample(**entry) for name, entry in json.loads(FILE.read_text()).items()}
        if FILE.exists()
        else {}
    )


EXAMPLES = _load_examples()


def path_values(template: str, example: RecordedExample) -> dict[str, str]:
    """Values of a path's parameters.

    >>> path_values("/v1/reads/{read_id}/labels", RecordedExample("/v1/reads/a%20b/labels"))
    {'read_id': 'a b'}
    """
    parts = zip(template.split("/"), urlsplit(example.path).path.split("/"), strict=True)
    return {name[1:-1]: unquote(value) for name, value in parts if name.startswith("{")}


def query_values(example: RecordedExample) -> dict[str, str]:
    """Values of the query's parameters.

    >>> query_values(RecordedExample("/v1/cases?limit=2&site=north"))
    {'limit': '2', 'site': 'north'}
    """
    return {name: values[0] for name, values in parse_qs(urlsplit(example.path).query).items()}


_REQUIRED = {
    "idempotency-key": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"},
    "if-match": {"type": "string", "pattern": r'^((W/)?"?[0-9]{1,9}"?|\*)$'},
}
_JSON, _MULTIPART = "application/json", "multipart/form-data"
#: What each group of operations is about, in the order in which they are shown.
TAGS = {
    "cases": "Images of cells, stored or not, with their predictions.",
    "specimens": "Specimens of patients and their cells.",
    "reads": "Blinded reads, labels and posteriors.",
    "imports": "Bulk import of cells.",
    "evaluations": "Quality of predictions and annotators, measured on the collected labels.",
    "policies": "Rules for second reads.",
    "releases": "Model releases, promotion and rollback.",
    "readers": "Annotator models, which weight labels.",
    "annotators": "Statistics of each annotator.",
    "practice": "Training and qualification on completed cells.",
    "jobs": "Background jobs with progress and results.",
    "audit": "The audit log.",
    "operations": "Health and monitoring.",
}


def operation_id(route: APIRoute) -> str:
    """Name of an operation for clients: that of its function."""
    return route.name


def complete_openapi(app: FastAPI, security: Callable[[APIRoute], list[dict[str, list[str]]]]) -> None:
    """Complete the application's OpenAPI, once it is made."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        is_complete = app.openapi_schema is not None
        document = make()
        if not is_complete:
            _complete_document(app, document, security)
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _complete_document(
    app: FastAPI, document: dict[str, Any], security: Callable[[APIRoute], list[dict[str, list[str]]]]
) -> None:
    document["info"]["license"] = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
    document["tags"] = [{"name": name, "description": text} for name, text in TAGS.items()]
    document["components"]["securitySchemes"] = _security_schemes()
    routes = {(method.lower(), route.path): route for route in walk_routes(app) for method in route.methods or ()}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _describe_request(operation)
            _write_summary(operation)
            _describe_errors(operation, document["components"].setdefault("examples", {}))
            operation["security"] = security(routes[method, path])
            example = EXAMPLES.get(operation["operationId"])
            if example is not None:
                _add_example(operation, path, example)
    for schema in document["components"]["schemas"].values():
        if "description" in schema:
            schema["description"] = _in_markdown(schema["description"])


def _security_schemes() -> dict[str, Any]:
    scopes = "\n".join(f"- `{name}`: {what}" for name, what in SCOPES.items())
    return {
        "api_key": {
            "type": "http",
            "scheme": "bearer",
            "description": "A key as `secondread key add` prints it. It needs one of the scopes that the operation "
            f"names; the scopes are:\n\n{scopes}",
        },
        "session": {
            "type": "apiKey",
            "in": "cookie",
            "name": COOKIE,
            "description": f"The session cookie of a signed-in person; `{SECURE_COOKIE}` over TLS.",
        },
        "metrics_token": {
            "type": "http",
            "scheme": "bearer",
            "description": "The token of the setting `SECONDREAD_METRICS_TOKEN`.",
        },
    }


def _describe_request(operation: dict[str, Any]) -> None:
    for parameter in operation.get("parameters", []):
        name = parameter["name"].lower()
        parameter["description"] = describe(name, f"parameters.{operation['operationId']}", "parameters")
        if parameter["in"] == "header" and name in _REQUIRED:
            parameter["required"], parameter["schema"] = True, _REQUIRED[name]
    for media in operation.get("requestBody", {}).get("content", {}).values():
        add_descriptions(media["schema"].get("properties", {}), f"bodies.{operation['operationId']}")


def _in_markdown(text: str) -> str:
    """A docstring's words: lines of a paragraph in one, code between single quotes."""
    paragraphs = [" ".join(part.split()) for part in text.replace("``", "`").split("\n\n")]
    return "\n\n".join(paragraphs)


def _write_summary(operation: dict[str, Any]) -> None:
    text = operation["description"] = _in_markdown(operation["description"])
    operation["summary"] = re.split(r"[:;.](?:\s|$)", text, maxsplit=1)[0]


def _problem_classes(kind: type[Problem]) -> Iterator[type[Problem]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from _problem_classes(inner)


def _problem_example(kind: type[Problem]) -> dict[str, str | int]:
    """Example problem document of a class, with the class's own sentence as detail."""
    detail = (kind.__doc__ or "").partition("\n")[0].rstrip(".")
    return {"type": TYPE_PREFIX + kind.code, "title": kind.title, "status": kind.status, "detail": detail}


def _describe_errors(operation: dict[str, Any], problems: dict[str, Any]) -> None:
    kinds = {kind.code: kind for kind in _problem_classes(Problem)}
    for answer in operation["responses"].values():
        content = answer.get("content", {})
        if PROBLEM_JSON in content:
            content.pop(_JSON, None)
            codes = answer["description"].split(", ")
            problems |= {code: {"value": _problem_example(kinds[code])} for code in codes}
            content[PROBLEM_JSON]["examples"] = {code: {"$ref": f"#/components/examples/{code}"} for code in codes}
        if answer["description"] == "Successful Response":
            answer["description"] = operation["summary"]


def _parse_example_value(schema: dict[str, Any], value: str) -> str | int | bool:
    kinds = {part.get("type") for part in (schema, *schema.get("anyOf", []))}
    if "boolean" in kinds:
        return value == "true"
    return int(value) if "integer" in kinds else value


def _add_example(operation: dict[str, Any], path: str, example: RecordedExample) -> None:
    values = {"path": path_values(path, example), "query": query_values(example)}
    for parameter in operation.get("parameters", []):
        name = parameter["name"]
        value = values.get(parameter["in"], {}).get(name) or describe(
            name, f"examples.{operation['operationId']}", "examples"
        )
        if name == "cursor" and example.response["next_cursor"] is not None:
            value = example.response["next_cursor"]
        if value is not None:
            parameter["example"] = _parse_example_value(parameter["schema"], value)
    _add_body_examples(operation.get("requestBody", {}), example.request, example.others)
    for status, answer in operation["responses"].items():
        if status.startswith("2"):
            is_import = status == "202" and "207" in operation["responses"]
            _add_body_examples(answer, (EXAMPLES["start_import"] if is_import else example).response, example.others)


def _add_body_examples(body: dict[str, Any], value: Any, others: dict[str, str]) -> None:
    for kind, media in body.get("content", {}).items():
        if kind in {_JSON, _MULTIPART}:
            media |= {} if value is None else {"example": value}
        elif kind in others and others[kind].startswith("data:"):
            media["examples"] = {"example": {"externalValue": others[kind]}}
        elif kind in others:
            media["example"] = others[kind]
