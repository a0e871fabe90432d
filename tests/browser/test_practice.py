"""Practice by keyboard alone: training with feedback, a qualification without, and an admin's page of both."""

import re

import pytest
from playwright.sync_api import Browser

from tests.browser.conftest import Person, read_by_outsiders, set_policy, upload
from tests.support.process import Installation

CELLS = 16


@pytest.fixture(scope="module")
def settled(installation: Installation) -> Installation:
    """Closed cells with three labels each."""
    set_policy(installation, threshold=0.99, audit_rate=1e-9, require_qualification=True)
    for number in range(CELLS):
        case_id = upload(installation, f"settled {number}", 300 + number)
        read_by_outsiders(installation, case_id, number % 2, number % 2, (number + (number % 4 == 0)) % 2)
    return installation


@pytest.mark.slow
def test_training_and_a_qualification_by_keyboard(browser: Browser, settled: Installation) -> None:
    admin = Person(browser, settled, "lead")
    page = admin.go("/practice")
    for name, purpose, cells in (("First steps", "training", 4), ("Entrance", "qualification", 10)):
        page.fill("[name=name] >> nth=0", name)
        page.select_option("[name=purpose]", purpose)
        page.fill("[name=n_cells]", str(cells))
        page.click("summary:has-text('More')")
        page.fill("[name=borderline_share]", "0.5")
        page.click("text=Choose cells")
        page.wait_for_selector(f"h2:has-text('{name}')")
    anna = Person(browser, settled, "anna")
    assert "You need a qualification" in anna.page.inner_text("main")
    anna.look("to-read-unqualified")
    anna.page.keyboard.press("Enter")
    anna.page.wait_for_url("**/practice")
    anna.look("practice")
    _train(anna)
    _qualify(anna)
    page.reload()
    page.click("text=Decide manually >> nth=0")
    admin.look("practice-sets")
    page.fill("[name=reason] >> nth=0", "seen them read")
    page.click("text=Save >> nth=0")
    page.wait_for_selector("text=lead qualified: seen them read")
    assert anna.faults == admin.faults == []


def _train(anna: Person) -> None:
    page = anna.page
    page.click("section:has-text('First steps') button")
    for number in range(1, 5):
        page.wait_for_selector(f"text=cell {number} of 4")
        if number == 1:
            anna.look("training")
        page.keyboard.press("2")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=How others answered >> nth=0")
        assert re.search(r"\d of 3 chose", page.inner_text("main"))
        if number == 1:
            anna.look("feedback")
        page.keyboard.press("Enter")
    page.wait_for_selector("text=All cells are answered")
    page.keyboard.press("Enter")


def _qualify(anna: Person) -> None:
    page = anna.page
    page.wait_for_url("**/practice")
    page.click("section:has-text('Entrance') button")
    for number in range(1, 6):
        page.wait_for_selector(f"text=cell {number} of 5")
        if number == 2:
            anna.look("qualification")
        assert "chose" not in page.content()
        page.keyboard.press("1")
        page.keyboard.press("Enter")
    page.wait_for_selector("text=for the other annotators")
    anna.look("result")
    page.keyboard.press("Enter")
    page.wait_for_url("**/practice")
    anna.look("practice-after")
