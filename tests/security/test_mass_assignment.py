"""What callers send and what they get are described apart, and nothing that is not described is taken (T11)."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.service import Service

#: What a caller would like to decide, and the server does.
WANTED = {"id": "0", "created_by": "somebody", "role": "admin", "need": 1, "partition": "evaluation", "blind": True}


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def references(value: Any) -> Iterator[str]:
    """Names of the schemas that a part of the document refers to."""
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"].rpartition("/")[2]
        for name, inner in value.items():
            if name not in {"example", "examples"}:  # what was played refers to nothing
                yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def reached(document: dict[str, Any], names: set[str]) -> set[str]:
    """These schemas and all that they contain."""
    seen: set[str] = set()
    todo = set(names)
    while todo:
        name = todo.pop()
        seen.add(name)
        todo |= set(references(document["components"]["schemas"][name])) - seen
    return seen


@pytest.fixture
def document(shared_service: Service) -> dict[str, Any]:
    return dict(shared_service.client.get("/openapi.json").json())


def test_no_schema_of_a_request_takes_unknown_fields(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    asked = reached(document, {n for *_, one in operations(document) for n in references(one.get("requestBody", {}))})
    assert "PolicyIn" in asked
    objects = {name for name in asked if schemas[name].get("type") == "object"}
    assert {name for name in objects if schemas[name].get("additionalProperties") is not False} == set()


def test_what_is_sent_and_what_is_answered_are_described_apart(document: dict[str, Any]) -> None:
    sent = reached(document, {n for *_, one in operations(document) for n in references(one.get("requestBody", {}))})
    answered = reached(document, {n for *_, one in operations(document) for n in references(one.get("responses", {}))})
    schemas = document["components"]["schemas"]
    assert {name for name in sent & answered if schemas[name].get("type") == "object"} == set()


@pytest.mark.parametrize("name", WANTED)
def test_a_field_that_the_server_decides_is_refused(shared_service: Service, name: str) -> None:
    policy = {"rule": "disagreement", "threshold": 0.2, "adjudicate_below": None, "reveal": "never", "reason": "test"}
    answer = shared_service.post("admin", "/v1/policies", json=policy | {name: WANTED[name]})
    assert (answer.status_code, name in answer.text) == (422, True), answer.text


@pytest.mark.parametrize("query", ["partition=nonsense", "sort=password", "limit=0", "limit=100000", "cursor=x"])
def test_filters_and_orders_are_those_that_are_listed(shared_service: Service, query: str) -> None:
    answer = shared_service.get("viewer", f"/v1/cases?{query}")
    assert (answer.status_code, query.partition("=")[0] in answer.text) == (422, True), answer.text


def test_a_misspelt_filter_is_refused_by_name_and_only_to_callers(shared_service: Service) -> None:
    """Ignored, it would answer another question than the one that was asked."""
    answer = shared_service.get("admin", "/v1/metrics?partitions=all&until=2026-01-01T00:00:00Z")
    (fault,) = answer.json()["errors"]
    assert (answer.status_code, fault["where"]) == (422, ["query", "partitions"])
    assert fault["what"].endswith("there are group_by, partition, release, since, site, until, weighting")
    assert shared_service.client.get("/v1/metrics?partitions=all").status_code == 401


def test_every_list_refuses_queries_that_it_does_not_have(shared_service: Service, document: dict[str, Any]) -> None:
    lists = [path for verb, path, _ in operations(document) if verb == "GET" and "{" not in path and path[:4] == "/v1/"]
    assert len(lists) >= 8
    who = {"/v1/reads": "anna", "/v1/practice": "anna"}
    answers = {path: shared_service.get(who.get(path, "admin"), f"{path}?x=1").status_code for path in lists}
    assert {path: status for path, status in answers.items() if status != 422} == {}
