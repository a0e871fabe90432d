"""Practice by keyboard alone: training with feedback, a qualification without, and an admin's page of both."""

import os
import re
import uuid

import httpx2 as httpx
import pytest
from playwright.sync_api import Browser

from tests.browser.conftest import Person, upload
from tests.support.process import Installation

CELLS = 16


def _post(made: Installation, who: str, path: str, **body: object) -> httpx.Response:
    headers = {"Authorization": f"Bearer {made.keys[who]}", "Idempotency-Key": uuid.uuid4().hex}
    return httpx.post(f"{made.address}/v1{path}", json=body, headers=headers)


@pytest.fixture(scope="module")
def settled(installation: Installation) -> Installation:
    """Closed cells with three labels each."""
    made = installation
    policy = {"threshold": 0.99, "adjudicate_below": None, "audit_rate": 1e-9, "require_qualification": True}
    assert _post(made, "lead", "/policies", **policy, reason="test").status_code == 201
    codes = None
    for number in range(CELLS):
        case_id = upload(made, f"settled {number}", 300 + number)
        if codes is None:
            headers = {"Authorization": f"Bearer {made.keys['lead']}"}
            shown = httpx.get(f"{made.address}/v1/cases/{case_id}", headers=headers).json()
            codes = shown["prediction"]["classes"]
        for reader in range(3):
            body = {"label": codes[(number + (reader == 2 and number % 4 == 0)) % 2], "blind": True}
            answer = _post(made, "lis", f"/cases/{case_id}/labels", annotator=f"outside {reader}", **body)
            assert answer.status_code == 201, answer.text
    return made


def look(person: Person, name: str) -> None:
    """What the open page violates; kept as pictures where somebody wants to see them."""
    page, folder = person.page, os.environ.get("SECONDREAD_PICTURES")
    assert person.violations() == [], name
    for width in (1280, 480):
        page.set_viewport_size({"width": width, "height": 860})
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, f"{name} is {wide} px wide at {width} px"
        if folder:
            page.screenshot(path=f"{folder}/{name}-{width}.png", full_page=True)
    page.set_viewport_size({"width": 1280, "height": 860})


@pytest.mark.slow
def test_training_and_a_qualification_by_keyboard(browser: Browser, settled: Installation) -> None:
    admin = Person(browser, settled, "lead")
    page = admin.go("/practice")
    for name, purpose, cells in (("First steps", "training", 4), ("Entrance", "qualification", 10)):
        page.fill("[name=name] >> nth=0", name)
        page.select_option("[name=purpose]", purpose)
        page.fill("[name=n_cells]", str(cells))
        page.fill("[name=borderline_share]", "0.5")
        page.click("text=Choose cells")
        page.wait_for_selector(f"h2:has-text('{name}')")
    anna = Person(browser, settled, "anna")
    assert "Cases come to you once you are qualified" in anna.page.inner_text("main")
    look(anna, "to-read-unqualified")
    anna.page.keyboard.press("Enter")
    anna.page.wait_for_url("**/practice")
    look(anna, "practice")
    _train(anna)
    _qualify(anna)
    page.reload()
    page.click("text=Decide by hand >> nth=0")
    look(admin, "practice-sets")
    page.fill("[name=reason] >> nth=0", "seen them read")
    page.click("text=Save >> nth=0")
    page.wait_for_selector("text=lead qualified: seen them read")
    assert anna.faults == admin.faults == []


def _train(anna: Person) -> None:
    """Work through the training set."""
    page = anna.page
    page.click("section:has-text('First steps') button")
    for number in range(1, 5):
        page.wait_for_selector(f"text=cell {number} of 4")
        if number == 1:
            look(anna, "training")
        page.keyboard.press("2")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=How others answered >> nth=0")
        assert re.search(r"\d of 3 said", page.inner_text("main"))
        if number == 1:
            look(anna, "feedback")
        page.keyboard.press("Enter")
    page.wait_for_selector("text=All cells are answered")
    page.keyboard.press("Enter")


def _qualify(anna: Person) -> None:
    """Take the qualification, by the first class each time."""
    page = anna.page
    page.wait_for_url("**/practice")
    page.click("section:has-text('Entrance') button")
    for number in range(1, 6):
        page.wait_for_selector(f"text=cell {number} of 5")
        if number == 2:
            look(anna, "qualification")
        assert "said" not in page.content()
        page.keyboard.press("1")
        page.keyboard.press("Enter")
    page.wait_for_selector("text=a member of the pool gets")
    look(anna, "result")
    page.keyboard.press("Enter")
    page.wait_for_url("**/practice")
    look(anna, "practice-after")
