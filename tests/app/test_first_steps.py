"""An empty service: no page is a dead end, and its home page says what comes next."""

import re
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from app.accounts import people as auth
from app.main import create_app
from app.settings import Settings
from tests.app.test_templates import HTML, PAGES
from tests.support.service import Service, add_people, cell_png


@pytest.fixture
def empty(settings: Settings) -> Iterator[Service]:
    """A service with people, and nothing else."""
    app = create_app(settings)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Service(client, app.state.context, add_people(app.state.context))


def states(page: str) -> dict[str, str]:
    return dict(re.findall(r'data-step="(\w+)" data-state="(\w+)"', page))


@pytest.mark.parametrize("who", ["admin", "viewer"])
def test_no_page_is_a_dead_end_without_a_release(empty: Service, who: str) -> None:
    for path in PAGES:
        answer = empty.get(who, path, headers=dict(HTML))
        if who == "admin" or path in {"/worklist", "/report", "/policy", "/releases", "/jobs", "/help"}:
            assert answer.status_code == 200, (path, answer.text)
        assert 'aria-label="Pages"' in answer.text, path
    assert "Make a candidate" not in empty.get("admin", "/releases").text


def test_the_home_page_says_what_is_done_what_comes_next_and_what_waits(empty: Service) -> None:
    page = empty.get("admin", "/worklist").text
    assert states(page) == {"release": "next", "people": "done", "policy": "later", "import": "waits"}
    assert "secondread release add FOLDER" in page
    assert "waits for step 1" in page
    with empty.context.database.write() as session:
        auth.set_disabled(session, empty.context.keys.audit, "ben", disabled=True)
    page = empty.get("admin", "/worklist").text
    assert states(page)["people"] == "later"
    assert "One annotator can sign in" in page
    assert "First steps" not in empty.get("viewer", "/worklist").text


def test_the_steps_follow_each_other_and_go_away_with_the_first_case(service: Service) -> None:
    order = {"release": "done", "people": "done", "policy": "next", "import": "later"}
    assert states(service.get("admin", "/worklist").text) == order
    form = {"rule": "disagreement", "threshold": "0,3", "reason": "first look"}
    saved = service.call("admin", "POST", "/policy", data=form, follow_redirects=False)
    assert saved.status_code == 303
    assert states(service.get("admin", "/worklist").text) == order | {"policy": "done", "import": "next"}
    service.upload("first", cell_png(1))
    assert "<h1>Worklist" in service.get("admin", "/worklist").text


def test_the_policy_takes_a_decimal_comma_and_says_what_is_wrong_beside_the_field(service: Service) -> None:
    form = {"rule": "disagreement", "threshold": "0,3", "audit_rate": "two", "max_labels": "1", "reason": "a try"}
    page = service.call("admin", "POST", "/policy", data=form)
    assert page.status_code == 422
    for said in ("Must be a number.", "Must be at least 2.", 'value="0,3"', 'value="two"', "a try</textarea>"):
        assert said in page.text, said
    assert 'aria-describedby="audit_rate-fault"' in page.text
    assert 'aria-label="Pages"' in page.text
    page = service.call(
        "admin", "POST", "/policy", data=form | {"threshold": "", "audit_rate": "0,1", "max_labels": "5"}
    )
    assert "Is needed by this rule." in page.text
    saved = service.call(
        "admin", "POST", "/policy", data=form | {"audit_rate": "0,1", "max_labels": "5"}, follow_redirects=False
    )
    assert saved.status_code == 303
    newest = service.get("admin", "/v1/policies").json()["items"][0]
    assert (newest["threshold"], newest["audit_rate"]) == (0.3, 0.1)
    again = service.call("admin", "POST", "/policy", data=form | {"audit_rate": "0,1", "max_labels": "5"})
    assert "in force already" in again.text
    assert again.status_code == 422
