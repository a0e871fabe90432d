"""Reference cells beside the image: by a key and by class; an admin's page of them."""

import pytest
from playwright.sync_api import Browser

from app.audit.chain.keys import derive_keys
from app.cases.ingest import partition_of
from app.settings import Settings
from tests.browser.conftest import (
    FRAME,
    WATCH,
    Person,
    begin,
    read_by_outsiders,
    set_policy,
    set_reveal,
    shown,
    until,
    upload,
)
from tests.support.process import Installation

N_CELLS = 7


@pytest.fixture(scope="module")
def settled(browser: Browser, installation: Installation) -> Installation:
    """Closed cells of two classes with three readers each, chosen as reference cells, and cases to be read."""
    set_reveal(installation, "after_case_closed")
    set_policy(installation, threshold=0.99, audit_rate=1e-9, repeat_rate=0)
    key = derive_keys(Settings(home=installation.home).key_ring()).partition
    names = (f"settled {n}" for n in range(1000) if partition_of(key, None, f"settled {n}") == "calibration")
    for number in range(2 * N_CELLS):
        read_by_outsiders(installation, upload(installation, next(names), 300 + number), *[number % 2] * 3)
    for number in range(4):
        upload(installation, f"to be read {number}", 400 + number)
    choose_cells(browser, installation)
    return installation


def choose_cells(browser: Browser, made: Installation) -> None:
    admin = Person(browser, made, "lead")
    page = admin.go("/references")
    admin.look("references-list")
    admin.follow("text=Choose the cells of all classes")
    page.click("main li a >> nth=0")
    page.wait_for_selector("h1:has-text('Reference cells of')")
    page.fill("[name=text]", "Large, with a fine chromatin.\nLittle cytoplasm.")
    admin.follow("text=Save the definition")
    assert page.locator(".tile button:text-is('Pin')").count() == 7
    admin.look("references-managed")
    admin.follow(".tile button:text-is('Pin') >> nth=0")
    assert page.locator(".tile button:text-is('Unpin')").count() == 1
    page.fill(".tile [name=reason] >> nth=1", "out of focus")
    admin.follow(".tile button:text-is('Exclude') >> nth=1")
    assert "out of focus" in page.inner_text("main")
    admin.follow("text=Restore")
    assert page.locator(".tile button:text-is('Exclude')").count() == 6
    assert admin.faults == []


@pytest.mark.slow
def test_a_key_opens_the_cells_of_a_class_and_nothing_moves(browser: Browser, settled: Installation) -> None:
    for name, scheme in (("anna", "light"), ("ben", "dark")):
        reader = Person(browser, settled, name, scheme)
        page = begin(reader)
        page.evaluate(WATCH)
        frame, case = page.evaluate(FRAME), shown(page)
        page.keyboard.press("r")
        page.wait_for_selector("dialog[open] [data-reference-class]")
        first = page.get_attribute("[data-reference-class]", "data-reference-class")
        until(page, lambda: page.locator("dialog .reference-cells img").count() == 6, "six cells")  # noqa: B023
        assert "all 3 annotators" in page.inner_text("dialog")
        assert page.evaluate(FRAME) == frame
        # the key of a class looks it up, and answers nothing; nor do Enter, digits or Backspace
        page.keyboard.press("l")
        until(page, lambda: page.get_attribute("[data-reference-class]", "data-reference-class") == "lymphocyte", "l")  # noqa: B023
        for key in ("x", "Backspace", "s", "p"):
            page.keyboard.press(key)
        assert shown(page) == case
        page.select_option("[data-references-class]", first)
        until(page, lambda: page.get_attribute("[data-reference-class]", "data-reference-class") == first, "by hand")  # noqa: B023
        page.keyboard.press("Escape")
        assert page.locator("dialog[open]").count() == 0
        page.keyboard.press("r")
        assert page.locator("dialog[open]").count() == 1
        page.keyboard.press("r")
        assert page.locator("dialog[open]").count() == 0
        assert (page.evaluate(FRAME), shown(page)) == (frame, case)
        assert page.evaluate("window.shifts") == []
        page.keyboard.press("r")
        reader.look("references-dialog")
        page.keyboard.press("Escape")
        page.keyboard.press("b")
        until(page, lambda: shown(page) not in {case, ""}, "the key answers again")  # noqa: B023
        assert reader.faults == []
