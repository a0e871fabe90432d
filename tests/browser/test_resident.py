"""Reading without leaving the page: one key answers, the image keeps its place, slips are corrected blind."""

import random

import pytest
from playwright.sync_api import Browser, Page, Route
from sqlalchemy import select

from app.database.tables import Annotator, Label, Read
from tests.browser.conftest import (
    FRAME,
    SIZES,
    WATCH,
    Person,
    begin,
    begin_with,
    box_of,
    close_open_requests,
    given,
    handles_of,
    hold_clock,
    kept,
    shown,
    until,
    upload,
)
from tests.support.images import encode, photo
from tests.support.process import Installation

_AROUND = "[data-around-open]"
KEYS = {"b": "blast", "l": "lymphocyte", "m": "monocyte", "e": "eosinophil", "o": "basophil"}


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize(("name", "n"), [("anna", 24), pytest.param("emil", 200, marks=pytest.mark.heavy)])
def test_slips_are_corrected_blind_and_nothing_moves(browser: Browser, blind: Installation, name: str, n: int) -> None:
    """One key per case; a third of them wrong, and noticed at once."""
    rng = random.Random(n)
    reader = Person(browser, blind, name)
    uploaded = [upload(blind, f"slip {n} {number}", 5000 + number, patient=f"s{n}-{number}") for number in range(n)]
    upload(blind, f"slip {n} after them", 5000 + n, patient=f"s{n}-{n}")  # none of them is the last one
    correctable = handles_of(blind, name, uploaded)  # cases from before the policy are final at once
    page = begin(reader)
    page.evaluate(WATCH)
    frame = page.evaluate(FRAME)
    intended: dict[str, str] = {}
    for number in range(n):
        until(page, lambda: shown(page) not in {*intended, ""}, f"no case after {number}")
        key, wrong = rng.sample(sorted(KEYS), 2)
        case = shown(page)
        assert (page.evaluate(FRAME), page.evaluate("window.shifts")) == (frame, [])
        slip = case in correctable and rng.random() < 0.3
        intended[case] = KEYS[key]
        page.keyboard.press(wrong if slip else key)
        if slip:
            page.keyboard.press("Backspace")
            until(page, lambda: shown(page) == case, "it goes back")  # noqa: B023
            assert page.locator("[name=label]:checked").get_attribute("value") == KEYS[wrong]
            assert "still blind" in page.inner_text("h1")
            page.keyboard.press(key)
    until(page, lambda: kept(page) == [], "answers are on their way")
    rows = [row for row in given(blind, name) if row[0] in intended]
    assert all(row[3] for row in rows)
    final = {row[0]: row[2] for row in rows if row[1] != "correction"} | {
        row[0]: row[2] for row in rows if row[1] == "correction"
    }
    assert final == intended
    assert sum(row[1] == "label" for row in rows) == n
    assert reader.faults == []


def begin_with_a_held_clock(browser: Browser, made: Installation, name: str) -> tuple[Person, Page]:
    """A reading page on which no time passes but what the test lets pass."""
    person = Person(browser, made, name)
    page = person.go("/worklist")
    hold_clock(page)
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-resident]")
    return person, page


def went_on(page: Page, case: str) -> bool:
    """Whether the page shows another case, or says that there is none, some moments later."""
    page.clock.run_for(100)
    return shown(page) != case or "last cell" in page.inner_text("h1")


def answered(page: Page, key: str) -> str:
    """Answer the case that is shown, and give it."""
    case = shown(page)
    until(page, lambda: page.locator("[data-action='cannot tell']").is_enabled(), "it can be answered")
    page.keyboard.press(key)
    until(page, lambda: went_on(page, case), "it goes on")
    return case


@pytest.mark.slow
def test_a_slip_on_the_last_case_is_corrected_there_as_well(browser: Browser, blind: Installation) -> None:
    upload(blind, "the last one", 5900, patient="last")
    emil, page = begin_with_a_held_clock(browser, blind, "emil")
    last = ""
    while "last cell" not in page.inner_text("h1"):
        last = answered(page, "b")
    until(page, lambda: kept(page) == [], "it is stored")
    page.clock.run_for(4_000)
    assert "You can still go back" in page.inner_text("[data-status]")
    page.click("[data-previous]")  # by mouse as well as by key, and also where it was the only one
    assert shown(page) == last
    assert "You can still" not in page.inner_text("[data-status]")
    page.keyboard.press("m")
    until(page, lambda: given(blind, "emil")[-1][1:3] == ("correction", "monocyte"), "it is corrected")
    until(page, lambda: kept(page) == [], "the page knows")
    page.clock.run_for(6_000)
    page.wait_for_url("**/worklist")
    assert emil.faults == []


@pytest.mark.slow
def test_whoever_gives_the_last_case_away_is_sent_to_no_other_one(browser: Browser, blind: Installation) -> None:
    """There is nothing of it to correct here, and Backspace must not lead to the answer before it as if there were."""
    for number in range(3):
        upload(blind, f"last but {number}", 5910 + number, patient=f"lb{number}")
    emil, page = begin_with_a_held_clock(browser, blind, "emil")
    answered(page, "b")
    said, seen = set(), {""}

    def gave_all_away() -> bool:
        if page.url.endswith("/worklist"):
            return True
        said.add(page.inner_text("[data-status]"))
        if shown(page) not in seen and page.locator("[data-action='cannot tell']").is_enabled():
            seen.add(shown(page))
            page.keyboard.press("x")
        page.clock.run_for(100)
        return False

    until(page, gave_all_away, "it leaves")
    assert any("to undo" in text for text in said)
    assert not any("You can still" in text for text in said)
    assert emil.faults == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_screen_holds_image_classes_and_buttons(browser: Browser, blind: Installation, scheme: str) -> None:
    close_open_requests(blind)  # which would come first, and have no field
    field = encode(photo(1, 240))
    for number in range(4):
        upload(blind, f"screen {scheme} {number}", 6000 + number, field=field, metadata='{"mpp": "0.12"}')
    cleo = Person(browser, blind, "cleo", scheme)
    page = begin(cleo)
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (width, height)
        for wanted in (".viewer .stage", "[data-action=commit]", "[data-action='cannot tell']", ".choice"):
            box = box_of(page, wanted)
            assert min(box["x"], box["y"]) >= 0, (wanted, width, height)
            assert box["x"] + box["width"] <= width + 1, (wanted, width, height)
            assert box["y"] + box["height"] <= height + 1, (wanted, width, height)
        image, around, light = (box_of(page, one) for one in (".viewer .stage", _AROUND, ".adjust > summary"))
        assert min(image["width"], image["height"]) > 0.3 * min(width, height)
        assert around["x"] + around["width"] <= light["x"] <= width - light["width"]
    assert cleo.violations() == []
    page.keyboard.press("w")
    page.wait_for_selector(".viewer .stage img[src$='/field']")
    assert cleo.violations() == []
    assert cleo.faults == []


@pytest.mark.slow
def test_how_sure_and_a_second_choice_by_key(browser: Browser, blind: Installation) -> None:
    _, page = begin_with(browser, blind, "ben", 5)
    cases = []
    for keys in (["Shift+B", "3"], ["Shift+M", "l", "Enter"], []):
        cases.append(shown(page))
        if keys:
            for key in keys:
                page.keyboard.press(key)
        else:  # held down until it says so
            page.keyboard.down("e")
            until(page, lambda: "fairly confident" in page.inner_text("[data-choice]"), "it counts up")
            page.keyboard.up("e")
        until(page, lambda: shown(page) not in {*cases, ""}, "it goes on")
    until(page, lambda: kept(page) == [], "answers are on their way")
    rows = blind.rows(
        select(Label.class_code, Label.confidence, Label.second_choice).order_by(Label.id.desc()).limit(3)
    )
    # a tester's machine may be slow to let a key go: at least "fairly confident"
    assert rows[0][0] == "eosinophil"
    assert rows[0][1] in {0.7, 0.9, 0.99}
    assert rows[1:] == [("monocyte", None, "lymphocyte"), ("blast", 0.9, None)]


@pytest.mark.slow
def test_a_held_key_never_runs_through_cases(browser: Browser, blind: Installation) -> None:
    _, page = begin_with(browser, blind, "ben", 4)
    case, before = shown(page), len(given(blind, "ben"))
    for _ in range(20):
        page.keyboard.down("m")  # what a held key does: down again and again
    assert shown(page) == case
    page.keyboard.up("m")
    until(page, lambda: shown(page) != case, "it goes on")
    until(page, lambda: kept(page) == [], "answers are on their way")
    assert len(given(blind, "ben")) == before + 1


@pytest.mark.slow
def test_cannot_tell_waits_for_a_regret(browser: Browser, blind: Installation) -> None:
    emil, page = begin_with(browser, blind, "emil", 4)
    mine = select(Read.id).join(Annotator, Annotator.id == Read.annotator_id).where(Annotator.name == "emil")

    def declined() -> int:
        return len(blind.rows(mine.where(Read.decline_reason == "cannot_tell")))

    case, before = shown(page), declined()
    page.keyboard.press("x")
    until(page, lambda: shown(page) != case, "the next case")
    page.keyboard.press("Backspace")
    assert shown(page) == case
    page.wait_for_timeout(200)
    assert declined() == before
    page.keyboard.press("x")
    until(page, lambda: shown(page) != case, "the next case")
    page.keyboard.press("m")  # whoever goes on does not regret it
    until(page, lambda: declined() == before + 1, "it is sent")
    page.keyboard.press("Backspace")
    assert shown(page) != case
    assert emil.faults == []


@pytest.mark.ci
@pytest.mark.slow
def test_cases_are_never_leased_to_whoever_else_has_signed_in(browser: Browser, blind: Installation) -> None:
    """Anna's page is open, Ben signs in beside it: her page gets no case of his, and says so."""
    anna, page = begin_with(browser, blind, "anna", 6)
    anna.context.clear_cookies()
    anna.page = anna.context.new_page()
    anna.sign_in(blind, "ben")
    of_ben = select(Read.id).join(Annotator, Annotator.id == Read.annotator_id).where(Annotator.name == "ben")

    def leased_to_ben() -> int:
        return len(blind.rows(of_ben.where(Read.state == "leased")))

    before = leased_to_ben()
    with page.expect_response("**/reads/ahead") as ahead:
        page.keyboard.press("m")
        page.evaluate("window.dispatchEvent(new Event('online'))")
    assert ahead.value.status == 403
    page.wait_for_selector("text=Sign in again; your answer is saved")
    assert leased_to_ben() == before


@pytest.mark.slow
def test_a_key_while_the_next_image_is_on_its_way_answers_no_other_case(browser: Browser, blind: Installation) -> None:
    """Two images ahead, of which the second one takes its time: the first is shown, and its answer is its own."""
    for number in range(5):
        upload(blind, f"quick {number}", 6600 + number)
    cleo = Person(browser, blind, "cleo")
    cleo.page.add_init_script(
        """const decode = Image.prototype.decode; let asked = 0;
        Image.prototype.decode = function () {
          asked += 1;
          const late = asked === 2 ? 4000 : 1500;
          return new Promise((go) => setTimeout(go, late)).then(() => decode.call(this));
        };"""
    )
    sent: list[str] = []
    cleo.page.on("request", lambda r: sent.append(f"{r.url} {r.post_data}") if r.url.endswith("/label") else None)
    page = cleo.go("/worklist")
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-resident]")
    before, first = given(blind, "cleo"), shown(page)
    page.keyboard.press("b")
    page.wait_for_timeout(2500)  # the first image ahead is there, the second is not
    second = shown(page)
    page.keyboard.press("m")
    until(page, lambda: kept(page) == [] and len(sent) >= 2, "answers are on their way")
    until(page, lambda: len(given(blind, "cleo")) == len(before) + 2, "both are stored")
    assert [(case, label) for case, _, label, _ in given(blind, "cleo")[len(before) :]] == [
        (first, "blast"),
        (second, "monocyte"),
    ]
    assert first != second
    assert cleo.faults == []


@pytest.mark.slow
def test_an_answer_that_is_refused_is_asked_for_again(browser: Browser, blind: Installation) -> None:
    """Refused for good, once: its case comes back, and a correction that is refused leaves the chain as it was."""
    _, page = begin_with(browser, blind, "ben", 5)
    refusals = ["first", "correction"]

    def refuse(route: Route) -> None:
        is_correction = route.request.url.count(".") > 4  # address, name of the read, place in its chain
        if refusals and is_correction == (refusals[0] == "correction"):
            refusals.pop(0)
            problem = {"type": "urn:secondread:problem:invalid", "detail": "refused by the test"}
            route.fulfill(status=422, json=problem)
        else:
            route.continue_()

    page.route("**/reads/*/label", refuse)
    case, others = shown(page), set()
    page.keyboard.press("m")
    page.wait_for_selector("text=refused by the test")
    while shown(page) != case:  # it comes back after those that were ahead
        others.add(shown(page))
        page.keyboard.press("b")
        until(page, lambda: shown(page) not in {*others, ""}, "it goes on")
        assert len(others) < 9, "it does not come back"
    page.keyboard.press("m")
    until(page, lambda: shown(page) != case, "it goes on")
    for key in ("l", "e"):  # the first correction is refused
        page.keyboard.press("Backspace")
        until(page, lambda: shown(page) == case, "it goes back")
        page.keyboard.press(key)
        until(page, lambda: shown(page) != case and kept(page) == [], "it arrives")
    rows = [(kind, label) for handle, kind, label, _ in given(blind, "ben") if handle == case]
    assert rows == [("label", "monocyte"), ("correction", "eosinophil")]


@pytest.mark.slow
def test_declining_twice_by_chance_takes_one_case(browser: Browser, blind: Installation) -> None:
    _, page = begin_with(browser, blind, "emil", 6)
    case = shown(page)
    with page.expect_response("**/reads/ahead") as reply:
        page.keyboard.press("m")
    held = [read["case"] for read in reply.value.json()["reads"] if read["case"] != case]
    page.wait_for_load_state("networkidle")
    page.keyboard.press("s")
    page.keyboard.press("5")
    page.evaluate("for (let i = 0; i < 2; i++) document.querySelector('form[data-send]').requestSubmit()")
    until(page, lambda: shown(page) == held[1], "the next one that is held")
    page.keyboard.press("m")
    if len(held) > 2:
        until(page, lambda: shown(page) == held[2], "and the one after it")


@pytest.mark.slow
def test_a_page_left_alone_at_the_last_case_asks_for_nothing(browser: Browser, blind: Installation) -> None:
    """What it asks for would keep the session of whoever has gone, and lease them cases."""
    _, page = begin_with(browser, blind, "cleo", 2)
    asked: list[str] = []
    last = {"reads": [{"read": page.get_attribute("[data-read]", "data-read-id")}], "n_today": 1, "n_waiting": 1}

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(json=last)

    page.route("**/reads/ahead", answer)
    page.clock.install()
    page.reload()
    until(page, lambda: bool(asked), "it asks")
    page.clock.run_for(70_000)
    before = len(asked)
    page.clock.run_for(60_000)
    assert len(asked) == before
    page.mouse.move(30, 30)
    page.clock.run_for(5_000)
    until(page, lambda: len(asked) > before, "somebody is here again")


@pytest.mark.slow
def test_a_slip_is_corrected_after_the_page_was_loaded_anew(browser: Browser, blind: Installation) -> None:
    """Its first answer is still on its way: the page knows it, and what is given then corrects it."""
    _, page = begin_with(browser, blind, "ben", 3)
    case = shown(page)
    page.route("**/reads/*/label", lambda route: route.abort())
    page.keyboard.press("m")
    until(page, lambda: shown(page) != case, "it goes on")
    page.keyboard.press("Backspace")
    until(page, lambda: shown(page) == case, "it goes back")
    page.reload()
    until(page, lambda: "still blind" in page.inner_text("h1"), "it knows what was given")
    assert page.locator("[name=label]:checked").get_attribute("value") == "monocyte"
    page.keyboard.press("e")
    page.unroute_all()
    until(page, lambda: kept(page) == [], "both arrive")
    rows = [(kind, label) for handle, kind, label, _ in given(blind, "ben") if handle == case]
    assert rows == [("label", "monocyte"), ("correction", "eosinophil")]


@pytest.mark.slow
def test_a_second_choice_that_becomes_the_first_is_no_second_choice(browser: Browser, blind: Installation) -> None:
    _, page = begin_with(browser, blind, "emil", 3)
    case = shown(page)
    page.select_option("[name=second_choice]", "blast", force=True)
    page.keyboard.press("b")
    until(page, lambda: shown(page) != case and kept(page) == [], "it is stored")
    assert [label for handle, _, label, _ in given(blind, "emil") if handle == case] == ["blast"]
