"""The wider field around a cell: in its place by a key, back by the same key or with the next case, nothing moves."""

from uuid import UUID

import pytest
from playwright.sync_api import Browser, Page, Route
from sqlalchemy import select, update

from app.audit.chain.keys import derive_keys
from app.database.engine import Database
from app.database.tables import Account, Case, ReadRequest, utc_now
from app.settings import Settings
from tests.browser.conftest import Person, handle_of, set_reveal, until, upload
from tests.browser.test_keyboard import kept
from tests.browser.test_resident import FRAME, SIZES, WATCH, begin, shown
from tests.support.images import encode, photo
from tests.support.process import Installation

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


@pytest.fixture(scope="module")
def wide(installation: Installation) -> Installation:
    """A service whose cases stay closed until all have read them, and where nothing waits but what a test stores."""
    set_reveal(installation, "after_case_closed")
    return installation


def store(made: Installation, name: str, *numbers: int, without: int | None = None) -> set[str]:
    """Store cases, all but one with a field; nobody reads others any more. Gives those without one, by identifier."""
    database = Database(made.sqlalchemy_url)
    with database.write() as session:
        session.execute(
            update(ReadRequest).where(ReadRequest.state == "open").values(state="closed", closed_at=utc_now())
        )
    database.engine.dispose()
    field = encode(photo(1, 240))
    for number in numbers:
        upload(made, f"{name} {number}", number, field=None if number == without else field, metadata='{"mpp": "0.12"}')
    with (database := Database(made.sqlalchemy_url)).read() as session:
        bare = select(Case.id).where(Case.stored_field_sha256.is_(None))
        found = {str(case_id) for case_id in session.execute(bare).scalars()}
    database.engine.dispose()
    return found


def bare_handles(made: Installation, name: str, bare: set[str]) -> set[str]:
    """What an annotator knows the cases without a field by."""
    database, keys = Database(made.sqlalchemy_url), derive_keys(Settings(home=made.home).key_ring()).readers
    with database.read() as session:
        account_id = session.execute(select(Account.id).where(Account.name == name)).scalar_one()
    database.engine.dispose()
    return {handle_of(keys, account_id, UUID(case_id)) for case_id in bare}


def is_field(page: Page) -> bool:
    return str(page.evaluate(_SHOWN)).endswith("/field")


@pytest.mark.slow
def test_a_key_shows_the_field_and_the_cell_again_and_nothing_moves(browser: Browser, wide: Installation) -> None:
    bare = store(wide, "key", 7000, 7001, 7002, 7003, without=7002)
    reader = Person(browser, wide, "anna")
    page = begin(reader)
    without = bare_handles(wide, "anna", bare)
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
def test_a_field_that_is_late_or_does_not_come(browser: Browser, wide: Installation) -> None:
    store(wide, "late", 7100, 7101, 7102)
    reader = Person(browser, wide, "cleo")
    page = begin(reader)
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
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_button_fits_every_screen(browser: Browser, wide: Installation, scheme: str) -> None:
    store(wide, f"fits {scheme}", *range(7200, 7203))
    reader = Person(browser, wide, "emil", scheme)
    page = begin(reader)
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        box, light = page.locator(_BUTTON).bounding_box(), page.locator(".adjust > summary").bounding_box()
        assert box is not None
        assert light is not None
        assert box["x"] + box["width"] <= light["x"]
        assert light["x"] + light["width"] <= width
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (width, height)
    page.keyboard.press("w")
    until(page, lambda: is_field(page), "the field comes")
    assert reader.violations() == []
    assert reader.faults == []


@pytest.mark.slow
def test_without_javascript_a_link_leads_to_the_field(browser: Browser, wide: Installation) -> None:
    bare = store(wide, "plain", 7300, 7301, without=7301)
    reader = Person(browser, wide, "anna")
    plain = browser.new_context(java_script_enabled=False, storage_state=reader.context.storage_state()).new_page()
    without = bare_handles(wide, "anna", bare)
    for _ in range(2):
        plain.goto(f"{wide.address}/worklist")
        with plain.expect_navigation():  # until it is loaded
            plain.click("main button")
        case = plain.url.rpartition("/")[2]
        link = plain.locator("noscript a, .viewer .around a")
        assert link.count() == (0 if case in without else 1)
        if case not in without:
            with plain.expect_navigation():
                link.click()
            assert plain.url.endswith(f"/v1/cases/{case}/field")
            plain.go_back()
        plain.check("[name=label] >> nth=0")
        with plain.expect_navigation():
            plain.click("[data-action=commit]")
        assert ("Neighbouring field" in plain.content()) == (case not in without)
        if case not in without:
            plain.click("details.around summary")
            assert plain.locator("details.around img").is_visible()
    assert reader.faults == []
