"""Who may do what: every route against every kind of caller equals the checked-in matrix."""

import json
import os
import re
from pathlib import Path
from typing import Any

import fastapi
import pytest
from fastapi import APIRouter, Depends
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
from app.main import create_app
from app.settings import Settings
from tests.support.sabotage import undone
from tests.support.service import Service

MATRIX = Path(__file__).parent / "route_matrix.json"
CALLERS = (None, "viewer", "anna", "admin", "outside", "predicting", "writing")
_ID = "01890000-0000-7000-8000-000000000000"


def outcome(status: int) -> str:
    return {401: "who are you", 403: "not allowed"}.get(status, "let through")


@pytest.mark.ci
@pytest.mark.both_databases
@pytest.mark.slow_on_second_database
def test_every_route_against_every_caller(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.web.jobs._EVENT_SECONDS", 0.001)
    with service.context.database.write() as session:
        for name, scope in (("predicting", "predict"), ("writing", "cases:write")):
            auth.add_account(session, service.context.keys.audit, name, "service")
            service.keys[name] = auth.add_key(session, service.context.keys.audit, name, [scope])[1]
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


def test_a_key_is_refused_in_the_name_of_the_scope_that_it_lacks(service: Service) -> None:
    for path, scopes in (("/v1/audit-events", "manage"), (f"/v1/cases/{_ID}", "cases:read or reads:own")):
        answer = service.get("outside", path)
        assert answer.status_code == 403
        assert answer.json()["detail"] == f"this needs the scope {scopes}, which your role or key does not have"


def test_manage_alone_freezes_an_evaluation_as_the_reference_says(service: Service) -> None:
    with service.context.database.write() as session:
        auth.add_account(session, service.context.keys.audit, "managing", "service")
        service.keys["managing"] = auth.add_key(session, service.context.keys.audit, "managing", ["manage"])[1]
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
    "header", ["Bearer x", "Bearer sr_1_2", "Bearer ", "Basic YTpi", f"Bearer sr_{'0' * 32}_{'0' * 64}"]
)
def test_credentials_that_are_not_valid_are_401(shared_service: Service, header: str) -> None:
    response = shared_service.client.get("/v1/cases", headers={"Authorization": header})
    assert (response.status_code, response.json()["type"]) == (401, "urn:secondread:problem:unauthenticated")
    assert response.headers["www-authenticate"] == "Bearer"


def test_a_revoked_and_an_expired_key_stop_working(service: Service) -> None:
    from datetime import UTC, datetime

    token = service.keys["viewer"]
    with service.context.database.write() as session:
        principal = auth.principal_of_key(service.context.database, token)[0]
        assert principal.role == "viewer"
        key, expired = auth.add_key(session, service.context.keys.audit, "viewer", [], datetime(2020, 1, 1, tzinfo=UTC))
        assert key.secret_sha256 not in expired
    assert service.client.get("/v1/cases", headers={"Authorization": f"Bearer {expired}"}).status_code == 401
    from uuid import UUID

    with service.context.database.write() as session:
        auth.revoke_key(session, service.context.keys.audit, UUID(hex=token.split("_")[1]))
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
