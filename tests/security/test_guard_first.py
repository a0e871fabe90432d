"""Nobody's body is read before it is known who is calling: asked of every route, at the door of the application."""

import re
from typing import Any

import pytest
from fastapi import Depends

from app.accounts.permissions import RequireScope, get_route_guard, require_route_guards
from app.http.routing import walk_routes
from app.main import create_app
from app.settings import Settings
from tests.support.coroutines import run_async
from tests.support.service import Service

_ID = "01890000-0000-7000-8000-000000000000"
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


def test_every_route_that_takes_a_body_asks_who_is_calling_before_it_reads_a_byte(shared_service: Service) -> None:
    asked, wrong = 0, []
    for route in walk_routes(shared_service.client.app):  # type: ignore[arg-type]
        guard = get_route_guard(route)
        assert guard is not None
        for method in sorted((route.methods or set()) - {"GET", "HEAD"}):
            if not guard.scopes:
                assert route.path in {
                    "/login",
                    "/login/language",
                }  # forms for those who are not known yet: 1 MiB at most
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
