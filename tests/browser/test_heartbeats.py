"""A page that nobody uses lets its lease go, and says so before and after."""

import time

import pytest
from playwright.sync_api import Browser, Page, Request

from tests.browser.conftest import Person, until, upload
from tests.support.process import Installation


def hold_clock(page: Page) -> None:
    """From here the page's clock goes on only when the test says so, however long a busy machine takes in between."""
    page.clock.install()
    page.clock.pause_at(time.time() + 1)


def looked_at(page: Page) -> None:
    """Answers that have arrived are looked at by the page: whatever it asks for now comes after them."""
    page.evaluate("fetch('/healthz').then((answer) => answer.text())")


def a_second_later(page: Page, selector: str) -> str:
    """What an element says when the page's clock has gone on by a second."""
    page.clock.run_for(1_000)
    return page.inner_text(selector)


@pytest.mark.slow
def test_only_a_sign_of_a_person_extends_a_lease(browser: Browser, installation: Installation) -> None:
    upload(installation, "watched", 400, patient="w")
    cleo = Person(browser, installation, "cleo")
    page, beats = cleo.page, []

    def note(request: Request) -> None:
        if request.method == "PATCH":
            beats.append(request.url)

    page.on("request", note)
    hold_clock(page)
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-read]")
    with page.expect_response("**/v1/reads/*"):  # opening the page is a sign
        page.clock.run_for(2_000)
    looked_at(page)
    page.clock.run_for(500_000)
    assert len(beats) == 1
    assert page.inner_text("[data-status]") == ""
    page.clock.run_for(50_000)
    assert "goes back in less than a minute" in page.inner_text("[data-status]")
    page.keyboard.press("Shift")
    with page.expect_response("**/v1/reads/*"):
        page.clock.run_for(2_000)
    looked_at(page)
    until(page, lambda: page.inner_text("[data-status]") == "", "the warning is taken back")
    assert len(beats) == 2
    page.clock.run_for(700_000)
    assert len(beats) == 2
    assert "Your time with this case ran out" in page.inner_text("[data-status]")
    assert cleo.faults == []


@pytest.mark.slow
def test_a_page_whose_answer_is_under_way_asks_for_no_more_time(browser: Browser, installation: Installation) -> None:
    upload(installation, "declined", 402, patient="d")
    cleo = Person(browser, installation, "cleo")
    page, beats, held = cleo.page, [], []
    page.on("request", lambda request: beats.append(request.url) if request.method == "PATCH" else None)
    page.route("**/reads/*/decline", lambda route: held.append(route))  # it goes on when the test says so
    hold_clock(page)
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-read]")
    page.click("summary:has-text('Decline')")
    page.check("input[value=image_quality]")
    page.click("text=Decline this case")
    until(page, lambda: len(held) == 1, "the decline is under way")
    page.clock.run_for(3_000)
    assert beats == []
    held[0].continue_()
    page.wait_for_url("**/worklist")
    assert cleo.faults == []


@pytest.mark.slow
def test_a_session_warns_before_it_ends_and_a_sign_of_a_person_extends_it(
    browser: Browser, installation: Installation
) -> None:
    upload(installation, "idle", 401, patient="i")
    cleo = Person(browser, installation, "cleo")
    page = cleo.page
    hold_clock(page)
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-read]")
    page.keyboard.press("b")
    with page.expect_response("**/v1/reads/*"):
        page.clock.run_for(2_000)
    looked_at(page)
    state = "[document.activeElement.value, document.querySelector('[name=label]:checked').value]"
    before = page.evaluate(state)
    page.clock.fast_forward(27 * 60_000)
    assert page.inner_text("[data-session]") == ""
    page.clock.fast_forward(75_000)
    assert "You will be signed out in about a minute" in page.inner_text("[data-session]")
    assert page.get_attribute("[data-session]", "aria-live") == "polite"
    assert page.evaluate(state) == before
    with page.expect_response("**/session") as kept:
        page.keyboard.press("Shift")
        page.clock.run_for(2_000)
    looked_at(page)
    assert kept.value.status == 204
    until(page, lambda: a_second_later(page, "[data-session]") == "", "the warning is taken back")
    page.clock.fast_forward(31 * 60_000)
    assert "You have been signed out" in page.inner_text("[data-session]")
    assert page.evaluate(state) == before
    assert cleo.faults == []


@pytest.mark.slow
def test_a_session_that_grows_old_says_so_however_busy_its_person_is(
    browser: Browser, installation: Installation
) -> None:
    cleo = Person(browser, installation, "cleo")
    page = cleo.page
    hold_clock(page)
    cleo.go("/help")
    page.wait_for_selector(".js")
    page.clock.fast_forward((12 * 60 - 3) * 60_000)
    page.keyboard.press("Shift")
    with page.expect_response("**/session"):
        page.clock.run_for(2_000)
    looked_at(page)
    page.clock.run_for(90_000)
    assert "Your session of twelve hours ends in about a minute" in page.inner_text("[data-session]")
