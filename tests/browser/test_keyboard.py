"""An annotator's day by keyboard alone, with the wider field around a cell, and a connection that breaks."""

from contextlib import suppress

import pytest
from playwright.sync_api import Browser, Page, Route
from playwright.sync_api import Error as BrowserError
from sqlalchemy import select

from app.database.tables import Case, Read
from tests.browser.conftest import (
    FRAME,
    WATCH,
    Person,
    begin,
    begin_with,
    close_open_requests,
    given,
    handles_of,
    kept,
    set_reveal,
    shown,
    until,
    upload,
)
from tests.support.images import encode, photo
from tests.support.process import Installation
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.ci]

CASES = 8
_CASE = "document.querySelector('[data-read]')?.dataset.case"


@pytest.fixture(scope="module")
def many(installation: Installation) -> Installation:
    set_reveal(installation, "after_case_closed")
    for number in range(CASES):
        upload(installation, f"cell {number}", 100 + number, patient=f"p{number}")
    return installation


def stored(made: Installation, name: str) -> int:
    return len(given(made, name))


def focus(page: Page) -> str:
    found: str = page.evaluate("document.activeElement.tagName + ' ' + (document.activeElement.value ?? '')")
    return found


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
    ben, page = begin_with(browser, many, "ben")
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
    renewed: list[str] = []  # leases that the page asks for while the service declines the read
    page.route("**/decline", lambda route: (renewed.clear(), page.wait_for_timeout(1500), route.continue_()))
    page.on("request", lambda request: renewed.append(request.url) if request.method == "PATCH" else None)
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Skipped.")
    assert renewed == []
    assert many.rows(select(Read.decline_reason).where(Read.state == "declined")) == [("image_quality",)]
    assert ben.faults == []


def test_keys_can_be_chosen_and_switched_off(browser: Browser, many: Installation) -> None:
    ben, page = begin_with(browser, many, "ben")
    page.keyboard.press("?")
    box = page.locator(".key-choice:has-text('Lymphocyte') input")
    box.focus()
    page.keyboard.press("x")
    assert "is already the key of “cannot tell”" in page.inner_text("[data-keys-told]")
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
    _, page = begin_with(browser, many, "ben")
    page.click("text=Confidence, flag and note")
    page.locator("form[action$=label] textarea").press_sequentially("blue sun, 12 granules")
    assert page.locator("[name=label]:checked").count() == 0
    assert page.input_value("form[action$=label] textarea") == "blue sun, 12 granules"


@pytest.mark.parametrize("arrives", [False, True])
def test_a_cut_connection_stores_exactly_one_label(browser: Browser, many: Installation, arrives: bool) -> None:
    """The request is lost on its way, or its answer is on the way back; then the page is even loaded anew."""
    before = stored(many, "cleo")
    _, page = begin_with(browser, many, "cleo")
    tries = []

    def cut(route: Route) -> None:
        tries.append(route.request.url)
        with suppress(BrowserError):  # the page was loaded anew meanwhile
            if arrives:
                route.fetch(max_redirects=0)
        with suppress(BrowserError):  # a fetch that fails cuts the connection all the same
            route.abort("connectionreset")

    page.route("**/label", cut)
    page.keyboard.press("3")
    page.wait_for_selector("text=No connection")
    until(page, lambda: len(tries) >= 2, "it is tried again, and fails again")
    assert stored(many, "cleo") == before + int(arrives)
    page.reload()
    page.wait_for_selector("[data-status]:has-text('No connection'), [data-action=next]")
    page.unroute("**/label")
    # asked from here: what waits inside the page would evaluate a text there, and the page's policy forbids that
    wait_until(lambda: kept(page) == [], what="the outbox is full")
    page.wait_for_load_state("networkidle")
    assert stored(many, "cleo") == before + 1


def test_the_notice_of_a_lost_connection_ends_once_the_answer_is_stored(browser: Browser, many: Installation) -> None:
    before = stored(many, "cleo")
    _, page = begin_with(browser, many, "cleo")
    page.route("**/label", lambda route: route.abort("connectionreset"))
    page.keyboard.press("3")
    page.wait_for_selector("[data-status].alert:has-text('No connection')")
    page.unroute("**/label")
    wait_until(lambda: kept(page) == [], what="the outbox is empty")
    wait_until(lambda: page.inner_text("[data-status]") == "", what="the notice is gone")
    assert "alert" not in (page.get_attribute("[data-status]", "class") or "")
    assert stored(many, "cleo") == before + 1


def test_a_search_marks_what_enter_takes_and_prefers_the_beginning_of_a_word(
    browser: Browser, many: Installation
) -> None:
    _, page = begin_with(browser, many, "cleo")
    sent: list[str] = []
    page.route("**/label", lambda route: sent.append(route.request.post_data or "") or route.abort())
    marked = page.locator(".choice.marked span")
    page.keyboard.press("/")
    page.keyboard.type("cyt")  # within three names: the first of them
    assert marked.inner_text() == "Immature granulocyte"
    for _ in "cyt":
        page.keyboard.press("Backspace")
    assert marked.count() == 0
    page.keyboard.press("Enter")
    assert sent == []
    page.keyboard.type("neutro")
    assert marked.inner_text() == "Band neutrophil"
    page.keyboard.press("ArrowDown")
    assert marked.inner_text() == "Segmented neutrophil"
    page.keyboard.press("Enter")
    until(page, lambda: len(sent) > 0, "the marked class is sent")
    assert "label=segmented" in sent[0]
    page.evaluate("localStorage.clear()")


def test_the_next_image_is_there_before_it_is_asked_for(browser: Browser, many: Installation) -> None:
    _, page = begin_with(browser, many, "cleo")
    seen, asked = page.get_attribute(".viewer img", "src"), []
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/image") else None)
    page.keyboard.press("1")
    shown = page.get_attribute(".viewer img", "src")
    assert shown != seen
    assert page.evaluate("document.querySelector('.viewer img').complete")
    page.wait_for_load_state("networkidle")
    assert shown not in "".join(asked)


@pytest.mark.slow
def test_many_classes_are_searched_and_breaks_are_for_who_wants_them(browser: Browser, many: Installation) -> None:
    _, page = begin_with(browser, many, "ben")
    page.keyboard.press("/")
    page.keyboard.type("neutro")
    choices = [choice.inner_text() for choice in page.locator(".choices .choice").all() if choice.is_visible()]
    assert [choice.split("\n")[0] for choice in choices] == ["Band neutrophil", "Segmented neutrophil"]
    page.fill("[data-search]", "granulocytes")  # a heading
    assert len([choice for choice in page.locator(".choices .choice").all() if choice.is_visible()]) == 4
    headings = [choice.inner_text() for choice in page.locator(".group-name").all() if choice.is_visible()]
    assert headings == ["Granulocytes"]
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


_BUTTON = "[data-around-open]"
_SHOWN = "document.querySelector('.viewer .stage img').getAttribute('src')"
_TOOLS = """JSON.stringify([...document.querySelectorAll('.tools :is(button, summary)')].map((one) => {
  const { x, y, width, height } = one.getBoundingClientRect();
  return [x, y, width, height];
}))"""

#: The width of the light's tools after the browser has read their opening tag, but not yet their summary.
_HALF_ARRIVED = """() => {
  const half = document.querySelector('.tools .adjust').cloneNode();
  document.querySelector('.tools').append(half);
  const { width } = half.getBoundingClientRect();
  half.remove();
  return width;
}"""


def store(made: Installation, name: str, *numbers: int, without: int | None = None) -> set[str]:
    """Store cases, all but one with a field; nobody reads others any more. Gives those without one, by identifier."""
    close_open_requests(made)
    field = encode(photo(1, 240))
    for number in numbers:
        upload(made, f"{name} {number}", number, field=None if number == without else field, metadata='{"mpp": "0.12"}')
    return {str(case_id) for (case_id,) in made.rows(select(Case.id).where(Case.stored_field_sha256.is_(None)))}


def is_field(page: Page) -> bool:
    return str(page.evaluate(_SHOWN)).endswith("/field")


@pytest.mark.slow
def test_a_key_shows_the_field_and_the_cell_again_and_nothing_moves(browser: Browser, many: Installation) -> None:
    bare = store(many, "key", 7000, 7001, 7002, 7003, without=7002)
    reader, page = begin_with(browser, many, "anna")
    without = handles_of(many, "anna", bare)
    page.evaluate(WATCH)
    assert page.evaluate(_HALF_ARRIVED) == 0
    frame, tools = page.evaluate(FRAME), page.evaluate(_TOOLS)
    seen: list[str] = []
    for number in range(4):
        until(page, lambda: shown(page) not in {*seen, ""}, f"no case after {number}")
        case = shown(page)
        seen.append(case)
        assert not is_field(page)  # each case begins with its cell
        if case in without:
            assert page.locator(_BUTTON).is_disabled()
            assert not page.locator(_BUTTON).is_visible()
            page.keyboard.press("w")
            assert not is_field(page)
        else:
            page.keyboard.press("w")
            until(page, lambda: is_field(page), "the field comes")
            assert str(page.evaluate(_SHOWN)) == f"/v1/cases/{case}/field"
            assert page.locator(_BUTTON).get_attribute("aria-pressed") == "true"
            assert not page.locator("[data-scale]").is_visible()  # nobody said how large its pixels are
            page.keyboard.press("+")
            zoomed = page.inner_text("[data-zoom-value]")
            page.keyboard.press("w")
            until(page, lambda: not is_field(page), "and the cell again")
            assert page.locator("[data-scale]").is_visible()
            assert page.inner_text("[data-zoom-value]") != zoomed
            page.keyboard.press("w")  # as it was left
            until(page, lambda: is_field(page), "the field again")
            assert page.inner_text("[data-zoom-value]") == zoomed
        assert (page.evaluate(FRAME), page.evaluate(_TOOLS), page.evaluate("window.shifts")) == (frame, tools, [])
        page.keyboard.press("b")  # the field is open: the answer goes on all the same
    until(page, lambda: kept(page) == [], "answers are on their way")
    assert len(set(seen) & without) == 1
    assert reader.faults == []


@pytest.mark.slow
def test_a_field_that_is_late_or_does_not_come(browser: Browser, many: Installation) -> None:
    store(many, "late", 7100, 7101, 7102)
    reader, page = begin_with(browser, many, "cleo")
    held: list[Route] = []
    page.route("**/field", lambda route: held.append(route))
    first = shown(page)
    page.keyboard.press("w")
    until(page, lambda: len(held) == 1, "it is asked for")
    page.keyboard.press("b")
    until(page, lambda: shown(page) not in {first, ""}, "the next case")
    held.pop().continue_()
    page.wait_for_load_state("networkidle")
    assert not is_field(page)  # it came for the case before
    assert page.locator(_BUTTON).get_attribute("aria-pressed") == "false"
    page.keyboard.press("w")
    until(page, lambda: len(held) == 1, "it is asked for")
    held.pop().abort()
    until(page, lambda: "could not be loaded" in page.inner_text("[data-status]"), "it says so")
    assert page.locator(_BUTTON).get_attribute("aria-pressed") == "false"
    page.unroute("**/field")
    page.keyboard.press("w")  # and once more
    until(page, lambda: is_field(page), "the field comes")
    assert [fault for fault in reader.faults if "net::ERR_FAILED" not in fault] == []


@pytest.mark.slow
def test_classes_are_edited_on_a_page_and_own_keys_are_stronger(browser: Browser, many: Installation) -> None:
    lead = Person(browser, many, "lead")
    page = lead.go("/classes")
    lead.look("classes")
    page.fill("#name-blast", "Blast cell")
    page.fill("#key-blast", "m")
    lead.follow("text=Save the classes")
    assert page.get_attribute("#key-monocyte", "aria-invalid") == "true"
    assert page.evaluate("document.activeElement.id") == "key-monocyte"
    assert page.input_value("#name-blast") == "Blast cell"
    lead.look("classes with a fault")
    page.fill("#key-monocyte", "q")
    page.fill("#place-monocyte", "1")
    lead.follow("text=Save the classes")
    anna, reading = begin_with(browser, many, "anna", 4)
    assert reading.locator(".choice").first.inner_text().startswith("Monocyte")
    for own, key, code in ((None, "m", "blast"), (None, "q", "monocyte"), ("z", "z", "blast")):
        if own is not None:
            reading.evaluate(f"""localStorage.setItem("secondread.keys", '{{"class:blast": "{own}"}}')""")
            reading = begin(anna)
        case = shown(reading)
        assert reading.locator(f"label:has([value={code}]) kbd").inner_text() == key
        reading.keyboard.press(key)
        until(reading, lambda: shown(reading) not in {case, ""}, "it goes on")  # noqa: B023
        until(reading, lambda: kept(reading) == [], "it is stored")  # noqa: B023
        assert given(many, "anna")[-1][2] == code
    lead.follow("text=Restore the model release's classes")
    assert page.input_value("#name-blast") == "Blast"
    assert anna.faults == []
