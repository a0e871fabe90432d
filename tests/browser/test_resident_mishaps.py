"""The reading page where images are late, answers are refused, pages are loaded anew, and nobody is there."""

import pytest
from playwright.sync_api import Browser, Route

from tests.browser.conftest import Person, until, upload
from tests.browser.test_keyboard import kept
from tests.browser.test_resident import begin, given, shown
from tests.browser.test_resident import blind as blind
from tests.support.process import Installation


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
    for number in range(5):
        upload(blind, f"refused {number}", 6700 + number)
    ben = Person(browser, blind, "ben")
    page = begin(ben)
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
    for number in range(6):
        upload(blind, f"declined {number}", 6800 + number)
    emil = Person(browser, blind, "emil")
    page = begin(emil)
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
    for number in range(2):
        upload(blind, f"alone {number}", 6900 + number)
    cleo = Person(browser, blind, "cleo")
    page = begin(cleo)
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
    for number in range(3):
        upload(blind, f"anew {number}", 6950 + number)
    ben = Person(browser, blind, "ben")
    page = begin(ben)
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
    for number in range(3):
        upload(blind, f"same {number}", 6970 + number)
    emil = Person(browser, blind, "emil")
    page = begin(emil)
    case = shown(page)
    page.select_option("[name=second_choice]", "blast", force=True)
    page.keyboard.press("b")
    until(page, lambda: shown(page) != case and kept(page) == [], "it is stored")
    assert [label for handle, _, label, _ in given(blind, "emil") if handle == case] == ["blast"]
