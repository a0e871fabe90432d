"""Who may do what: every route against every caller, guards before bodies, no field or filter that nobody offered."""

import hmac
import json
import os
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastapi
import pytest
from fastapi import APIRouter, Depends
from pydantic import SecretStr, ValidationError
from starlette.middleware.trustedhost import TrustedHostMiddleware

from app.accounts import people as auth
from app.accounts import permissions
from app.accounts.permissions import (
    WALKED,
    RequireScope,
    get_route_guard,
    list_documented_operations,
    require_route_guards,
)
from app.audit.chain import keys
from app.http import middleware
from app.http.limiter import RateLimit
from app.http.routing import walk_routes
from app.main import attach_context, create_app
from app.settings import Settings
from tests.app.test_leases import set_policy
from tests.support.coroutines import run_async
from tests.support.process import METRICS_TOKEN
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png
from tests.test_api_description import operations

MATRIX = Path(__file__).parent / "route_matrix.json"
CALLERS = (None, "viewer", "anna", "admin", "outside", "predicting", "writing")
_ID = "01890000-0000-7000-8000-000000000000"


def add_program(service: Service, name: str, scope: str) -> None:
    with service.context.database.write() as session:
        auth.add_account(session, service.context.keys.audit, name, "service")
        service.keys[name] = auth.add_key(session, service.context.keys.audit, name, [scope])[1]


def outcome(status: int) -> str:
    return {401: "who are you", 403: "not allowed"}.get(status, "let through")


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.both_databases
@pytest.mark.slow_on_second_database
def test_every_route_against_every_caller(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.web.jobs._EVENT_SECONDS", 0.001)
    add_program(service, "predicting", "predict")
    add_program(service, "writing", "cases:write")
    found = {}
    for route in walk_routes(service.client.app):  # type: ignore[arg-type]
        path = re.sub(r"{\w+_id}", _ID, route.path)
        for method in sorted(route.methods or ()):
            row = {}
            for who in CALLERS:
                answer = service.call(who, method, path, follow_redirects=False, headers={"Idempotency-Key": "k"})
                row[who or "nobody"] = outcome(answer.status_code)
            found[f"{method} {route.path}"] = row
    if os.environ.get("SECONDREAD_WRITE_MATRIX"):  # after a deliberate change; read the difference before committing it
        MATRIX.write_text(json.dumps(found, indent=1) + "\n")
    assert found == json.loads(MATRIX.read_text()), json.dumps(found, indent=1)


@undone("T9", "a route without a guard stops the start-up", permissions, "get_route_guard", lambda _: True)
def test_a_route_without_a_guard_stops_the_start_up(settings: Settings) -> None:
    app = create_app(settings)

    @app.get("/forgotten")
    def forgotten() -> str:
        return "open"

    with pytest.raises(RuntimeError, match=r"without a policy: .*/forgotten"):
        require_route_guards(app)
    assert all(get_route_guard(route) for route in walk_routes(app) if route.path != "/forgotten")


@pytest.mark.slow
@pytest.mark.ci
def test_a_route_that_the_check_does_not_see_stops_the_start_up(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another FastAPI the walk may find nothing, or the pages only."""
    app = create_app(settings)
    hidden = APIRouter(include_in_schema=False)
    hidden.add_api_route("/elsewhere", lambda: "open")
    with pytest.raises(RuntimeError, match="/elsewhere"):
        require_route_guards(app, [hidden])
    monkeypatch.setattr("app.accounts.permissions.WALKED", "another")
    require_route_guards(app)
    seen = [route for route in walk_routes(app) if not route.path.startswith("/v1/cases")]
    for routes, unseen in (([], "all|/v1"), (seen, "/v1/cases")):
        monkeypatch.setattr("app.accounts.permissions.walk_routes", lambda _, routes=routes: iter(routes))
        with pytest.raises(RuntimeError, match=unseen):
            require_route_guards(app)


def test_with_this_fastapi_the_walk_sees_every_operation_of_the_document(settings: Settings) -> None:
    app = create_app(settings)
    seen = {(method, route.path) for route in walk_routes(app) for method in route.methods or ()}
    assert list_documented_operations(app) <= seen
    assert fastapi.__version__ == WALKED


def test_a_route_names_one_guard(settings: Settings) -> None:
    app = create_app(settings)

    @app.get("/both", dependencies=[Depends(RequireScope("cases:read")), Depends(RequireScope("manage"))])
    def both() -> str:
        return "which?"

    with pytest.raises(RuntimeError, match="/both has 2 guards"):
        require_route_guards(app)


def test_manage_alone_freezes_an_evaluation_as_the_reference_says(service: Service) -> None:
    add_program(service, "managing", "manage")
    assert service.post("managing", "/v1/evaluations", json={}).status_code == 202
    assert service.get("managing", "/v1/evaluations").status_code == 403


def test_a_caller_who_sends_too_much_is_asked_to_wait_and_nobody_else(service: Service) -> None:
    app: Any = service.client.app
    app.state.rate_limit = RateLimit(3)
    assert [service.get("viewer", "/v1/policies").status_code for _ in range(4)] == [200, 200, 200, 429]
    refused = service.get("viewer", "/v1/policies")
    assert refused.json()["type"] == "urn:secondread:problem:rate-limited"
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert service.get("admin", "/v1/policies").status_code == 200
    assert service.client.get("/healthz").status_code == 200
    app.state.rate_limit = RateLimit(0)
    assert {service.get("viewer", "/v1/policies").status_code for _ in range(9)} == {200}


@pytest.mark.parametrize(
    "header",
    [
        *[b"Bearer x", b"Bearer sr_1_2", b"Bearer ", b"Basic YTpi", b"Bearer sr_" + b"0" * 32 + b"_" + b"0" * 64],
        *[b"\xff", b"Bearer sr_\xff_x", b"Bearer sr_" + b"0" * 32 + b"_\xff"],
    ],
)
def test_credentials_that_are_not_valid_are_401(shared_service: Service, header: bytes) -> None:
    response = shared_service.client.get("/v1/cases", headers={"Authorization": header})
    assert (response.status_code, response.json()["type"]) == (401, "urn:secondread:problem:unauthenticated")
    assert response.headers["www-authenticate"] == "Bearer"


def test_a_revoked_and_an_expired_key_stop_working(service: Service) -> None:
    token = service.keys["viewer"]
    with service.context.database.write() as session:
        principal = auth.principal_of_key(service.context.database, token)[0]
        assert principal.role == "viewer"
        key, expired = auth.add_key(session, service.context.keys.audit, "viewer", [], datetime(2020, 1, 1, tzinfo=UTC))
        assert key.secret_sha256 not in expired
    assert service.client.get("/v1/cases", headers={"Authorization": f"Bearer {expired}"}).status_code == 401
    with service.context.database.write() as session:
        auth.revoke_key(session, service.context.keys.audit, uuid.UUID(hex=token.split("_")[1]))
    assert service.get("viewer", "/v1/cases").status_code == 401


def test_a_key_of_an_annotator_takes_no_scopes(service: Service) -> None:
    with service.context.database.write() as session, pytest.raises(ValueError, match="blind"):
        auth.add_key(session, service.context.keys.audit, "anna", ["cases:read"])


@undone("T14", "another host name is refused", TrustedHostMiddleware, "__call__", lambda self, *call: self.app(*call))
def test_another_host_is_refused(shared_service: Service) -> None:
    assert shared_service.client.get("/healthz", headers={"Host": "elsewhere.example"}).status_code == 400


@undone("T13", "every answer carries the content policy", middleware, "_HEADERS", middleware._HEADERS[1:])
def test_every_answer_carries_the_security_headers(shared_service: Service) -> None:
    for path in ("/login", "/healthz", "/v1/cases", "/static/style.css"):
        headers = shared_service.client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_style_and_script_are_kept_under_the_digest_of_their_content_only(shared_service: Service) -> None:
    page = shared_service.client.get("/login").text
    for name in ("style.css", "app.js", "icon.svg"):
        address = next(part for part in page.split('"') if part.startswith("/static/") and part.endswith(f"/{name}"))
        assert "immutable" in shared_service.client.get(address).headers["cache-control"]
        for other in (f"/static/{name}", f"/static/000000000000/{name}"):
            assert shared_service.client.get(other).headers["cache-control"] == "no-cache"
            assert shared_service.client.get(other).content == shared_service.client.get(address).content
    assert shared_service.client.get("/login").headers["cache-control"] == "no-store"


@undone("T12", "a short or known secret stops the start-up", keys, "_require_strong_secret", lambda value: value)
@pytest.mark.parametrize("secret", ["", "short", "changeme" * 1, "secret12345678901234567890123456789012"])
def test_a_weak_secret_stops_the_start_up(secret: str) -> None:
    with pytest.raises(ValueError, match="secret_key"):
        Settings(secret_key=secret)  # type: ignore[arg-type]


def test_unauthenticated_people_are_sent_to_the_login(shared_service: Service) -> None:
    answer = shared_service.client.get("/worklist", headers={"Accept": "text/html"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")


_TYPES = ("application/json", "application/zip", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x")


def ask(service: Service, method: str, path: str, who: str | None, kind: str) -> tuple[int, int]:
    """Status of the answer, and how often the application asked for a piece of the body, which has no end."""
    headers = [(b"host", b"testserver"), (b"content-type", kind.encode()), (b"transfer-encoding", b"chunked")]
    headers.append((b"idempotency-key", b"k"))
    if who is not None:
        headers.append((b"authorization", f"Bearer {service.keys[who]}".encode()))
    scope = {
        **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path},
        **{"raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http", "headers": headers},
        **{"client": ("127.0.0.1", 1), "server": ("testserver", 80), "state": {}},
    }
    pieces, statuses = 0, []

    async def receive() -> dict[str, Any]:
        nonlocal pieces
        pieces += 1
        assert pieces < 5, "the body is being read"
        return {"type": "http.request", "body": b"x" * 65536, "more_body": True}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    try:
        run_async(service.client.app(scope, receive, send))  # type: ignore[arg-type]
    except AssertionError:
        return 0, pieces
    return statuses[0], pieces


@pytest.mark.slow
@pytest.mark.ci
def test_every_route_that_takes_a_body_asks_who_is_calling_before_it_reads_a_byte(shared_service: Service) -> None:
    asked, wrong = 0, []
    for route in walk_routes(shared_service.client.app):  # type: ignore[arg-type]
        guard = get_route_guard(route)
        assert guard is not None
        for method in sorted((route.methods or set()) - {"GET", "HEAD"}):
            if not guard.scopes:
                # forms for those who are not available yet: 1 MiB at most
                assert route.path in {"/login", "/login/language", "/invitations/{token}"}
                continue
            path = re.sub(r"{\w+}", _ID, route.path)
            callers: list[tuple[str | None, int]] = [(None, 401)]
            if not guard.scopes & {"reads:own", "labels:write"}:
                callers.append(("outside", 403))
            for who, status in callers:
                for kind in _TYPES:
                    asked += 1
                    answer = ask(shared_service, method, path, who, kind)
                    if answer != (status, 0):
                        wrong.append((method, path, who, kind, answer))
    assert asked > 100
    assert wrong == []


def test_a_route_that_would_read_the_body_first_stops_the_start_up(settings: Settings) -> None:
    app = create_app(settings)
    app.add_api_route("/late", lambda: "open", methods=["POST"], dependencies=[Depends(RequireScope("manage"))])
    with pytest.raises(RuntimeError, match=r"read the body before .*/late"):
        require_route_guards(app)


#: What a caller would like to decide, and the server does.
WANTED = {"id": "0", "created_by": "somebody", "role": "admin", "need": 1, "partition": "evaluation", "blind": True}


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


def reached_from(document: dict[str, Any], part: str) -> set[str]:
    """Schemas of a part of any operation, and all that they contain."""
    seen: set[str] = set()
    todo = {name for *_, operation in operations(document) for name in references(operation.get(part, {}))}
    while todo:
        name = todo.pop()
        seen.add(name)
        todo |= set(references(document["components"]["schemas"][name])) - seen
    return seen


@pytest.fixture
def document(shared_service: Service) -> dict[str, Any]:
    return dict(shared_service.client.get("/openapi.json").json())


def test_no_schema_of_a_request_takes_unknown_fields(document: dict[str, Any]) -> None:
    schemas, asked = document["components"]["schemas"], reached_from(document, "requestBody")
    assert "PolicyIn" in asked
    objects = {name for name in asked if schemas[name].get("type") == "object"}
    assert {name for name in objects if schemas[name].get("additionalProperties") is not False} == set()


def test_what_is_sent_and_what_is_answered_are_described_apart(document: dict[str, Any]) -> None:
    schemas, both = document["components"]["schemas"], ("requestBody", "responses")
    sent, answered = (reached_from(document, part) for part in both)
    assert {name for name in sent & answered if schemas[name].get("type") == "object"} == set()


@pytest.mark.parametrize("name", WANTED)
def test_a_field_that_the_server_decides_is_refused(shared_service: Service, name: str) -> None:
    policy = {"rule": "disagreement", "threshold": 0.2, "adjudicate_below": None, "reveal": "never", "reason": "test"}
    answer = shared_service.post("admin", "/v1/policies", json=policy | {name: WANTED[name]})
    assert (answer.status_code, name in answer.text) == (422, True), answer.text


@pytest.mark.parametrize("field", ["threshold", "audit_rate", "repeat_rate", "max_labels"])
def test_true_and_false_are_no_numbers(shared_service: Service, field: str) -> None:
    for value in (True, False):
        answer = shared_service.post("admin", "/v1/policies", json={"threshold": 0.2, "reason": "test", field: value})
        assert (answer.status_code, answer.json()["errors"][0]["where"]) == (422, ["body", field])


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
    lists = [path for verb, path, _ in operations(document) if verb == "get" and "{" not in path and path[:4] == "/v1/"]
    assert len(lists) >= 8
    who = {"/v1/reads": "anna", "/v1/practice": "anna"}
    answers = {path: shared_service.get(who.get(path, "admin"), f"{path}?x=1").status_code for path in lists}
    assert {path: status for path, status in answers.items() if status != 422} == {}


@undone("T20", "monitoring needs its token", hmac, "compare_digest", lambda *_: True)
@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", f"Basic {METRICS_TOKEN}", f"Bearer {METRICS_TOKEN}x"])
def test_metrics_need_their_token(shared_service: Service, header: str) -> None:
    answer = shared_service.client.get("/metrics", headers={"Authorization": header} if header else {})
    assert (answer.status_code, answer.json()["type"]) == (401, "urn:secondread:problem:unauthenticated")
    assert "secondread_" not in answer.text
    assert "SECONDREAD_METRICS_TOKEN" in answer.json()["detail"]


def test_without_a_token_in_the_settings_there_are_no_metrics(service: Service) -> None:
    settings = service.context.settings
    attach_context(service.client.app, settings.model_copy(update={"metrics_token": None}))  # type: ignore[arg-type]
    for headers in ({}, {"Authorization": f"Bearer {METRICS_TOKEN}"}, {"Authorization": "Bearer "}):
        answer = service.client.get("/metrics", headers=headers)
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:secondread:problem:forbidden")
        assert "SECONDREAD_METRICS_TOKEN" in answer.json()["detail"]


def test_a_short_token_stops_the_start_up() -> None:
    with pytest.raises(ValidationError, match="at least 32 bytes"):
        Settings(metrics_token=SecretStr("short"))


def told(service: Service) -> dict[str, str]:
    """What monitoring and the public pages say of the work that there is, without counts of requests."""
    lines = service.metrics().splitlines()
    of_process = r"#|(secondread_request|process_|python_|secondread_batch)"
    exposed = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in lines if not re.match(of_process, line)}
    public = ("/healthz", "/readyz", "/login", "/openapi.json")
    return exposed | {path: service.client.get(path).text for path in public}


def test_nothing_that_monitoring_says_tells_how_often_a_case_will_be_read(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.http.observability._COUNT_SECONDS", -1.0)  # count at every scrape
    heard = {}
    for number, (name, threshold, audit_rate) in enumerate((("once", 0.99, 1e-9), ("twice", 0.0, 0.1))):
        set_policy(service, threshold=threshold, audit_rate=audit_rate)
        before = told(service)
        service.add_case(uuid.uuid4().hex, cell_png(number))
        after = told(service)
        heard[name] = {key: after[key] for key in after if after[key] != before.get(key)}
    assert heard["once"] == heard["twice"]
