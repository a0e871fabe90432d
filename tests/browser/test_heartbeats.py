"""A page that nobody uses lets its lease go and says so, and the worst hour of a resident loses nothing."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from playwright.sync_api import Browser, Page, Route
from sqlalchemy import select

from app.database.tables import Label, Read, Remark
from tests.browser.conftest import Person, begin_with, given, hold_clock, kept, set_reveal, shown, until, upload
from tests.support.process import Installation


def looked_at(page: Page) -> None:
    """Answers that have arrived are looked at by the page: whatever it asks for now comes after them."""
    page.evaluate("fetch('/healthz').then((answer) => answer.text())")


def a_second_later(page: Page, selector: str) -> str:
    """What an element says when the page's clock has gone on by a second."""
    page.clock.run_for(1_000)
    return page.inner_text(selector)


@pytest.mark.slow
def test_only_a_sign_of_a_person_extends_a_lease(browser: Browser, installation: Installation) -> None:
    upload(installation, "watched", 400, patient="w")
    cleo = Person(browser, installation, "cleo")
    page, beats = cleo.page, []
    page.on("request", lambda request: beats.append(request.url) if request.method == "PATCH" else None)
    hold_clock(page)
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-read]")
    with page.expect_response("**/v1/reads/*"):  # opening the page is a sign
        page.clock.run_for(2_000)
    looked_at(page)
    page.clock.run_for(500_000)
    assert len(beats) == 1
    assert page.inner_text("[data-status]") == ""
    page.clock.run_for(50_000)
    assert "will be returned in less than a minute" in page.inner_text("[data-status]")
    page.keyboard.press("Shift")
    with page.expect_response("**/v1/reads/*"):
        page.clock.run_for(2_000)
    looked_at(page)
    until(page, lambda: page.inner_text("[data-status]") == "", "the warning is taken back")
    assert len(beats) == 2
    page.clock.run_for(700_000)
    assert len(beats) == 2
    assert "Your time for this cell has expired" in page.inner_text("[data-status]")
    assert cleo.faults == []


@pytest.mark.slow
def test_a_page_whose_answer_is_under_way_asks_for_no_more_time(browser: Browser, installation: Installation) -> None:
    upload(installation, "declined", 402, patient="d")
    cleo = Person(browser, installation, "cleo")
    page, beats, held = cleo.page, [], []
    page.on("request", lambda request: beats.append(request.url) if request.method == "PATCH" else None)
    page.route("**/reads/*/decline", lambda route: held.append(route))  # it goes on when the test says so
    hold_clock(page)
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-read]")
    page.click("summary:has-text('Skip')")
    page.check("input[value=image_quality]")
    page.click("text=Skip this cell")
    until(page, lambda: len(held) == 1, "the decline is under way")
    page.clock.run_for(3_000)
    assert beats == []
    held[0].continue_()
    page.wait_for_url("**/worklist")
    assert cleo.faults == []


@pytest.mark.slow
def test_a_session_warns_before_it_ends_and_signs_extend_it(browser: Browser, installation: Installation) -> None:
    upload(installation, "idle", 401, patient="i")
    cleo = Person(browser, installation, "cleo")
    page = cleo.page
    hold_clock(page)
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-read]")
    page.keyboard.press("b")
    with page.expect_response("**/v1/reads/*"):
        page.clock.run_for(2_000)
    looked_at(page)
    state = "[document.activeElement.value, document.querySelector('[name=label]:checked').value]"
    before = page.evaluate(state)
    page.clock.fast_forward(27 * 60_000)
    assert page.inner_text("[data-session]") == ""
    page.clock.fast_forward(75_000)
    assert "You will be signed out in about a minute" in page.inner_text("[data-session]")
    assert page.get_attribute("[data-session]", "aria-live") == "polite"
    assert page.evaluate(state) == before
    with page.expect_response("**/session") as kept:
        page.keyboard.press("Shift")
        page.clock.run_for(2_000)
    looked_at(page)
    assert kept.value.status == 204
    until(page, lambda: a_second_later(page, "[data-session]") == "", "the warning is taken back")
    page.clock.fast_forward(31 * 60_000)
    assert "You have been signed out" in page.inner_text("[data-session]")
    assert page.evaluate(state) == before
    assert cleo.faults == []


@pytest.mark.slow
def test_a_session_that_grows_old_says_so_to_busy_people(browser: Browser, installation: Installation) -> None:
    cleo = Person(browser, installation, "cleo")
    page = cleo.page
    hold_clock(page)
    cleo.go("/help")
    page.wait_for_selector(".js")
    page.clock.fast_forward((12 * 60 - 3) * 60_000)
    page.keyboard.press("Shift")
    with page.expect_response("**/session"):
        page.clock.run_for(2_000)
    looked_at(page)
    page.clock.run_for(90_000)
    assert "Your session of twelve hours ends in about a minute" in page.inner_text("[data-session]")


@pytest.mark.slow
def test_an_image_that_cannot_be_drawn_holds_up_nobody(browser: Browser, blind: Installation) -> None:
    """It comes whole and is none: the case is shown as such, takes no class, and can be given away."""
    _, page = begin_with(browser, blind, "cleo", 4)
    first, broken = [shown(page)], list[str]()

    def spoil(route: Route) -> None:
        name = route.request.url.split("/")[-2]
        if not broken and not first:
            return route.continue_()
        if name not in {*broken, *first}:
            broken.extend([] if broken else [name])
        if name in broken:
            return route.fulfill(body=b"no image", content_type="image/png")
        return route.continue_()

    page.route("**/v1/cases/*/image", spoil)
    page.reload()
    page.keyboard.press("b")
    until(page, lambda: bool(broken), "an image ahead is spoiled")
    for _ in range(3):
        until(page, lambda: shown(page) not in {*first, ""}, "it goes on")
        if shown(page) == broken[0]:
            break
        first.append(shown(page))
        page.keyboard.press("b")
    page.wait_for_selector("text=cannot be shown")
    before = len(given(blind, "cleo"))
    page.keyboard.press("m")
    page.keyboard.press("Enter")
    assert shown(page) == broken[0]
    page.keyboard.press("x")
    until(page, lambda: shown(page) != broken[0], "it is given away")
    until(page, lambda: kept(page) == [], "answers are on their way")
    assert broken[0] not in {handle for handle, *_ in given(blind, "cleo")[before:]}


@pytest.mark.slow
def test_a_second_tab_sends_no_answer_without_its_note(browser: Browser, blind: Installation) -> None:
    ben, page = begin_with(browser, blind, "ben", 4)
    case = shown(page)
    page.route("**/reads/*/label", lambda route: route.abort())
    page.evaluate("document.querySelector('form[data-answer] [name=note]').value = 'seen in the first tab'")
    page.keyboard.press("m")
    until(page, lambda: kept(page) != [], "it waits")
    other = ben.context.new_page()
    other.goto(ben.address + "/worklist")
    other.wait_for_timeout(3000)  # time enough to send it, were it that tab's
    assert case not in {handle for handle, *_ in given(blind, "ben")}
    page.unroute_all()
    until(page, lambda: kept(page) == [], "it arrives")
    assert blind.rows(select(Remark.id).where(Remark.note == "seen in the first tab"))


@pytest.mark.slow
def test_a_key_that_is_never_let_go_does_not_count_up(browser: Browser, blind: Installation) -> None:
    """macOS says nothing of a key that is let go while Command is down."""
    _, page = begin_with(browser, blind, "emil", 3)
    case = shown(page)
    page.keyboard.down("b")
    page.keyboard.down("Meta")
    told = page.inner_text("[data-choice]")
    assert told.startswith("Blast")
    page.wait_for_timeout(1200)
    assert page.inner_text("[data-choice]") == told
    page.keyboard.up("Meta")
    page.keyboard.up("b")
    assert shown(page) == case
    page.keyboard.press("Enter")
    until(page, lambda: shown(page) != case and kept(page) == [], "the choice stayed, and Enter sends it")
    assert [label for handle, _, label, _ in given(blind, "emil") if handle == case] == ["blast"]


@pytest.mark.slow
def test_what_cannot_be_told_is_given_away_before_its_person_signs_out(browser: Browser, blind: Installation) -> None:
    cleo, page = begin_with(browser, blind, "cleo", 3)
    read = page.get_attribute("[data-read]", "data-read-id")
    page.keyboard.press("x")
    page.wait_for_selector("text=to undo")
    cleo.follow(".bar form button")
    page.wait_for_selector("[name=password]")
    declined = select(Read.id).where(Read.state == "declined").order_by(Read.ended_at.desc()).limit(1)
    assert [str(row.id) for row in blind.rows(declined)] == [read]


@pytest.mark.slow
def test_the_time_on_a_case_begins_when_shown_though_saying_so_failed(browser: Browser, blind: Installation) -> None:
    _, page = begin_with(browser, blind, "ben", 3)
    failures = [1]
    page.route("**/display", lambda route: route.abort() if failures and failures.pop() else route.continue_())
    case = shown(page)
    pressed_at = datetime.now(UTC)
    with page.expect_response("**/display"):  # two seconds later
        page.keyboard.press("m")
        until(page, lambda: shown(page) not in {case, ""}, "it goes on")
        read = page.get_attribute("[data-read]", "data-read-id")
    stored_at = datetime.now(UTC)
    ((displayed_at,),) = blind.rows(select(Read.displayed_at).where(Read.id == UUID(read)))
    assert displayed_at is not None
    assert pressed_at <= displayed_at <= stored_at - timedelta(seconds=1.9)
    page.keyboard.press("m")
    until(page, lambda: kept(page) == [], "it arrives")


@pytest.mark.slow
def test_a_policy_that_shows_results_ends_the_page_that_reads_on(browser: Browser, blind: Installation) -> None:
    _, page = begin_with(browser, blind, "emil", 4)
    try:
        set_reveal(blind, "after_commit")
        page.keyboard.press("m")
        page.wait_for_selector("[data-read]:not([data-resident])")
        assert kept(page) == []
        ((newest,),) = blind.rows(select(Label.class_code).order_by(Label.id.desc()).limit(1))
        assert newest == "monocyte"
    finally:
        set_reveal(blind, "after_case_closed")
