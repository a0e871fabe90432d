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
    close_open_requests,
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
        # the size of a pixel is known of the cells of the first class
        fields = {} if number % 2 else {"metadata": '{"mpp": "0.05"}'}
        read_by_outsiders(installation, upload(installation, next(names), 300 + number, **fields), *[number % 2] * 3)
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


@pytest.mark.slow
def test_reference_cells_have_the_scale_of_the_cell_or_say_that_it_is_unknown(
    browser: Browser, settled: Installation
) -> None:
    """At 0.05 µm per pixel next to 0.1, a pixel is half as wide; a closer look at the cell is one at them as well."""
    close_open_requests(settled)
    upload(settled, "of known scale", 450, metadata='{"mpp": "0.1"}')
    page = begin(Person(browser, settled, "cleo"))
    for presses in (0, 2):
        for _ in range(presses):
            page.keyboard.press("+")
        page.keyboard.press("r")
        page.select_option("[data-references-class]", "blast")
        page.wait_for_selector("dialog .crop img[style*=width] >> nth=5")
        image = page.evaluate("document.querySelector('.stage img').getBoundingClientRect().height")
        widths = page.evaluate("[...document.querySelectorAll('dialog .crop img')].map((one) => one.offsetWidth)")
        assert widths == [pytest.approx(image / 2, abs=1)] * 6
        assert "Same scale as the cell" in page.inner_text("dialog")
        page.select_option("[data-references-class]", "lymphocyte")
        page.wait_for_selector("dialog [data-reference-class=lymphocyte]")
        assert page.locator("dialog li:has-text('scale unknown')").count() == 6
        assert page.locator("dialog .crop").count() == 0
        page.keyboard.press("Escape")
