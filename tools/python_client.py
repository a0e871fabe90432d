"""The generated half of ``secondread.client``: models by datamodel-code-generator, a method an operation by a template.

``python -m tools.openapi_files`` writes it.
"""

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "secondread" / "client"
MODELS, SYNC, ASYNC = FOLDER / "models.py", FOLDER / "_operations.py", FOLDER / "_operations_async.py"
#: What the service checks, and what is said in words elsewhere.
_DROPPED = {"title", "pattern", "example", "examples"} | {
    f"{bound}{what}" for bound in ("min", "max") for what in ("Length", "Items", "imum")
}
_DROPPED |= {"exclusiveMinimum", "exclusiveMaximum"}
_REFERENCE = "#/components/schemas/"
_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}
_OPTIONS = [
    *("--input-file-type", "openapi", "--output-model-type", "pydantic_v2.BaseModel"),
    *("--target-python-version", "3.11", "--use-single-line-docstring"),
    *("--formatters", "builtin", "--enum-field-as-literal", "all", "--use-annotated", "--use-schema-description"),
    *("--use-standard-collections", "--use-union-operator", "--strict-nullable", "--use-double-quotes"),
    *("--use-tuple-for-fixed-items", "--keep-model-order", "--disable-timestamp", "--disable-warnings"),
    *("--use-field-description", "--use-inline-field-description"),
]
_HEAD = '''"""{words} Made from the OpenAPI document {digest}.

``python -m tools.openapi_files`` makes it again; nobody edits it.
"""

# ruff: noqa
'''
_METHOD = '''
from collections.abc import {{ iterator }}, Mapping
from datetime import datetime
from typing import Literal
from urllib.parse import quote

from secondread.client import models
from secondread.client._core import Id, Model, Request, new_key, texts


class {{ "AsyncOperations" if awaited else "Operations" }}:
    """A method for each operation; how requests are sent is said elsewhere."""

    {{ a }}def _model(self, model: type[Model], request: Request) -> Model:
        raise NotImplementedError

    {{ a }}def _model_or_none(self, model: type[Model], request: Request) -> Model | None:
        raise NotImplementedError

    {{ a }}def _model_or_job(self, model: type[Model], request: Request) -> Model | models.JobOut:
        raise NotImplementedError

    {{ a }}def _bytes(self, request: Request) -> bytes:
        raise NotImplementedError
{% for op in operations %}

    {{ a }}def {{ op.name }}(self{{ op.signature }}) -> {{ op.answer }}:
        """{{ op.words }}"""
        request = Request({{ op.request }})
        {{ "return " if op.answer != "None" }}{{ w }}self.{{ op.call }}
{% if op.items %}

    {{ a }}def iter_{{ op.items_name }}(self{{ op.paged_signature }}) -> {{ iterator }}[{{ op.item }}]:
        """The same, entry after entry through all pages."""
        cursor: {{ op.cursor }} = None
        seen: set[str] = set()
        while True:
            page = {{ w }}self.{{ op.name }}({{ op.paged_arguments }})
            for item in page.{{ op.items }}:
                yield item
            if page.next_cursor is None or page.next_cursor in seen:  # a cursor that comes again leads nowhere new
                return
            seen.add(page.next_cursor)
            cursor = {{ "int(page.next_cursor)" if op.cursor == "int | None" else "page.next_cursor" }}
{% endif %}
{% endfor %}
'''


def plain(value: Any, *, names: bool = False) -> Any:
    """A document without what the client leaves to the service; answers may have more fields than are known today."""
    if isinstance(value, dict):
        return {
            k: plain(v, names=k == "properties" and not names) for k, v in value.items() if names or k not in _DROPPED
        }
    return [plain(inner) for inner in value] if isinstance(value, list) else value


def _described(document: dict[str, Any]) -> dict[str, Any]:
    found = {key: plain(document[key]) for key in ("openapi", "paths", "components")}
    found["info"] = document["info"]
    for name, schema in found["components"]["schemas"].items():
        if not name.endswith("In"):
            schema.pop("additionalProperties", None)
    return dict(found)


@dataclass(frozen=True)
class Method:
    """A method of the clients, as the template takes it."""

    name: str
    signature: str
    answer: str
    words: str
    request: str
    call: str
    items: str | None
    item: str
    cursor: str
    paged_signature: str
    paged_arguments: str

    @property
    def items_name(self) -> str:
        """What is gone through, page after page."""
        return self.name.removeprefix("list_").removeprefix("get_")


def _type(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(_type(inner) for inner in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return f"Literal[{', '.join(map(repr, values))}]"
    if schema.get("type") == "null":
        return "None"
    if schema.get("format") == "uuid":
        return "Id"
    return "datetime" if schema.get("format") == "date-time" else _TYPES[schema["type"]]


def _reference(content: dict[str, Any]) -> str | None:
    reference = content.get("application/json", {}).get("schema", {}).get("$ref")
    return None if reference is None else f"models.{reference.removeprefix(_REFERENCE)}"


def _sent(kind: str, content: dict[str, Any], after: list[str], named: list[str], given: list[str]) -> None:
    """Arguments and fields of a body."""
    if (reference := _reference(content)) is not None:
        after.append(f"body: {reference}")
        given.append("body=body")
    elif "multipart/form-data" in content:
        schema = content["multipart/form-data"]["schema"]
        many = [name for name, kind in schema["properties"].items() if kind.get("type") == "array"]
        after.append("image: Mapping[str, bytes]" if "image" in many else "image: bytes")
        files = many + [name for name, kind in schema["properties"].items() if kind.get("format") == "binary"]
        named += [f"{name}: bytes | None = None" for name in files if name != "image"]
        sent = [f'"{name}": {name}' for name in files]
        given.append(f"files={{{', '.join(sent)}}}")
        fields = [name for name in schema["properties"] if name not in files]
        types = {name: "Mapping[str, str]" if name == "metadata" else "str" for name in fields}
        named += [f"{name}: {types[name]}{'' if name in schema['required'] else ' | None = None'}" for name in fields]
        values = [f'"{name}": {"texts(metadata)" if name == "metadata" else name}' for name in fields]
        given += [f"data={{{', '.join(values)}}}"] if fields else []
    elif kind:
        after.append("content: bytes")
        given += ["content=content", f'kind="{kind}"']


def _method(method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]) -> Method:
    parameters = operation.get("parameters", [])
    content = operation.get("requestBody", {}).get("content", {})
    after = [
        f"{p['name']}: {'Id' if p['name'].endswith('_id') else _type(p['schema'])}"
        for p in parameters
        if p["in"] == "path"
    ]
    address = re.sub(r"{(\w+)}", r"{quote(str(\1), safe='')}", path)
    given = [f'"{method.upper()}"', f'f"{address}"' if "{" in path else f'"{path}"']
    named: list[str] = []
    _sent(next(iter(content), ""), content, after, named, given)
    query = [p for p in parameters if p["in"] == "query"]
    for parameter in query:
        kind = _type(parameter["schema"])
        named.append(f"{parameter['name']}: {kind}{'' if 'None' in kind else ' | None'} = None")
    if query:
        values = [f'"{p["name"]}": {_written(p)}' for p in query]
        given.append(f"query={{{', '.join(values)}}}")
    headers = {p["name"] for p in parameters if p["in"] == "header"}
    if "idempotency-key" in headers:
        named.append("idempotency_key: str | None = None")
        given.append('headers={"Idempotency-Key": idempotency_key or new_key()}')
    if "if-match" in headers:
        named.append("if_match: int")
        given.append("""headers={"If-Match": f'"{if_match}"'}""")
    answers = {s: a for s, a in operation["responses"].items() if s.startswith("2")}
    found = {s: model for s, a in answers.items() if (model := _reference(a.get("content", {})))}
    model = next((name for status, name in found.items() if status != "202"), found.get("202"))
    read = any(answer.get("content") for answer in answers.values())
    answer, call = "bytes" if read else "None", "_bytes(request)"
    if model is not None:
        answer, call = model, f"_model({model}, request)"
        if "204" in answers:
            answer, call = f"{model} | None", f"_model_or_none({model}, request)"
        elif "202" in found and model != found["202"]:
            answer, call = f"{model} | {found['202']}", f"_model_or_job({model}, request)"
    paging = _paging(schemas.get((model or "").removeprefix("models."), {}), query)
    rest = [n for n in named if not n.startswith("cursor:")]
    names = [argument.partition(":")[0] for argument in after]
    passed = [*names, *(f"{n.partition(':')[0]}={n.partition(':')[0]}" for n in rest), "cursor=cursor"]
    return Method(
        operation["operationId"],
        _arguments(after, named),
        answer,
        _documented(operation, [*after, *named]),
        ", ".join(given),
        call,
        *paging,
        _arguments(after, rest),
        ", ".join(passed),
    )


def _documented(operation: dict[str, Any], arguments: list[str]) -> str:
    """A method's docstring: what the operation does, and its arguments."""
    texts = {p["name"].replace("-", "_"): p["description"] for p in operation.get("parameters", [])}
    for media in operation.get("requestBody", {}).get("content", {}).values():
        texts |= {name: field["description"] for name, field in media["schema"].get("properties", {}).items()}
    names = [argument.partition(":")[0] for argument in arguments]
    lines = [f"\n            {name}: {texts[name]}" for name in names if name in texts]
    arguments_text = f"\n\n        Args:{''.join(lines)}\n        " if lines else ""
    return str((operation["description"].replace("\n", " ") + arguments_text).replace('"', "'"))


def _written(parameter: dict[str, Any]) -> str:
    """A query's value as it is sent."""
    name, kind = parameter["name"], _type(parameter["schema"])
    if "datetime" in kind:
        return f"None if {name} is None else {name}.isoformat()"
    return f"None if {name} is None else str({name})" if "Id" in kind else name


def _arguments(after: list[str], named: list[str]) -> str:
    return "".join(f", {part}" for part in (*after, *(("*", *named) if named else ())))


def _paging(schema: dict[str, Any], query: list[dict[str, Any]]) -> tuple[str | None, str, str]:
    """Which field of a page has its entries, their type, and that of the cursor."""
    cursor = next((p for p in query if p["name"] == "cursor"), None)
    if cursor is None or "next_cursor" not in schema.get("properties", {}):
        return None, "", ""
    for name, inner in schema["properties"].items():
        if inner.get("type") == "array":
            return name, f"models.{inner['items']['$ref'].removeprefix(_REFERENCE)}", _type(cursor["schema"])
    raise ValueError(f"a page without entries: {schema}")


def _methods(document: dict[str, Any]) -> Iterator[Method]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield _method(method, path, operation, document["components"]["schemas"])


def _formatted(path: Path, text: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(path), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def _models(document: dict[str, Any]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "openapi.json", Path(folder) / "models.py"
        source.write_text(json.dumps(document))
        command = [sys.executable, "-m", "datamodel_code_generator", "--input", str(source), "--output", str(out)]
        subprocess.run([*command, *_OPTIONS], check=True, capture_output=True, text=True, cwd=folder)
        return re.sub(r"\A(#.*\n)+", "", out.read_text())


def digest(document: dict[str, Any]) -> str:
    """Of all that the generated files follow from, this file included."""
    text = json.dumps(_described(document), sort_keys=True) + Path(__file__).read_text()
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def python_client(document: dict[str, Any]) -> dict[Path, str]:
    """The generated files with their content."""
    described, made = _described(document), digest(document)
    template = Environment(undefined=StrictUndefined, autoescape=False).from_string(_METHOD)
    texts = {MODELS: _HEAD.format(words="What the API takes and answers.", digest=made) + _models(described)}
    for path, awaited in ((SYNC, False), (ASYNC, True)):
        words = {"a": "async ", "w": "await ", "iterator": "AsyncIterator"}
        words = words if awaited else {"a": "", "w": "", "iterator": "Iterator"}
        body = template.render(operations=list(_methods(described)), awaited=awaited, **words)
        texts[path] = _HEAD.format(words="Operations of the API.", digest=made) + body
    return {path: _formatted(path, text) for path, text in texts.items()}
