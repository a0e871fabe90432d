"""What is public, and what monitoring says: nothing that tells a plan, and the numbers only to who has the token."""

import hmac
import re
import uuid

import pytest
from pydantic import SecretStr, ValidationError

from app.main import attach_context
from app.settings import Settings
from tests.app.test_leases import set_policy
from tests.support.process import METRICS_TOKEN
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png


@undone("T20", "monitoring needs its token", hmac, "compare_digest", lambda *_: True)
@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", f"Basic {METRICS_TOKEN}", f"Bearer {METRICS_TOKEN}x"])
def test_metrics_need_their_token(shared_service: Service, header: str) -> None:
    answer = shared_service.client.get("/metrics", headers={"Authorization": header} if header else {})
    assert (answer.status_code, answer.json()["type"]) == (401, "urn:secondread:problem:unauthenticated")
    assert "secondread_" not in answer.text
    assert "SECONDREAD_METRICS_TOKEN" in answer.json()["detail"]


@pytest.mark.parametrize("who", ["anna", "admin"])
def test_no_key_of_an_account_opens_metrics(shared_service: Service, who: str) -> None:
    assert shared_service.get(who, "/metrics").status_code == 401


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
    for number, (name, fields) in enumerate({"once": (0.99, 1e-9), "twice": (0.0, 0.1)}.items()):
        set_policy(service, threshold=fields[0], audit_rate=fields[1])
        before = told(service)
        service.add_case(uuid.uuid4().hex, cell_png(number))
        after = told(service)
        heard[name] = {key: after[key] for key in after if after[key] != before.get(key)}
    assert heard["once"] == heard["twice"]
