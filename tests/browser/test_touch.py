"""Reading on a phone, where one tap answers and can be undone, and at 200 per cent, where everything stays in view."""

import random
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.conftest import (
    FRAME,
    WATCH,
    Person,
    begin_with,
    box_of,
    close_open_requests,
    given,
    hold_clock,
    kept,
    shown,
    until,
    upload,
)
from tests.support.process import Installation
from tests.support.waiting import wait_until

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
CLASSES = {"b": "blast", "l": "lymphocyte", "m": "monocyte", "e": "eosinophil", "o": "basophil"}
#: Taps that come sooner after a case has come are not taken.
TOO_SOON = 320


def begin_on(browser: Browser, made: Installation, name: str, n: int, **device: Any) -> tuple[Person, Page]:
    """The reading page of an annotator on a device, with so many cells to read and one more."""
    close_open_requests(made)
    reader, page = begin_with(browser, made, name, n + 1, **device)
    page.evaluate(WATCH)
    return reader, page


def tap(page: Page, code: str) -> None:
    page.tap(f"[name=label][value={code}]")


def answers(made: Installation, name: str) -> dict[str, str | None]:
    """The last class that was stored of each case."""
    return {row[0]: row[2] for row in given(made, name)}


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize(("name", "n"), [("anna", 10), pytest.param("emil", 150, marks=pytest.mark.heavy)])
def test_one_tap_answers_and_a_button_undoes_it(browser: Browser, blind: Installation, name: str, n: int) -> None:
    rng = random.Random(n)
    reader, page = begin_on(browser, blind, name, n, **PHONE)
    frame, intended = page.evaluate(FRAME), {}
    for number in range(n):
        until(page, lambda: shown(page) not in {*intended, ""}, f"no case after {number}")
        page.wait_for_timeout(TOO_SOON)
        right, wrong = rng.sample(sorted(CLASSES.values()), 2)
        case = shown(page)
        intended[case] = right
        slip = number % 4 == 1
        tap(page, wrong if slip else right)
        if slip:
            page.tap("[data-status] button:text-is('Undo')")
            until(page, lambda: shown(page) == case, "it goes back")  # noqa: B023
            assert page.locator("[name=label]:checked").get_attribute("value") == wrong
            assert page.inner_text("[data-status]").startswith("Choose again.")
            page.wait_for_timeout(TOO_SOON)
            tap(page, right)
        assert (page.evaluate(FRAME), page.evaluate("window.shifts")) == (frame, [])
    until(page, lambda: kept(page) == [], "answers are on their way")
    assert {case: code for case, code in answers(blind, name).items() if case in intended} == intended
    assert all(row[3] for row in given(blind, name))
    assert reader.faults == []


@pytest.mark.ci
@pytest.mark.slow
def test_a_tap_on_the_case_before_is_none_and_the_undo_ends_after_five_seconds(
    browser: Browser, blind: Installation
) -> None:
    close_open_requests(blind)
    for number in range(4):
        upload(blind, f"clock {number}", 36_000 + number)
    ben = Person(browser, blind, "ben", **PHONE)
    page = ben.go("/worklist")
    hold_clock(page)
    page.tap("main button")
    page.wait_for_selector(".js [data-resident]")
    page.clock.run_for(1000)
    first = shown(page)
    until(page, lambda: page.locator("[data-action='cannot tell']").is_enabled(), "it can be answered")
    tap(page, "blast")
    until(page, lambda: shown(page) != first, "the next case")
    second = shown(page)
    tap(page, "monocyte")  # the second tap of two
    assert (shown(page), page.locator("[name=label]:checked").count()) == (second, 0)
    page.clock.run_for(4500)
    assert "Answered: Blast" in page.inner_text("[data-status]")
    page.clock.run_for(1000)
    assert page.inner_text("[data-status]") == ""
    page.tap("summary:has-text('Confidence')")  # who wants to say more answers by the button
    tap(page, "monocyte")
    assert shown(page) == second
    page.tap("[data-action=commit]")
    until(page, lambda: shown(page) != second, "the button answers")
    until(page, lambda: kept(page) == [], "answers are on their way")
    stored = answers(blind, "ben")
    assert (stored[first], stored[second]) == ("blast", "monocyte")
    assert ben.faults == []


@pytest.mark.slow
def test_a_tap_survives_a_page_that_closes_at_once_and_a_mouse_only_chooses(
    browser: Browser, blind: Installation
) -> None:
    cleo, page = begin_on(browser, blind, "cleo", 3, **PHONE)
    page.route("**/label", lambda route: route.abort("connectionreset"))
    page.wait_for_timeout(TOO_SOON)
    case = shown(page)
    tap(page, "basophil")
    until(page, lambda: shown(page) != case, "the next case")
    page.close()
    cleo.page = cleo.context.new_page()
    cleo.go("/worklist")
    wait_until(lambda: answers(blind, "cleo").get(case) == "basophil", what="the answer is stored")
    desk, page = begin_on(browser, blind, "cleo", 3)
    page.wait_for_timeout(TOO_SOON)
    case = shown(page)
    page.click("[name=label][value=blast]")
    page.wait_for_timeout(TOO_SOON)
    assert (shown(page), page.locator("[name=label]:checked").count()) == (case, 1)
    assert desk.faults == []


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize(("name", "n"), [("anna", 10), pytest.param("emil", 150, marks=pytest.mark.heavy)])
def test_cells_by_key_at_200_percent(browser: Browser, blind: Installation, name: str, n: int) -> None:
    """A laptop of 1366 × 768 pixels: the image, the classes and the buttons are in view, and nothing moves."""
    zoomed = {"viewport": {"width": 683, "height": 384}, "device_scale_factor": 2}
    reader, page = begin_on(browser, blind, name, n, **zoomed)
    frame, seen = page.evaluate(FRAME), []
    for number in range(n):
        until(page, lambda: shown(page) not in {*seen, ""}, f"no case after {number}")
        seen.append(shown(page))
        page.keyboard.press("blmeo"[number % 5])
        assert (page.evaluate(FRAME), page.evaluate("window.shifts")) == (frame, [])
    for wanted in (".stage", "[data-action=commit]", "[data-action='cannot tell']", ".choice"):
        box = box_of(page, wanted)
        assert max(box["x"] + box["width"] - 683, box["y"] + box["height"] - 384) <= 1, wanted
    until(page, lambda: kept(page) == [], "answers are on their way")
    stored = answers(blind, name)
    assert [stored[case] for case in seen] == [CLASSES["blmeo"[number % 5]] for number in range(n)]
    assert reader.faults == []
