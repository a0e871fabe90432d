"""Answers that wait in a browser: whose they are, what keeps them, what settles them; and arrow keys."""

from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route
from sqlalchemy import select

from app.database.tables import Annotator, Label, Read, Remark
from tests.browser.conftest import Person, given, kept, set_reveal, until, upload
from tests.support.process import Installation

pytestmark = [pytest.mark.slow, pytest.mark.ci]


@pytest.fixture(scope="module")
def several(installation: Installation) -> Installation:
    set_reveal(installation, "after_case_closed")
    for number in range(12):
        upload(installation, f"kept {number}", 300 + number, patient=f"k{number}")
    return installation


def labels(made: Installation) -> list[tuple[str, str | None, str]]:
    """Annotator, class and case of every label, the case as the annotator knows it."""
    return [(who, code, case) for who in ("anna", "ben", "cleo") for case, _, code, _ in given(made, who)]


def open_case(person: Person) -> str:
    """Go to the next case; gives its id."""
    page = person.go("/worklist")
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-read]")
    return page.url.rsplit("/", 1)[1]


def commit(page: Page, code: str) -> None:
    page.check(f"[name=label][value={code}]")
    page.click("[data-action=commit]")


def test_an_answer_of_one_person_waits_through_the_session_of_another(browser: Browser, several: Installation) -> None:
    """Offline, the tab closed, another person signed in: review of the pages, 1."""
    anna = Person(browser, several, "anna")
    case = open_case(anna)
    before = labels(several)
    anna.context.set_offline(True)
    commit(anna.page, "eosinophil")
    anna.page.wait_for_selector("text=Your answer is saved here")
    assert kept(anna.page) == ["eosinophil"]
    # a closing page is online again for a moment, and would send its answer with its own session
    anna.context.clear_cookies()
    anna.page.close()
    anna.context.set_offline(False)

    anna.page = anna.context.new_page()
    anna.sign_in(several, "ben")
    for path in ("/worklist", "/help", "/worklist"):
        anna.go(path)
        anna.page.wait_for_load_state("networkidle")
    assert anna.page.url.endswith("/worklist")
    assert labels(several) == before
    anna.page.click("text=Sign out")
    anna.page.wait_for_selector("text=This browser holds an answer")
    assert kept(anna.page) == ["eosinophil"]

    anna.sign_in(several, "anna")
    until(anna.page, lambda: kept(anna.page) == [], "it is sent")
    assert set(labels(several)) - set(before) == {("anna", "eosinophil", case)}
    assert len(labels(several)) == len(before) + 1


@pytest.mark.slow
def test_an_answer_waits_through_refusals_that_are_not_the_last_word(browser: Browser, several: Installation) -> None:
    """The session is gone (review of the pages, 2), the server fails, a portal or proxy answers instead."""
    cleo = Person(browser, several, "cleo")
    case = open_case(cleo)
    page, before = cleo.page, labels(several)
    portal = {"status": 200, "body": "<html>Welcome to the hospital's network</html>"}
    redirect = {"status": 302, "headers": {"Location": "/login"}}
    others = [{"status": status} for status in (500, 503, 429, 403, 401)]
    tried: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = [*others, portal, redirect, {"status": 404, "body": "no such host"}]
    coming = iter(answers)
    answer = next(coming)

    def instead(route: Route) -> None:
        tried.append(answer)
        route.fulfill(**answer)

    page.route("**/label", instead)
    commit(page, "basophil")
    while True:
        until(page, lambda given=answer: given in tried, "it is tried")  # type: ignore[misc]
        page.wait_for_selector("[data-status].alert")
        assert kept(page) == ["basophil"], answer
        following = next(coming, None)
        if following is None:
            break
        answer = following
        page.reload()
    page.unroute("**/label")
    cleo.context.clear_cookies()
    cleo.go("/worklist")
    assert page.url.endswith("/login")
    page.wait_for_selector("text=This browser holds an answer")
    assert labels(several) == before
    cleo.sign_in(several, "cleo")
    until(page, lambda: kept(page) == [], "it is sent")
    assert set(labels(several)) - set(before) == {("cleo", "basophil", case)}


def test_what_rests_in_the_browser_is_the_handle_and_the_class(browser: Browser, several: Installation) -> None:
    cleo = Person(browser, several, "cleo")
    case = open_case(cleo)
    page = cleo.page
    page.click("text=Confidence, flag and note")
    page.fill("form[action$=label] textarea", "a note about Ms Miller")
    page.select_option("[name=confidence]", "0.9")
    cleo.context.set_offline(True)
    commit(page, "monocyte")
    page.wait_for_selector("text=Your answer is saved here")
    resting = page.evaluate("JSON.stringify(Object.entries(localStorage))")
    values = page.evaluate("Object.values(localStorage)")
    assert "Miller" not in resting
    assert "0.9" not in values
    assert case not in resting
    assert case.replace("-", "") not in resting
    assert kept(page) == ["monocyte"]
    cleo.context.set_offline(False)
    until(page, lambda: kept(page) == [], "it is sent")
    # what the page still knew was sent with it
    of_cleo = select(Remark.note, Label.confidence, Read.state).join(Label.remark).join(Annotator)
    of_read = (Read.case_id == Label.case_id) & (Read.annotator_id == Label.annotator_id)
    wanted = of_cleo.join(Read, of_read).where(Annotator.name == "cleo", Label.class_code == "monocyte")
    assert several.rows(wanted) == [("a note about Ms Miller", 0.9, "committed")]


def test_a_refused_answer_is_settled_and_says_why(browser: Browser, several: Installation) -> None:
    """Two tabs of one person give two classes: the first counts, the second is told."""
    cleo = Person(browser, several, "cleo")
    case = open_case(cleo)
    first, before = cleo.page, labels(several)
    second = cleo.context.new_page()
    second.goto(first.url)
    second.wait_for_selector(".js [data-read]")
    commit(first, "blast")
    until(first, lambda: kept(first) == [], "the first is stored")
    commit(second, "monocyte")
    second.wait_for_selector("text=with another class")
    assert kept(second) == []
    assert second.is_enabled("[data-action=commit]")
    assert set(labels(several)) - set(before) == {("cleo", "blast", case)}


def test_arrow_keys_never_change_a_class(browser: Browser, several: Installation) -> None:
    """Review of the pages, 3: chosen by key, zoomed, panned; and without zoom, and with modifiers."""
    cleo = Person(browser, several, "cleo")
    open_case(cleo)
    page = cleo.page
    page.keyboard.press("Shift+B")  # chosen, and waits for more
    chosen = page.locator("[name=label]:checked").get_attribute("value")
    assert chosen is not None
    for zoomed in (True, False):
        page.keyboard.press("+" if zoomed else "0")
        for key in ("ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Shift+ArrowDown", "Control+ArrowDown"):
            page.keyboard.press(key)
            assert page.locator("[name=label]:checked").get_attribute("value") == chosen, key
        if zoomed:
            page.keyboard.press("ArrowLeft")
            assert "translate(60px" in page.evaluate("document.querySelector('.viewer img').style.transform")
    # those who use no single keys still choose by keyboard: arrows move the focus, Space chooses
    page.focus("[name=label]:checked")
    page.keyboard.press("ArrowDown")
    in_focus = page.evaluate("document.activeElement.value")
    assert in_focus != chosen
    page.keyboard.press("Space")
    assert page.locator("[name=label]:checked").get_attribute("value") == in_focus
    assert cleo.faults == []
