"""An annotator's day by keyboard alone, and a connection that breaks at the worst moment."""

from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route
from playwright.sync_api import Error as BrowserError
from sqlalchemy import func, select

from app.database.engine import Database
from app.database.tables import Annotator, Label, Read
from tests.browser.conftest import Person, set_reveal, until, upload
from tests.support.process import Installation
from tests.support.waiting import wait_until

CASES = 8
_CASE = "document.querySelector('[data-read]')?.dataset.case"


@pytest.fixture(scope="module")
def many(installation: Installation) -> Installation:
    set_reveal(installation, "after_case_closed")
    for number in range(CASES):
        upload(installation, f"cell {number}", 100 + number, patient=f"p{number}")
    return installation


def stored(made: Installation, name: str) -> int:
    """Labels of an annotator in the database."""
    database = Database(made.sqlalchemy_url)
    with database.read() as session:
        found = select(func.count(Label.id)).join(Annotator, Annotator.id == Label.annotator_id)
        count: int = session.execute(found.where(Annotator.name == name)).scalar_one()
    database.engine.dispose()
    return count


def kept(page: Page) -> list[str]:
    """Classes that wait in the browser."""
    resting: dict[str, str] = page.evaluate("({ ...localStorage })")
    return [label for key, label in resting.items() if key.startswith("secondread.outbox.")]


def focus(page: Page) -> str:
    found: str = page.evaluate("document.activeElement.tagName + ' ' + (document.activeElement.value ?? '')")
    return found


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize(("name", "n"), [("anna", CASES), pytest.param("emil", 200, marks=pytest.mark.heavy)])
def test_a_day_by_keyboard_alone(browser: Browser, many: Installation, name: str, n: int) -> None:
    for number in range(CASES, n if n == CASES else CASES + n):  # cases that nobody has read
        upload(many, f"further cell {number}", 1000 + number, patient=f"p{number}")
    reader = Person(browser, many, name)
    page = reader.page
    until(page, lambda: focus(page).startswith("BUTTON"), "the button has the focus")
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-resident]")
    for number in range(n):
        before = f'data-case="{page.evaluate(_CASE)}"'
        page.keyboard.press("blmingeo"[number % 8] if number % 2 else str(1 + number % 8))
        until(page, lambda: before not in page.content(), f"it goes on after {number}")  # noqa: B023
        assert page.locator("[name=label]:checked").count() == 0
    until(page, lambda: kept(page) == [], "the outbox is full")
    reader.go("/worklist")
    assert f"{n} of" in page.inner_text(".day")
    assert stored(many, name) == n
    assert reader.faults == []


def test_a_decline_and_the_image_by_keyboard(browser: Browser, many: Installation) -> None:
    ben = Person(browser, many, "ben")
    page = ben.page
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-read]")
    for key in ("+", "+", "ArrowLeft"):
        page.keyboard.press(key)
    moved = page.evaluate("document.querySelector('.viewer img').style.transform")
    assert "scale(1.5625)" in moved
    assert "translate(60px" in moved
    page.keyboard.press("0")
    assert "scale(1)" in page.evaluate("document.querySelector('.viewer img').style.transform")
    page.keyboard.press("s")
    page.keyboard.press("2")
    assert page.locator("[name=reason]:checked").get_attribute("value") == "image_quality"
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Declined.")
    database = Database(many.sqlalchemy_url)
    with database.read() as session:
        reasons = session.execute(select(Read.decline_reason).where(Read.state == "declined")).scalars().all()
    database.engine.dispose()
    assert reasons == ["image_quality"]
    assert ben.faults == []


def test_keys_can_be_chosen_and_switched_off(browser: Browser, many: Installation) -> None:
    ben = Person(browser, many, "ben")
    page = ben.page
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-read]")
    page.keyboard.press("?")
    box = page.locator(".key-choice:has-text('Lymphocyte') input")
    box.focus()
    page.keyboard.press("x")
    assert "is the key of “cannot tell”" in page.inner_text("[data-keys-told]")
    assert box.input_value() == "l"
    page.keyboard.press("y")
    page.keyboard.press("Escape")
    page.keyboard.press("Shift+L")
    assert page.locator("[name=label]:checked").count() == 0
    page.keyboard.press("Shift+Y")  # it waits for more
    assert page.locator("[name=label]:checked").get_attribute("value") == "lymphocyte"
    page.reload()
    assert "y" in page.inner_text(".choice:has-text('Lymphocyte') kbd")
    page.keyboard.press("?")
    page.uncheck("[data-setting=keys-on]")
    page.keyboard.press("Escape")
    page.keyboard.press("y")
    assert page.locator("[name=label]:checked").count() == 0
    assert ben.faults == []


def test_notes_are_written_and_not_taken_for_keys(browser: Browser, many: Installation) -> None:
    ben = Person(browser, many, "ben")
    page = ben.page
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-read]")
    page.click("text=Confidence, flag and note")
    page.locator("form[action$=label] textarea").press_sequentially("blue sun, 12 granules")
    assert page.locator("[name=label]:checked").count() == 0
    assert page.input_value("form[action$=label] textarea") == "blue sun, 12 granules"


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize("arrives", [False, True])
def test_a_cut_connection_stores_exactly_one_label(browser: Browser, many: Installation, arrives: bool) -> None:
    """The request is lost on its way, or its answer is on the way back; then the page is even loaded anew."""
    name = "cleo"
    before = stored(many, name)
    cleo = Person(browser, many, name)
    page = cleo.page
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-read]")

    tries = []

    def cut(route: Route) -> None:
        tries.append(route.request.url)
        with suppress(BrowserError):  # the page was loaded anew meanwhile
            if arrives:
                route.fetch(max_redirects=0)
            route.abort("connectionreset")

    page.route("**/label", cut)
    page.keyboard.press("3")
    page.wait_for_selector("text=No connection")
    until(page, lambda: len(tries) >= 2, "it is tried again, and fails again")
    assert stored(many, name) == before + int(arrives)
    page.reload()
    page.wait_for_selector("[data-status]:has-text('No connection'), [data-action=next]")
    page.unroute("**/label")
    # asked from here: what waits inside the page would evaluate a text there, and the page's policy forbids that
    wait_until(lambda: kept(page) == [], what="the outbox is full")
    page.wait_for_load_state("networkidle")
    assert stored(many, name) == before + 1


def test_the_next_image_is_there_before_it_is_asked_for(browser: Browser, many: Installation, tmp_path: Path) -> None:
    cleo = Person(browser, many, "cleo")
    page = cleo.page
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-resident]")
    page.wait_for_load_state("networkidle")
    seen, asked = page.get_attribute(".viewer img", "src"), []
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/image") else None)
    page.keyboard.press("1")
    shown = page.get_attribute(".viewer img", "src")
    assert shown != seen
    assert page.evaluate("document.querySelector('.viewer img').complete")
    page.wait_for_load_state("networkidle")
    assert shown not in "".join(asked)


@pytest.mark.slow
def test_many_classes_are_searched_and_breaks_are_only_for_those_who_want_them(
    browser: Browser, many: Installation
) -> None:
    ben = Person(browser, many, "ben")
    page = ben.page
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-resident]")
    page.keyboard.press("/")
    page.keyboard.type("neutro")
    shown = [choice for choice in page.locator(".choices .choice").all() if choice.is_visible()]
    assert [choice.inner_text().split("\n")[0] for choice in shown] == ["Band neutrophil", "Segmented neutrophil"]
    page.fill("[data-search]", "granulocytes")  # a heading
    shown = [choice for choice in page.locator(".choices .choice").all() if choice.is_visible()]
    assert len(shown) == 4
    assert [choice.inner_text() for choice in page.locator(".group-name").all() if choice.is_visible()] == [
        "Granulocytes"
    ]
    before, case = stored(many, "ben"), page.inner_text("h1")
    page.keyboard.press("Enter")  # the first of them
    until(page, lambda: page.inner_text("h1") != case, "it goes on")
    until(page, lambda: stored(many, "ben") == before + 1, "it is stored")
    assert page.input_value("[data-search]") == ""
    hour = 60 * 60 * 1000
    page.evaluate(f"localStorage.setItem('secondread.begun', Date.now() - {hour})")
    page.evaluate("localStorage.setItem('secondread.seen', Date.now())")
    page.reload()
    assert page.inner_text("[data-status]") == ""
    page.evaluate(f"localStorage.setItem('secondread.begun', Date.now() - {hour})")
    page.evaluate("localStorage.setItem('secondread.breaks', true)")
    page.reload()
    page.wait_for_selector("[data-status]:has-text('short break')")
