"""Reference cells beside the image: by a key and by class; an admin's page of them."""

import os
import uuid

import httpx2 as httpx
import pytest
from playwright.sync_api import Browser

from app.audit.chain.keys import derive_keys
from app.cases.ingest import partition_of
from app.settings import Settings
from tests.browser.conftest import FRAME, WATCH, Person, begin, set_reveal, shown, until, upload
from tests.support.process import Installation

N_CELLS = 7


@pytest.fixture(scope="module")
def settled(browser: Browser, installation: Installation) -> Installation:
    """Closed cells of two classes with three readers each, chosen as reference cells, and cases to be read."""
    made = installation
    set_reveal(made, "after_case_closed")
    lead = {"Authorization": f"Bearer {made.keys['lead']}"}
    policy = {"threshold": 0.99, "adjudicate_below": None, "audit_rate": 1e-9, "repeat_rate": 0, "reason": "once"}
    body = {"json": policy, "headers": lead | {"Idempotency-Key": uuid.uuid4().hex}}
    assert httpx.post(f"{made.address}/v1/policies", **body).status_code == 201
    key = derive_keys(Settings(home=made.home).key_ring()).partition
    names = (f"settled {n}" for n in range(1000) if partition_of(key, None, f"settled {n}") == "calibration")
    codes: list[str] = []
    for number in range(2 * N_CELLS):
        case_id = upload(made, next(names), 300 + number)
        codes = codes or httpx.get(f"{made.address}/v1/cases/{case_id}", headers=lead).json()["prediction"]["classes"]
        for reader in range(3):
            label = {"label": codes[number % 2], "blind": True, "annotator": f"outside {reader}"}
            headers = {"Authorization": f"Bearer {made.keys['lis']}", "Idempotency-Key": uuid.uuid4().hex}
            answer = httpx.post(f"{made.address}/v1/cases/{case_id}/labels", json=label, headers=headers)
            assert answer.status_code == 201, answer.text
    for number in range(4):
        upload(made, f"to be read {number}", 400 + number)
    choose_cells(browser, made)
    return made


def look(person: Person, name: str) -> None:
    """What the open page violates, and whether it is wider than its window; pictures where somebody wants them."""
    page, folder = person.page, os.environ.get("SECONDREAD_PICTURES")
    before = page.viewport_size
    assert before is not None
    page.wait_for_load_state("networkidle")
    assert person.violations() == [], name
    for width, height in ((390, 844), (1366, 768), (2560, 1440)):
        page.set_viewport_size({"width": width, "height": height})
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} at {width} px"
        if folder:
            page.wait_for_timeout(200)
            page.screenshot(path=f"{folder}/{name}-{width}{'-dark' if person.dark else ''}.png")
    page.set_viewport_size(before)


def choose_cells(browser: Browser, made: Installation) -> None:
    admin = Person(browser, made, "lead")
    page = admin.go("/references")
    look(admin, "references-list")
    admin.follow("text=Choose the cells of all classes")
    page.click("main li a >> nth=0")
    page.wait_for_selector("h1:has-text('Reference cells of')")
    page.fill("[name=text]", "Large, with a fine chromatin.\nLittle cytoplasm.")
    admin.follow("text=Save the definition")
    assert page.locator(".tile button:text-is('Pin')").count() == 7
    look(admin, "references-managed")
    admin.follow(".tile button:text-is('Pin') >> nth=0")
    assert page.locator(".tile button:text-is('Unpin')").count() == 1
    page.fill(".tile [name=reason] >> nth=1", "out of focus")
    admin.follow(".tile button:text-is('Exclude') >> nth=1")
    assert "out of focus" in page.inner_text("main")
    admin.follow("text=Take it back")
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
        assert "all 3 readers" in page.inner_text("dialog")
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
        look(reader, "references-dialog")
        page.keyboard.press("Escape")
        page.keyboard.press("b")
        until(page, lambda: shown(page) not in {case, ""}, "the key answers again")  # noqa: B023
        assert reader.faults == []
