"""Requests that nobody friendly sends: each a clear answer, none a 500."""

import threading
from typing import Any

import pytest

from app.http import limiter
from app.http.limiter import MAX_ARCHIVE, LimitPlace
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png

_BOUNDARY = b"a-boundary"
_FORM = {"Content-Type": "multipart/form-data; boundary=a-boundary"}


def multipart(field: bytes, value: bytes, file_name: bytes = b"x.png") -> bytes:
    return b"".join(
        [
            b"--"
            + _BOUNDARY
            + b'\r\nContent-Disposition: form-data; name="image"; filename="'
            + file_name
            + b'"\r\n\r\n',
            cell_png() + b"\r\n--" + _BOUNDARY + b'\r\nContent-Disposition: form-data; name="' + field + b'"\r\n\r\n',
            value + b"\r\n--" + _BOUNDARY + b"--\r\n",
        ]
    )


BODIES: dict[str, bytes] = {
    "no UTF-8 in a value": multipart(b"external_id", b"\xff\xfe"),
    "no UTF-8 in a file name": multipart(b"external_id", b"fine", b"\xff\x00"),
    "no UTF-8 in a field name": multipart(b"\xff", b"x"),
    "a surrogate": multipart(b"external_id", b"\xed\xa0\x80"),
    "a part too large": multipart(b"external_id", b"a" * 70_000),
    "cut in the middle": multipart(b"external_id", b"fine")[:5000],
    "no part at all": b"nothing",
    "empty": b"",
}


@pytest.mark.both_databases
@pytest.mark.parametrize("name", BODIES)
def test_malformed_multipart(shared_service: Service, name: str) -> None:
    response = shared_service.post("admin", "/v1/cases", content=BODIES[name], headers=dict(_FORM))
    assert 200 <= response.status_code < 500, response.text


@pytest.mark.both_databases
@pytest.mark.parametrize("metadata", ['{"a":"\\ud800"}', '{"\\ud800":"a"}', '{"a":' * 3000, '{"a":NaN}', '{"a":1e999}'])
def test_malformed_metadata(shared_service: Service, metadata: str) -> None:
    fields = {"external_id": "m", "metadata": metadata}
    response = shared_service.post("admin", "/v1/cases", files={"image": ("x", cell_png())}, data=fields)
    assert response.status_code == 422


REQUESTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "multipart without a boundary": ("POST", "/v1/cases", {"headers": {"Content-Type": "multipart/form-data"}}),
    "times before year 1 in UTC": ("GET", "/v1/metrics?since=0001-01-01T00:00:00%2B14:00", {}),
    "times after year 9999 in UTC": ("GET", "/v1/metrics?until=9999-12-31T23:59:59-14:00", {}),
    "a time without a zone": ("GET", "/v1/metrics?since=2020-01-01T00:00:00", {}),
    "NUL in a query": ("GET", "/v1/cases/01890000-0000-7000-8000-000000000000/posterior?exclude_annotator=%00", {}),
    "a cursor of no bytes": ("GET", "/v1/cases?cursor=%FF%00", {}),
    "NUL in a path": ("GET", "/v1/cases/%00", {}),
    "another method": ("PUT", "/v1/cases", {}),
    "a path out of the static folder": ("GET", "/static/%2e%2e/%2e%2e/main.py", {}),
    "a session of no ASCII": ("GET", "/worklist", {"headers": {"Cookie": b"sr_session=\xff"}}),
    "NUL in a page's address": ("GET", "/audit?actor=%00&action=%00&object_id=%00", {}),
    "NUL in the address of a list": ("GET", "/worklist?site=%00&search=%00", {}),
    "a login of no UTF-8": ("POST", "/login", {"content": b"name=%ED%A0%80&password=%00"}),
    "a login with NUL": ("POST", "/login", {"content": b"name=%00&password=%00"}),
    "an idempotency key of no ASCII": ("POST", "/v1/cases", {"headers": {"Idempotency-Key": "é".encode()}}),
}


@pytest.mark.both_databases
@pytest.mark.parametrize("name", REQUESTS)
def test_strange_requests(shared_service: Service, name: str) -> None:
    method, path, options = REQUESTS[name]
    if "content" in options:
        options = options | {"headers": {"Content-Type": "application/x-www-form-urlencoded"}}
    response = shared_service.call("admin", method, path, **options)
    assert 400 <= response.status_code < 500 or path == "/worklist", response.text


@pytest.mark.parametrize("token", [b"Bearer sr_\xff_x", b"Bearer sr_" + b"0" * 32 + b"_\xff", b"\xff"])
def test_credentials_of_no_ascii(shared_service: Service, token: bytes) -> None:
    assert shared_service.client.get("/v1/cases", headers={"Authorization": token}).status_code == 401


def test_a_defect_tells_the_caller_nothing(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("SECRET-DETAIL")

    monkeypatch.setattr(service.context.inference, "predict", fail)
    response = service.post("viewer", "/v1/predictions", files={"image": ("x", cell_png())})
    assert (response.status_code, response.headers["content-type"]) == (500, "application/problem+json")
    assert "SECRET-DETAIL" not in response.text
    assert response.headers["x-request-id"] in response.text
    asked = service.get("viewer", "/v1/cases").headers
    same = {"x-content-type-options", "content-security-policy", "cache-control", "referrer-policy"}
    assert {name: response.headers.get(name) for name in same} == {name: asked.get(name) for name in same}


def test_more_predictions_than_the_queue_holds_are_refused_with_retry_after(service: Service) -> None:
    here = service.context.inference.here
    with LimitPlace(here, here.size):  # a run that takes all cores, and as many behind it as may wait
        behind = [LimitPlace(here) for _ in range(here.queue or 0)]
        for place in behind:
            here.enter(place, threading.Event)
        response = service.post("viewer", "/v1/predictions", files={"image": ("x", cell_png())})
        for place in behind:
            here.leave(place, waiting=True)
    assert (response.status_code, response.headers["retry-after"]) == (429, "2")
    assert service.post("viewer", "/v1/predictions", files={"image": ("x", cell_png())}).status_code == 200


@undone(
    "T1",
    "a body of more than a megabyte is refused before it is parsed",
    limiter,
    "MAX_BODY",
    MAX_ARCHIVE,
)
def test_a_body_of_more_than_a_megabyte_is_refused_declared_or_not(shared_service: Service) -> None:
    body = b'{"reason":"' + b"a" * (5 * 1024**2) + b'"}'
    chunks = iter([body[start : start + 1024**2] for start in range(0, len(body), 1024**2)])
    for content in (body, chunks):
        answer = shared_service.post("admin", "/v1/policies", content=content, headers={"Content-Type": "text/json"})
        assert answer.status_code == 413
