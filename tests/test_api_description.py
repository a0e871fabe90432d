"""What the API says about itself is true: ids, access, words, examples, and its answers to requests at random."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from jsonschema import Draft202012Validator, FormatChecker

from app.accounts.permissions import get_route_guard, require_monitoring_token
from app.http.errors import PROBLEM_JSON, TYPE_PREFIX
from app.http.openapi import EXAMPLES
from app.http.principal import COOKIE
from app.http.routing import walk_routes
from app.main import create_app
from app.settings import Settings
from tests.support.postgres import PostgresServer
from tests.support.process import Installation

#: Answers that are no JSON, or none.
WITHOUT_JSON = {"get_image", "get_field", "get_practice_image", "release_read", "prometheus"}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    return create_app(Settings(home=tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="module")
def document(app: FastAPI) -> dict[str, Any]:
    # as clients get it
    return dict(json.loads(json.dumps(app.openapi())))


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def test_every_operation_has_the_name_of_its_route_and_no_two_are_alike(app: FastAPI, document: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(names)) == len(names) > 50
    assert set(names) <= {route.operation_id for route in walk_routes(app)}
    assert all(name.isidentifier() for name in names)


def test_each_operation_says_who_may_call_as_its_guard_does(app: FastAPI, document: dict[str, Any]) -> None:
    schemes = document["components"]["securitySchemes"]
    assert schemes["api_key"]["scheme"] == "bearer"
    assert schemes["session"]["name"] == COOKIE
    routes = {(method.lower(), route.path): route for route in walk_routes(app) for method in route.methods or ()}
    for method, path, operation in operations(document):
        policy = get_route_guard(routes[method, path])
        assert policy is not None
        for scheme in ("api_key", "session"):
            scopes = [scope for entry in operation["security"] for scope in entry.get(scheme, [])]
            assert sorted(scopes) == sorted(policy.scopes), path
        assert ({"metrics_token": []} in operation["security"]) == (policy is require_monitoring_token), path
    public = [path for _, path, operation in operations(document) if operation["security"] == []]
    assert public == ["/healthz", "/readyz"]


def test_words_are_for_people(document: dict[str, Any]) -> None:
    tags = {tag["name"] for tag in document["tags"]}
    for _, path, operation in operations(document):
        summary, name = operation["summary"], operation["operationId"]
        assert summary.lower().replace(" ", "_") != name, path
        assert 3 <= len(summary) <= 120, path
        assert "``" not in operation["description"], path
        assert set(operation["tags"]) <= tags, path
        assert not [a for a in operation["responses"].values() if a["description"] == "Successful Response"], path


def test_errors_are_problem_documents_and_nothing_else(document: dict[str, Any]) -> None:
    for _, path, operation in operations(document):
        for status, answer in operation["responses"].items():
            if path.startswith("/v1") and int(status) >= 400:
                assert list(answer["content"]) == [PROBLEM_JSON], f"{path} {status}"
                codes = answer["content"][PROBLEM_JSON]["examples"]
                assert ", ".join(codes) == answer["description"], f"{path} {status}"
                for code in codes:
                    shown = document["components"]["examples"][code]["value"]
                    assert (shown["type"], shown["status"]) == (TYPE_PREFIX + code, int(status))


def test_every_example_is_what_its_schema_says(document: dict[str, Any]) -> None:
    found = 0
    for _, path, operation in operations(document):
        bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
        media = [kind for body in bodies for kind in body.get("content", {}).values()]
        values = [(kind["schema"], kind["example"]) for kind in media if "example" in kind]
        names = [(kind["schema"], name) for kind in media for name in kind.get("examples", {})]
        values += [(schema, document["components"]["examples"][name]["value"]) for schema, name in names]
        values += [(p["schema"], p["example"]) for p in operation.get("parameters", []) if "example" in p]
        for schema, value in values:
            whole = {**schema, "components": document["components"]}
            checker = Draft202012Validator(whole, format_checker=FormatChecker())
            assert [error.message for error in checker.iter_errors(value)] == [], f"{path} {operation['operationId']}"
            found += 1
    assert found > 400


def test_every_operation_has_an_example_of_what_is_sent_and_answered(document: dict[str, Any]) -> None:
    names = {operation["operationId"] for _, _, operation in operations(document)}
    assert names - EXAMPLES.keys() == {"prometheus"}
    assert EXAMPLES.keys() <= names, "examples of operations that are gone: play them again"
    for _, path, operation in operations(document):
        body = operation.get("requestBody", {}).get("content", {}).get("application/json")
        assert body is None or "example" in body, path
        if operation["operationId"] not in WITHOUT_JSON:
            shown = [a.get("content", {}).get("application/json", {}) for a in operation["responses"].values()]
            assert any("example" in media for media in shown), path


ROOT = Path(__file__).parents[1]
ROLES = {"admin": "admin", "viewer": "viewer", "anna": "annotator", "robot": "service"}
ALL = "examples,coverage,fuzzing,stateful"
QUICK, LONG = 4, 60


def fuzz(made: Installation, token: str | None, phases: str, examples: int) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "schemathesis"), "--config-file", "tests/support/schemathesis.toml"]
    command += ["run", f"{made.address}/openapi.json", "--max-examples", str(examples), "--seed", "1", "--workers", "1"]
    command += ["--phases", phases, "--no-color"]
    if token is not None:
        command += ["--header", f"Authorization: Bearer {token}"]
    environment = os.environ | {"SCHEMATHESIS_HOOKS": "tests.support.schemathesis_hooks", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)


def slow(*values: object) -> object:
    return pytest.param(*values, marks=[pytest.mark.slow, pytest.mark.ci])


def heavy(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.heavy)


@pytest.mark.parametrize(
    ("database", "who", "phases", "examples"),
    [
        slow("sqlite", "admin", ALL, QUICK),
        # of the cases made from the schema alone an annotator is refused nearly all
        slow("postgresql", "anna", "fuzzing,stateful", QUICK),
        *[heavy(database, who, ALL, LONG) for database in ("sqlite", "postgresql") for who in (*ROLES, None)],
    ],
)
def test_the_api_is_what_its_openapi_says(
    database: str,
    who: str | None,
    phases: str,
    examples: int,
    tmp_path: Path,
    tiny_release: Path,
    request: pytest.FixtureRequest,
) -> None:
    url = None
    if database == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.url(server.create())
    made = Installation(tmp_path / "home", url)
    keys = made.prepare(tiny_release, **ROLES)
    made.environment |= {"SECONDREAD_WORKER": "false"}
    with made:
        made.start()
        found = fuzz(made, None if who is None else keys[who], phases, examples)
        made.stop()
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]
    log = (tmp_path / "server.log").read_text()
    assert '"status": 500' not in log
