"""The reading page where an image is broken, a second tab is open, keys are swallowed, and people leave in a hurry."""

from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Browser, Route
from sqlalchemy import select

from app.database.engine import Database
from app.database.tables import Label, Read, Remark
from tests.browser.conftest import Person, set_reveal, until, upload
from tests.browser.test_keyboard import kept
from tests.browser.test_resident import begin, given, shown
from tests.browser.test_resident import blind as blind
from tests.support.process import Installation


def read_of(made: Installation, answer: str) -> Read:
    """The newest read that ended with a label, or was declined."""
    database = Database(made.sqlalchemy_url)
    with database.read() as session:
        wanted = select(Read).where(Read.state == answer).order_by(Read.ended_at.desc()).limit(1)
        found = session.execute(wanted).scalar_one()
        session.expunge(found)
    database.engine.dispose()
    return found


@pytest.mark.slow
def test_an_image_that_cannot_be_drawn_holds_up_nobody(browser: Browser, blind: Installation) -> None:
    """It comes whole and is none: the case is shown as such, takes no class, and can be given away."""
    for number in range(4):
        upload(blind, f"broken {number}", 7000 + number)
    cleo = Person(browser, blind, "cleo")
    broken: list[str] = []

    def spoil(route: Route) -> None:
        name = route.request.url.split("/")[-2]
        if not broken and not first:
            return route.continue_()
        if name not in {*broken, *first}:
            broken.extend([] if broken else [name])
        if name in broken:
            return route.fulfill(body=b"no image", content_type="image/png")
        return route.continue_()

    first: list[str] = []
    page = cleo.go("/worklist")
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-resident]")
    page.wait_for_load_state("networkidle")
    first.append(shown(page))
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
    for number in range(4):
        upload(blind, f"tabs {number}", 7100 + number)
    ben = Person(browser, blind, "ben")
    page = begin(ben)
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
    database = Database(blind.sqlalchemy_url)
    with database.read() as session:
        assert session.execute(select(Remark.note).where(Remark.note == "seen in the first tab")).all()
    database.engine.dispose()


@pytest.mark.slow
def test_a_key_that_is_never_let_go_does_not_count_up(browser: Browser, blind: Installation) -> None:
    """macOS says nothing of a key that is let go while Command is down."""
    for number in range(3):
        upload(blind, f"command {number}", 7200 + number)
    emil = Person(browser, blind, "emil")
    page = begin(emil)
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
    for number in range(3):
        upload(blind, f"hurry {number}", 7300 + number)
    cleo = Person(browser, blind, "cleo")
    page = begin(cleo)
    read = page.get_attribute("[data-read]", "data-read-id")
    page.keyboard.press("x")
    page.wait_for_selector("text=takes it back")
    cleo.follow(".bar form button")
    page.wait_for_selector("[name=password]")
    assert str(read_of(blind, "declined").id) == read


@pytest.mark.slow
def test_the_time_on_a_case_begins_when_it_is_shown_though_saying_so_failed(
    browser: Browser, blind: Installation
) -> None:
    for number in range(3):
        upload(blind, f"time {number}", 7400 + number)
    ben = Person(browser, blind, "ben")
    page = begin(ben)
    failures = [1]
    page.route("**/display", lambda route: route.abort() if failures and failures.pop() else route.continue_())
    case = shown(page)
    pressed_at = datetime.now(UTC)
    with page.expect_response("**/display"):  # two seconds later
        page.keyboard.press("m")
        until(page, lambda: shown(page) not in {case, ""}, "it goes on")
        read = page.get_attribute("[data-read]", "data-read-id")
    stored_at = datetime.now(UTC)
    database = Database(blind.sqlalchemy_url)
    with database.read() as session:
        found = {str(one.id): one for one in session.execute(select(Read).where(Read.state == "leased")).scalars()}
    database.engine.dispose()
    displayed_at = found[str(read)].displayed_at
    assert displayed_at is not None
    assert pressed_at <= displayed_at <= stored_at - timedelta(seconds=1.9)
    page.keyboard.press("m")
    until(page, lambda: kept(page) == [], "it arrives")


@pytest.mark.slow
def test_a_policy_that_shows_results_ends_the_page_that_reads_on(browser: Browser, blind: Installation) -> None:
    for number in range(4):
        upload(blind, f"policy {number}", 7500 + number)
    emil = Person(browser, blind, "emil")
    page = begin(emil)
    try:
        set_reveal(blind, "after_commit")
        page.keyboard.press("m")
        page.wait_for_selector("[data-read]:not([data-resident])")
        assert kept(page) == []
        database = Database(blind.sqlalchemy_url)
        with database.read() as session:
            assert session.execute(select(Label.class_code).order_by(Label.id.desc()).limit(1)).scalar() == "monocyte"
        database.engine.dispose()
    finally:
        set_reveal(blind, "after_case_closed")
