"""What the API says about itself is true: ids, access, words, examples, and its answers to requests at random."""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from fastapi import FastAPI
from jsonschema import Draft202012Validator, FormatChecker

from app.accounts.permissions import get_route_guard, require_monitoring_token
from app.database.tables.values import JobKind
from app.http.descriptions import DescribedModel, read_descriptions
from app.http.errors import PROBLEM_JSON, TYPE_PREFIX
from app.http.openapi import EXAMPLES
from app.http.principal import COOKIE
from app.http.routing import walk_routes
from app.job_table import FUNCTIONS
from app.main import create_app
from app.settings import Settings
from tests.support.postgres import PostgresServer
from tests.support.process import Installation

#: First words of summaries.
VERBS = re.compile(
    "Answer|Assign|Cancel|Change|Check|Compare|Compute|Correct|Create|Decide|Decline|Extend|Fit|Freeze|Get|Import|"
    "Lease|List|Predict|Promote|Recalibrate|Reopen|Retire|Retract|Retry|Return|Revise|Run|Set|Settle|Sign|Start|Submit|Switch|Upload"
)
#: A unit or a range, which the description of each number has.
UNIT = re.compile(
    r"next_cursor|number of|\d to|unit|seconds|hours|days|nats|pixels|or more|version|weight|standard|logarithm|end of"
)


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


def test_whole_numbers_in_an_address_fit_the_columns_they_are_compared_with(document: dict[str, Any]) -> None:
    unbounded = []
    for method, path, operation in operations(document):
        for parameter in operation.get("parameters", ()):
            schema = parameter["schema"]
            for kind in schema.get("anyOf", [schema]):
                if kind.get("type") == "integer" and not kind.get("maximum", math.inf) < 2**31:
                    unbounded.append((method, path, parameter["name"]))
    assert unbounded == []


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


def described(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any], str]]:
    """Every field and parameter: where it is, its name, its schema and its description."""
    schemas = dict(document["components"]["schemas"])
    for _, path, operation in operations(document):
        for parameter in operation.get("parameters", []):
            yield path, parameter["name"], parameter["schema"], parameter["description"]
        for media in operation.get("requestBody", {}).get("content", {}).values():
            schemas[f"body of {path}"] = media["schema"]
    for place, schema in schemas.items():
        for name, field in schema.get("properties", {}).items():
            yield place, name, field, field["description"]


def choices(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """A schema's alternatives, those of its entries included."""
    parts = [schema, *schema.get("anyOf", [])]
    return parts + [part["items"] for part in parts if "items" in part]


def test_every_field_and_parameter_is_described(document: dict[str, Any]) -> None:
    found = list(described(document))
    assert len(found) > 750
    for place, name, schema, text in found:
        where, kinds = f"{place} {name}", {part.get("type") for part in choices(schema)}
        plain = re.sub(r"[^a-z]", "", text.lower())
        assert plain.removeprefix("the") != name.replace("_", ""), where
        assert text[0] == text[0].upper() or text[0] == "`", where
        assert re.search(r"[.`]$", text), where
        assert place.startswith("/") or "null" not in kinds or "null" in text.lower(), where
        if kinds & {"number", "integer"} and "object" not in kinds:
            assert UNIT.search(text.lower()), f"{where}: {text}"


def test_closed_sets_are_enums_and_each_value_is_explained(document: dict[str, Any]) -> None:
    found = 0
    for place, name, schema, text in described(document):
        values = {value for part in choices(schema) for value in part.get("enum", [part.get("const")])} - {None}
        named = set(re.findall(r"`([^`]+)`", text))
        if values:
            assert values <= named, f"{place} {name}: {values - named}"
            found += 1
        elif any(part.get("type") == "string" for part in choices(schema)):
            assert not re.search(r"`[\w-]+`: ", text), f"{place} {name} explains values and is no enum"
    assert found > 40


def test_the_kinds_of_jobs_are_those_of_the_worker() -> None:
    assert get_args(JobKind) == tuple(FUNCTIONS)


def test_every_description_is_used(app: FastAPI, document: dict[str, Any]) -> None:
    names = {parameter["name"].lower() for _, _, o in operations(document) for parameter in o.get("parameters", [])}
    of_operation = {
        f"{kind}.{o['operationId']}"
        for _, _, o in operations(document)
        for kind in ("parameters", "bodies", "examples")
    }
    models = {model.__name__: model for model in subclasses(DescribedModel)}
    shown = {name: models[name] for name in document["components"]["schemas"]}
    fields = {base.__name__: set() for model in shown.values() for base in model.__mro__}
    for model in shown.values():
        for base in model.__mro__:
            fields[base.__name__] |= {field.alias or name for name, field in model.model_fields.items()}
    for section, texts in read_descriptions().items():
        if section in {"parameters", "examples"}:
            assert texts.keys() <= names, texts.keys() - names
        elif section == "fields":
            assert texts.keys() <= set().union(*fields.values())
        elif section not in of_operation:
            assert texts.keys() <= fields[section], f"{section}: {texts.keys() - fields[section]}"


def subclasses(kind: type[DescribedModel]) -> Iterator[type[DescribedModel]]:
    for inner in kind.__subclasses__():
        yield inner
        yield from subclasses(inner)


def test_summaries_are_short_commands(document: dict[str, Any]) -> None:
    tags = {tag["name"] for tag in document["tags"]}
    for _, path, operation in operations(document):
        words = operation["summary"].split()
        assert VERBS.fullmatch(words[0]), path
        assert 2 <= len(words) <= 6, path
        assert len(operation["description"]) > len(operation["summary"]) + 1, path
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
        names = [(kind["schema"], name) for kind in media for name in kind.get("examples", {}) if name != "example"]
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
    assert EXAMPLES.keys() == names, "play the examples again"
    for _, path, operation in operations(document):
        for parameter in operation.get("parameters", []):
            closed = {"enum", "default"} & set().union(*choices(parameter["schema"]))
            assert closed or "example" in parameter, f"{path} {parameter['name']}"
        body = operation.get("requestBody", {}).get("content", {})
        assert not body or any({"example", "examples"} & media.keys() for media in body.values()), path
        for status, answer in operation["responses"].items():
            for media in answer.get("content", {}).values() if status < "300" else ():
                assert {"example", "examples"} & media.keys(), f"{path} {status}"


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
