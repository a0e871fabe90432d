"""The API does not break silently: each break since the last release is allowed by name, with a reason."""

import copy
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.api_breaks import breaks

ROOT = Path(__file__).parents[1]
#: The document of the last release as its application wrote it.
RELEASED = ROOT / "tests" / "support" / "openapi_released.json"
PRESENT = ROOT / "docs" / "reference" / "openapi.json"
ALLOWED = ROOT / "docs" / "reference" / "api-breaks.toml"


def document(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def allowed() -> list[dict[str, Any]]:
    return list(tomllib.loads(ALLOWED.read_text(encoding="utf-8")).get("allowed", []))


def test_each_break_since_the_last_release_is_allowed_by_name() -> None:
    entries = [re.compile(entry["what"]) for entry in allowed()]
    found = breaks(document(RELEASED), document(PRESENT))
    silent = [line for line in found if not any(entry.fullmatch(line) for entry in entries)]
    assert silent == [], f"these break programs that call the API; undo them, or say why in {ALLOWED.name}"
    stale = [entry.pattern for entry in entries if not any(entry.fullmatch(line) for line in found)]
    assert stale == [], "allowed, and no break any more"


def test_an_allowed_break_names_its_reason_and_its_decision() -> None:
    for entry in allowed():
        assert entry.keys() == {"what", "reason", "decision"}
        assert len(entry["reason"]) > 20
        assert list((ROOT / "docs" / "decisions").glob(f"{entry['decision']:04d}-*.md"))


def test_the_released_document_is_of_an_earlier_version_or_of_this_one() -> None:
    older, newer = document(RELEASED)["info"]["version"], document(PRESENT)["info"]["version"]
    assert tuple(map(int, older.split("."))) <= tuple(map(int, newer.split(".")))


Change = Callable[[dict[str, Any]], object]


def operation(api: dict[str, Any], method: str, path: str) -> dict[str, Any]:
    return api["paths"][path][method]  # type: ignore[no-any-return]


def schema(api: dict[str, Any], name: str) -> dict[str, Any]:
    return api["components"]["schemas"][name]  # type: ignore[no-any-return]


def parameter(api: dict[str, Any], method: str, path: str, name: str) -> dict[str, Any]:
    parameters = operation(api, method, path)["parameters"]
    return next(one for one in parameters if one["name"] == name)  # type: ignore[no-any-return]


def without_parameter(api: dict[str, Any], method: str, path: str, name: str) -> None:
    described = operation(api, method, path)
    described["parameters"] = [one for one in described["parameters"] if one["name"] != name]


def renamed_problem(api: dict[str, Any]) -> None:
    text = json.dumps(api["paths"]).replace("unauthenticated", "not-signed-in")
    api["paths"] = json.loads(text)


BREAKS: dict[str, tuple[Change, str]] = {
    "path": (lambda api: api["paths"].pop("/v1/worklist"), "GET /v1/worklist: the operation has gone"),
    "method": (
        lambda api: api["paths"]["/v1/reads/{read_id}"].pop("patch"),
        "PATCH /v1/reads/{read_id}: the operation has gone",
    ),
    "name": (
        lambda api: operation(api, "get", "/v1/cases").update(operationId="cases"),
        "GET /v1/cases: operationId: list_cases has become cases",
    ),
    "parameter": (
        lambda api: without_parameter(api, "get", "/v1/metrics", "site"),
        "GET /v1/metrics: query parameter site: has gone",
    ),
    "page": (
        lambda api: without_parameter(api, "get", "/v1/cases", "cursor"),
        "GET /v1/cases: query parameter cursor: has gone",
    ),
    "next page": (
        lambda api: schema(api, "CasesOut")["properties"].pop("next_cursor"),
        "GET /v1/cases: answer 200.next_cursor: has gone",
    ),
    "smaller pages": (
        lambda api: parameter(api, "get", "/v1/cases", "limit")["schema"].update(maximum=10),
        "GET /v1/cases: query parameter limit: maximum is 10 now",
    ),
    "default": (
        lambda api: parameter(api, "get", "/v1/metrics", "weighting")["schema"].update(default="none"),
        "GET /v1/metrics: query parameter weighting: what is left out means 'none' now, not 'ipw'",
    ),
    "parameter required": (
        lambda api: parameter(api, "get", "/v1/metrics", "site").update(required=True),
        "GET /v1/metrics: query parameter site: is required now",
    ),
    "new required parameter": (
        lambda api: operation(api, "get", "/v1/cases")["parameters"].append(
            {"in": "query", "name": "why", "required": True, "schema": {"type": "string"}}
        ),
        "GET /v1/cases: query parameter why: is new and required",
    ),
    "narrower choice": (
        lambda api: parameter(api, "get", "/v1/metrics", "partition")["schema"]["enum"].remove("all"),
        "GET /v1/metrics: query parameter partition: 'all' is refused now",
    ),
    "answer without a field": (
        lambda api: schema(api, "ReadOut")["properties"].pop("expires_at"),
        "POST /v1/reads: answer 201.expires_at: has gone",
    ),
    "field that may be missing": (
        lambda api: schema(api, "ReadOut")["required"].remove("id"),
        "POST /v1/reads: answer 201.id: may be missing now",
    ),
    "type of a field": (
        lambda api: schema(api, "ReadOut")["properties"].update(id={"type": "integer"}),
        "POST /v1/reads: answer 201.id: integer is new",
    ),
    "null in a field": (
        lambda api: schema(api, "ReadOut")["properties"].update(id={"anyOf": [{"type": "string"}, {"type": "null"}]}),
        "POST /v1/reads: answer 201.id: null is new",
    ),
    "another value in an answer": (
        lambda api: schema(api, "ReadOut")["properties"]["leased_at"].pop("format"),
        "POST /v1/reads: answer 201.leased_at: format is None now",
    ),
    "new required field": (
        lambda api: schema(api, "OwnLabelIn")["required"].append("confidence"),
        "POST /v1/reads/{read_id}/labels: request.confidence: is required now",
    ),
    "field that is refused": (
        lambda api: schema(api, "OwnLabelIn")["properties"].pop("confidence"),
        "POST /v1/reads/{read_id}/labels: request.confidence: has gone",
    ),
    "pattern": (
        lambda api: schema(api, "OwnLabelIn")["properties"]["label"].update(pattern="^x"),
        "POST /v1/reads/{read_id}/labels: request.label: pattern is ^x now",
    ),
    "type that is refused": (
        lambda api: schema(api, "OwnLabelIn")["properties"].update(label={"type": "integer"}),
        "POST /v1/reads/{read_id}/labels: request.label: string is refused now",
    ),
    "success": (
        lambda api: operation(api, "post", "/v1/reads")["responses"].pop("204"),
        "POST /v1/reads: answer 204: has gone",
    ),
    "new success": (
        lambda api: operation(api, "post", "/v1/reads")["responses"].update({"202": {"description": "Later."}}),
        "POST /v1/reads: answer 202: is a new success",
    ),
    "field of an error": (
        lambda api: schema(api, "ProblemDocument")["properties"].pop("detail"),
        "POST /v1/reads: answer 401.detail: has gone",
    ),
    "content type of an error": (
        lambda api: operation(api, "post", "/v1/reads")["responses"]["401"].update(content={"application/json": {}}),
        "POST /v1/reads: answer 401: application/problem+json has gone",
    ),
    "kind of error": (renamed_problem, "errors: unauthenticated has gone"),
    "header": (
        lambda api: operation(api, "post", "/v1/reads")["responses"]["429"].pop("headers"),
        "POST /v1/reads: answer 429: header Retry-After has gone",
    ),
    "body required": (
        lambda api: operation(api, "post", "/v1/reads").update(requestBody={"required": True, "content": {}}),
        "POST /v1/reads: request: a body is required now",
    ),
    "body refused": (
        lambda api: operation(api, "post", "/v1/policies").pop("requestBody"),
        "POST /v1/policies: request: takes no body any more",
    ),
    "access": (
        lambda api: operation(api, "get", "/v1/cases").update(security=[{"api_key": ["manage"]}]),
        "GET /v1/cases: security: what gave access gives none now",
    ),
}


@pytest.mark.parametrize("kind", BREAKS)
def test_each_kind_of_break_is_seen_and_named(kind: str) -> None:
    change, line = BREAKS[kind]
    before = document(PRESENT)
    after = copy.deepcopy(before)
    change(after)
    assert line in breaks(before, after)


def test_what_callers_do_not_notice_is_no_break() -> None:
    before = document(PRESENT)
    assert breaks(before, before) == []
    after = copy.deepcopy(before)
    after["paths"]["/v1/news"] = {"get": operation(after, "get", "/v1/aliases")}
    schema(after, "ReadOut")["properties"]["mood"] = {"type": "string"}
    schema(after, "OwnLabelIn")["properties"]["mood"] = {"type": "string", "default": "calm"}
    parameter(after, "get", "/v1/metrics", "partition")["schema"]["enum"].append("newest")
    parameter(after, "get", "/v1/cases", "limit")["schema"]["maximum"] = 1_000_000
    operation(after, "get", "/v1/cases")["responses"]["418"] = {"description": "teapot"}
    operation(after, "get", "/v1/cases")["security"].append({"api_key": ["reads:own"]})
    operation(after, "get", "/v1/cases")["description"] = "Other words."
    assert breaks(before, after) == []


def test_a_schema_inside_itself_is_compared_once() -> None:
    def tree(kind: str) -> dict[str, Any]:
        node = {
            "type": "object",
            "properties": {"value": {"type": kind}, "next": {"$ref": "#/components/schemas/Node"}},
        }
        media = {"application/json": {"schema": {"$ref": "#/components/schemas/Node"}}}
        get = {"operationId": "tree", "responses": {"200": {"description": "", "content": media}}}
        return {"paths": {"/tree": {"get": get}}, "components": {"schemas": {"Node": node}}}

    assert breaks(tree("number"), tree("integer")) == []
    assert breaks(tree("integer"), tree("number")) == ["GET /tree: answer 200.value: number is new"]
