"""A wrong password, wherever one is asked for again, is told beside its field on the page; what was typed stays."""

import re
from html import unescape
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from app.releases.registration import add_release
from tests.app.test_people import GOOD, first_password
from tests.support.service import Service
from tests.support.tiny_release import write_tiny_release

REASON = "it is <better> & calmer"


@pytest.fixture
def release(service: Service, tmp_path: Path) -> str:
    """A release that is not served."""
    context, folder = service.context, write_tiny_release(tmp_path / "other", "other cells")
    row = add_release(context.database, context.keys.audit, folder, context.folders)[0]
    return str(row.id)


def move(service: Service, release: str, cookie: dict[str, str], **fields: Any) -> httpx.Response:
    form = {"alias": "champion", "revision": "1", "despite_gate": "true", "reason": REASON, "password": "not it"}
    headers = {"Accept": "text/html", **cookie}
    path = f"/releases/{release}/move"
    answer: httpx.Response = service.client.post(path, data=form | fields, headers=headers, follow_redirects=False)
    return answer


def champion(service: Service) -> str:
    items = service.get("viewer", "/v1/aliases").json()["items"]
    return str(next(row["release"] for row in items if row["name"] == "champion"))


def beside(page: str, name: str) -> str:
    """What is said beside a field that is marked as wrong."""
    field = re.search(rf'<(?:input|textarea)[^>]*name="{name}"[^>]*aria-invalid="true"[^>]*>', page)
    assert field is not None, name
    described = re.search(r'aria-describedby="([^"]+)"', field[0])
    assert described is not None
    assert page.count(f'id="{described[1]}"') == 1
    said = re.search(rf'<p class="fault" id="{described[1]}" role="alert">(.*?)</p>', page)
    assert said is not None
    return unescape(said[1])


def test_a_wrong_password_at_a_promotion_keeps_the_page_and_what_was_typed(service: Service, release: str) -> None:
    cookie, before = first_password(service, "admin"), champion(service)
    for typed in ("not it", ""):
        answer = move(service, release, cookie, password=typed)
        assert answer.status_code == 403
        assert "<nav" in answer.text
        assert "<h1>other cells" in answer.text
        assert beside(answer.text, "password") == "Repeat your password: it is missing or wrong."
        assert unescape(re.findall(r'name="reason"[^>]*>([^<]*)<', answer.text)[0]) == REASON
        assert re.search(r'name="despite_gate"[^>]* checked', answer.text)
        assert answer.text.count('aria-invalid="true"') == 1  # that of the other form is as it was
        assert "not it" not in answer.text
    assert champion(service) == before
    assert move(service, release, cookie, password=GOOD).status_code == 303
    assert champion(service) == release


def test_what_else_is_refused_at_a_promotion_stands_on_the_page_too(service: Service, release: str) -> None:
    cookie = first_password(service, "admin")
    answer = move(service, release, cookie, password=GOOD, reason=" ")
    assert (answer.status_code, beside(answer.text, "reason")) == (422, "Say why.")
    unjudged = move(service, release, cookie, password=GOOD, despite_gate="false")
    assert unjudged.status_code == 409
    assert "No gate has judged this release" in unjudged.text
    assert 'id="champion-fault"' in unjudged.text
    moved = move(service, release, cookie, password=GOOD, revision="7")
    assert moved.status_code == 412
    assert 'id="champion-fault"' in moved.text
    assert "<nav" in moved.text


def test_a_script_gets_a_problem(service: Service, release: str) -> None:
    cookie = first_password(service, "admin")
    for accept in ("*/*", "application/json"):
        answer = move(service, release, cookie | {"Accept": accept})
        assert answer.status_code == 403
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["detail"] == "repeat your password: it is missing or wrong"


def test_a_wrong_present_password_is_told_beside_it(service: Service) -> None:
    cookie = first_password(service, "anna")
    url = "/account"
    wrong = service.client.post(url, data={"present": "x", "wanted": "quite another one"}, headers=cookie)
    assert (wrong.status_code, beside(wrong.text, "present")) == (403, "The present password is wrong.")
    short = service.client.post(url, data={"present": GOOD, "wanted": "short"}, headers=cookie)
    assert short.status_code == 422
    assert "15" in beside(short.text, "wanted")
    for answer in (wrong, short):
        assert "<nav" in answer.text


def test_a_wrong_password_at_the_sign_in_keeps_the_name(service: Service) -> None:
    service.client.cookies.clear()
    answer = service.client.post("/login", data={"name": 'anna"<', "password": "x"})
    assert answer.status_code == 401
    assert 'value="anna&#34;&lt;"' in answer.text
    assert re.search(r'name="password"[^>]* autofocus', answer.text)


def test_no_other_form_asks_for_a_password() -> None:
    """A new one belongs above."""
    templates = Path(__file__).parents[2] / "app" / "web" / "templates"
    asking = {path.name for path in templates.glob("*.html") if 'type="password"' in path.read_text()}
    assert asking == {"login.html", "account.html", "release.html"}
