"""Forms that are refused come back with what was typed; the page of models, from a recalibration to the way back."""

import re
from html import unescape
from typing import Any

import pytest
from fastapi.routing import APIRoute

from app.accounts.people import add_account
from app.http.routing import walk_routes
from app.main import create_app
from app.settings import Settings
from app.web.forms import page_of_form
from tests.app.test_gate_memory import champion
from tests.app.test_jobs import collect_reads
from tests.app.test_leases import classes_of, set_policy
from tests.app.test_people import GOOD, first_password
from tests.security.test_references import ONCE, choose, settle
from tests.support.jobs import work_off
from tests.support.reports import report_page
from tests.support.service import Service, cell_png, store

HTML = {"Accept": "text/html"}
LONG = "x" * 2001
#: Forms without a field that a person fills in.
PLAIN = {
    *(
        "/login",
        "/login/language",
        "/account/language",
        "/report/freeze",
        "/practice/runs",
        "/people/{account_id}/state",
    ),
    *("/cells/reads", "/cells/gallery/labels", "/cells/gallery/undo", "/cells/gallery/tiles"),
    *("/practice/items/{item_id}/answer", "/references/choice", "/imports/checks/{check_id}/import"),
}


def post(service: Service, path: str, **typed: Any) -> Any:
    return service.call("admin", "POST", path, data=typed, headers=dict(HTML), follow_redirects=False)


def account_of(service: Service, who: str = "admin") -> str:
    """What a page's form names its person by."""
    return re.findall(r'<body data-account="([^"]+)"', service.get(who, "/cells", headers=dict(HTML)).text)[0]


def form_at(page: str, path: str) -> str:
    """The form of a page that posts to a path and has something wrong with it."""
    forms = re.findall(rf'<form[^>]*action="{path}"[^>]*>.*?</form>', page, re.DOTALL)
    (wrong,) = [form for form in forms if "fault" in form]
    return unescape(wrong)


@pytest.mark.parametrize(
    ("path", "typed", "field", "kept"),
    [
        ("/policy", {"rule": "capacity", "capacity_per_day": "many", "reason": "why"}, "capacity_per_day", "why"),
        ("/policy", {"rule": "capacity", "capacity_per_day": "1.000", "reason": "why"}, "capacity_per_day", "1.000"),
        ("/policy", {"rule": "disagreement", "threshold": "7", "due_days": "0"}, "threshold", "7"),
        ("/policy", {"rule": "disagreement", "threshold": "0.2", "reason": LONG}, "reason", LONG),
        ("/policy", {"rule": "disagreement", "threshold": "0.25", "reason": " "}, "reason", "0.25"),
        ("/report/targets", {"disagreement_gap": "5.5", "reason": " "}, "reason", "5.5"),
        ("/report/targets", {"disagreement_gap": "5", "hours": "soon", "reason": "r"}, "hours", "soon"),
        ("/people", {"name": "x" * 101, "role": "viewer"}, "name", "x" * 101),
        ("/people", {"name": "a\nb", "role": "viewer"}, "name", 'value="viewer" selected'),
        ("/practice/sets", {"name": "one", "purpose": "training", "n_cells": "all"}, "n_cells", "one"),
        ("/practice/sets", {"name": "one", "purpose": "training", "n_cells": "20.000"}, "n_cells", "20.000"),
        ("/practice/sets", {"name": "one", "purpose": "qualification", "min_labels": "x"}, "min_labels", "one"),
        (
            "/practice/decisions",
            {"name": "anna", "kind": "renewed", "form_key": "k"},
            "reason",
            'value="renewed" selected',
        ),
        ("/readers/fit", {"experts": LONG}, "experts", LONG),
    ],
)
def test_a_refused_form_comes_back_with_its_values_and_the_fault_at_its_field(
    service: Service, path: str, typed: dict[str, str], field: str, kept: str
) -> None:
    if path == "/report/targets":
        report_page(service, "admin")  # which has the form
    answer = post(service, path, **typed)
    assert 400 <= answer.status_code < 500, answer.text
    assert 'aria-label="Pages"' in answer.text
    form = form_at(answer.text, path)
    assert kept in form
    first = re.findall(r"<(?:input|select|textarea)[^>]*\bautofocus[^>]*>", form)[0]
    for mark in (f'name="{field}"', 'aria-invalid="true"', f'aria-describedby="{field}-fault"'):
        assert mark in first
    assert answer.text.count(f'id="{field}-fault" role="alert"') == 1
    script = service.call("admin", "POST", path, data=typed, headers={"Accept": "application/json"})
    assert (script.status_code, script.headers["content-type"]) == (answer.status_code, "application/problem+json")


def test_the_form_of_a_definition_comes_back_on_the_page_of_its_class(service: Service) -> None:
    answer = post(service, "/references/definitions", **{"class": classes_of(service)[0], "text": LONG})
    assert answer.status_code == 422
    assert LONG in form_at(answer.text, "/references/definitions")


def test_a_refused_exclusion_comes_back_at_its_cell(service: Service) -> None:
    set_policy(service, **ONCE)
    settle(service, 2)
    choose(service)
    code = classes_of(service)[0]
    page = service.get("admin", "/references", params={"class": code}).text
    excluded = r'name="case" value="([^"]+)"><input type="hidden" name="kind" value="excluded"'
    first, second = re.findall(excluded, page)
    reason = "y" * 201
    answer = post(service, "/references/decisions", **{"class": code, "case": second}, kind="excluded", reason=reason)
    form = form_at(answer.text, "/references/decisions")
    assert (answer.status_code, reason in form, second in form, first in form) == (422, True, True, False)


@pytest.mark.parametrize("kind", ["revise", "retract"])
def test_a_change_of_a_label_comes_back_on_the_page_of_its_cell(service: Service, kind: str) -> None:
    codes, case = classes_of(service), service.add_case("a")["id"]
    label = service.answer("anna", case, codes[0]).json()["label"]["id"]
    typed = {"form_key": "k", "case_id": service.known_as("anna", case), "label": codes[2], "reason": LONG}
    answer = service.call("anna", "POST", f"/labels/{label}/{kind}", data=typed, headers=dict(HTML))
    form = form_at(answer.text, f"/labels/{label}/{kind}")
    assert (answer.status_code, LONG in form) == (422, True)
    assert kind == "retract" or f'value="{codes[2]}" required checked' in form


def test_every_form_with_fields_comes_back(settings: Settings) -> None:
    """A new form belongs to the page that it comes back on."""
    left = set()
    for route in walk_routes(create_app(settings)):
        if isinstance(route, APIRoute) and "POST" in (route.methods or ()) and not route.include_in_schema:
            typed = {each.alias for each in route.dependant.body_params}
            request: Any = type("Request", (), {"scope": {"endpoint": route.endpoint}})
            if typed and not route.path.startswith(("/v1", "/reads")) and page_of_form(request) is None:
                left.add(route.path)
    assert left <= PLAIN


def test_a_form_that_its_page_does_not_have_is_answered_by_a_page_of_the_problem(service: Service) -> None:
    answer = post(service, "/readers/switch", revision="0", version="", reason=" ")  # nothing is switched on
    assert (answer.status_code, "Give a reason." in answer.text) == (422, True)


def test_who_may_not_send_a_form_sees_no_page_of_it(service: Service) -> None:
    for who in ("viewer", "anna"):
        answer = service.call(who, "POST", "/people", data={"name": "ben", "role": "viewer"}, headers=dict(HTML))
        assert answer.status_code == 403
        assert 'name="role"' not in answer.text


def test_names_from_outside_are_isolated_and_escaped(service: Service) -> None:
    name = "<i>خلية"
    with service.context.database.write() as session:
        add_account(session, service.context.keys.audit, name, "annotator")
    store(service, name, cell_png(1), {}, patient=name, site=name)
    for path in ("/worklist", "/people", "/audit", "/practice"):
        page = service.get("admin", path).text
        assert "<bdi>&lt;i&gt;خلية</bdi>" in page, path
        assert "<i>" not in page


def test_a_recalibration_runs_and_is_refused_on_the_page_of_models(service: Service) -> None:
    store(service, "case", cell_png(1), {"reader": 1}, patient="p")
    asked = post(service, "/releases/recalibrate", method="temperature")
    assert (asked.status_code, asked.headers["location"]) == (303, "/releases")
    page = service.get("admin", "/releases").text
    assert re.search(r'<section[^>]* data-events="/jobs/events">', page)
    assert re.search(r'<p data-job="[^"]+" data-state="queued">.*<progress.*<noscript><a href="/releases">Reload', page)
    assert "Recalibrate now" not in page
    work_off(service.context)
    page = unescape(service.get("admin", "/releases").text)
    assert "was refused:" in page
    assert "recalibration needs 50 labelled cells from 10 patients" in page
    assert "There are no new labels since" in page
    assert "A fit needs 50 labelled cells from 10 patients" in page
    assert "Recalibrate now" in page
    assert "Recalibrate now" not in service.get("viewer", "/releases").text
    page = post(service, "/releases/recalibrate", method="magic")
    assert (page.status_code, 'id="method-fault"' in page.text) == (422, True)


@pytest.mark.slow
def test_a_candidate_is_promoted_and_rolled_back_on_the_page_of_models(service: Service) -> None:
    plan = service.context.settings.home / "plan.json"
    plan.write_text('{"min_labelled_cases": 20, "max_increase": 0.5}')
    service.context.settings.change_plan = plan
    collect_reads(service)
    first = champion(service)
    assert post(service, "/releases/recalibrate").status_code == 303
    work_off(service.context)
    page = unescape(service.get("admin", "/releases").text)
    assert re.search(
        r"(Passed the|Rejected by the) promotion check\..*On \d+ evaluated cells, L changes by", page, re.DOTALL
    )
    assert "Roll back" not in page
    cookie = first_password(service, "admin") | HTML
    for button in ("Promote", "Roll back"):
        page = service.client.get("/releases", headers=cookie).text
        forms = re.findall(r'<form method="post" action="(/releases/[^"]+/move)">(.*?)</form>', page, re.DOTALL)
        ((path, form),) = [each for each in forms if f"<button>{button}</button>" in each[1]]
        hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form))
        typed = {"despite_gate": "true"} | hidden | {"reason": "as it was", "password": "not it"}
        wrong = service.client.post(path, data=typed, headers=cookie)
        assert (wrong.status_code, "<h1>Models" in wrong.text) == (403, True)
        assert form_at(wrong.text, path).count("as it was") == 1
        typed |= {"password": GOOD}
        assert service.client.post(path, data=typed, headers=cookie, follow_redirects=False).status_code == 303
    assert champion(service) == first
