"""The gallery by class with 5,000 cells, by keyboard."""

import uuid
from typing import Any

import pytest
from playwright.sync_api import Browser, Page
from sqlalchemy import func, insert, select

from app.database.engine import Database
from app.database.tables import Annotator, Case, CasePrediction, Exposure, Label, new_id
from tests.browser.conftest import WATCH, Person, until, upload
from tests.support.process import Installation

CELLS, PICTURES = 5000, 60
ACTIVE = "document.querySelector('.cell-tile.active')?.dataset.name ?? ''"


def fill(made: Installation, n: int) -> None:
    """Store so many cells, of which the first have their own pictures and the others share these."""
    stored = [upload(made, f"cell {number}", 500 + number) for number in range(PICTURES)]
    database = Database(made.sqlalchemy_url)
    tables = [Case.__table__, CasePrediction.__table__]
    with database.engine.connect() as connection:
        rows: list[list[dict[str, Any]]] = []
        for table, column in zip(tables, (Case.id, CasePrediction.case_id), strict=True):
            found = connection.execute(select(table).where(column.in_([uuid.UUID(one) for one in stored]))).mappings()
            rows.append(sorted((dict(row) for row in found), key=lambda row: str(row.get("case_id", row["id"]))))
    cases, predictions = [], []
    for number in range(n - PICTURES):
        case = new_id()
        kept = number % PICTURES
        cases.append(rows[0][kept] | {"id": case, "external_id": f"further cell {number}", "waiting": False})
        predictions.append(rows[1][kept] | {"id": new_id(), "case_id": case})
    with database.engine.begin() as connection:  # not the one that has read: another writer may come between
        connection.execute(insert(tables[0]), cases)
        connection.execute(insert(tables[1]), predictions)
    database.engine.dispose()


def stored(made: Installation) -> list[tuple[str, str | None, bool]]:
    """Kind, class and blindness of all labels of the lead, oldest first."""
    wanted = select(Label.kind, Label.class_code, Label.blind).join(Annotator, Annotator.id == Label.annotator_id)
    return [tuple(row) for row in made.rows(wanted.where(Annotator.name == "lead").order_by(Label.id))]


def group_of(page: Page, name: str) -> str:
    found: str = page.evaluate(
        f"document.querySelector('[data-name=\"{name}\"]')?.closest('section').dataset.group ?? ''"
    )
    return found


def tiles(page: Page) -> int:
    return page.locator(".cell-tile").count()


@pytest.mark.slow
@pytest.mark.ci
def test_thousands_of_cells_by_keyboard_alone(browser: Browser, installation: Installation) -> None:
    fill(installation, CELLS)
    lead = Person(browser, installation, "lead")
    page, sizes = lead.page, []
    page.set_viewport_size({"width": 1366, "height": 768})
    page.on("requestfinished", lambda request: sizes.append(request.sizes()["responseBodySize"]))
    lead.go("/cells/gallery")
    page.evaluate(WATCH)
    page.wait_for_selector(".cell-tile img")
    page.wait_for_load_state("networkidle")
    assert sum(sizes) < 400_000
    lead.look("gallery")
    # the shifts of the changes of size come with a later frame
    page.evaluate(
        "new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(drawn, 500))))"
    )
    page.evaluate("window.shifts = []")

    # a window full of tiles is in the page, wherever it is, and only what was drawn counts as seen
    most = 0
    for _ in range(12):
        page.mouse.wheel(0, 2500)
        page.wait_for_timeout(100)
        most = max(most, tiles(page))
    assert 0 < most < 300
    page.wait_for_load_state("networkidle")
    seen = installation.rows(select(func.count()).select_from(Exposure))[0][0]
    assert most <= seen < CELLS / 2
    page.evaluate("window.scrollTo(0, 0)")

    # a range gets another class by the key that it has in reading, and gets it back
    page.locator("[role=listbox]:visible").first.focus()
    for key in ("ArrowDown", "Shift+ArrowRight", "Shift+ArrowRight"):
        page.keyboard.press(key)
    until(page, lambda: page.locator(".cell-tile[aria-selected=true]").count() == 3, "three are selected")
    name = page.evaluate(ACTIVE)
    own = group_of(page, name)
    other = next(code for code in ("basophil", "blast") if code != own)
    page.keyboard.press("o" if other == "basophil" else "b")
    until(page, lambda: len(stored(installation)) == 3, "they are labelled")
    assert stored(installation) == [("label", other, False)] * 3
    until(page, lambda: group_of(page, name) != own, "they have moved")
    page.keyboard.press("z")
    until(page, lambda: group_of(page, name) == own, "they are back")
    assert stored(installation)[3:] == [("retraction", None, False)] * 3

    # Enter confirms a row, and goes on to the next one
    columns = page.evaluate(
        "[...document.querySelectorAll('.cell-tile')].filter((one) => one.style.transform.endsWith(', 0px)') &&"
        f" one.closest('section').dataset.group === '{own}').length"
    )
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")
    until(page, lambda: len(stored(installation)) == 6 + columns, "the row is confirmed")
    assert set(stored(installation)[6:]) <= {("label", own, False), ("revision", own, False)}
    until(page, lambda: page.locator(".cell-tile.settled").count() == columns, "they have a mark")
    page.keyboard.press("Control+z")
    until(page, lambda: page.locator(".cell-tile.settled").count() == 0, "the mark is gone")
    assert page.evaluate("window.shifts") == []
    assert lead.faults == []


@pytest.mark.slow
@pytest.mark.ci
def test_the_gallery_without_scripts_and_for_whom_it_is_not(browser: Browser, installation: Installation) -> None:
    anna = Person(browser, installation, "anna")
    answer = anna.page.goto(installation.address + "/cells/gallery")
    assert answer is not None
    assert answer.status == 403
    lead = Person(browser, installation, "lead")
    state = lead.context.storage_state()
    page = browser.new_context(java_script_enabled=False, storage_state=state).new_page()
    page.goto(installation.address + "/cells/gallery")
    before = len(stored(installation))
    for box in page.locator("[name=cell]").all()[:2]:
        box.check()
    page.locator("[name=label]").first.check()
    page.get_by_role("button", name="Give this class").click()
    page.wait_for_selector("text=The outcomes are stored.")
    assert len(stored(installation)) == before + 2
    page.get_by_role("button", name="Undo").click()
    page.wait_for_selector("text=The outcomes are stored.")
    assert {kind for kind, _, _ in stored(installation)[before + 2 :]} <= {"retraction", "revision"}
