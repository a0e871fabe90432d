"""Comments with marks on the image, and an invitation, as a lead and a guest use them."""

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.conftest import Person, upload
from tests.support.process import Installation

pytestmark = [pytest.mark.slow, pytest.mark.ci]

# The middle of a mark as shares of the image that is drawn, whatever the zoom.
PLACE = """(mark) => {
  const image = document.querySelector('[data-stage] img');
  const [box, own] = [image.getBoundingClientRect(), mark.querySelector('circle').getBoundingClientRect()];
  const fit = Math.min(box.width / image.naturalWidth, box.height / image.naturalHeight);
  return [
    0.5 + (own.x + own.width / 2 - box.x - box.width / 2) / (fit * image.naturalWidth),
    0.5 + (own.y + own.height / 2 - box.y - box.height / 2) / (fit * image.naturalHeight),
    own.width,
  ];
}"""


def mark_of(page: Page, number: int) -> list[float]:
    return list(page.locator("[data-marks] g").nth(number).evaluate(PLACE))


def test_a_mark_is_placed_by_a_click_or_by_numbers_and_keeps_its_place_and_size(
    browser: Browser, installation: Installation
) -> None:
    case_id = upload(installation, "discussed", 930)
    lead = Person(browser, installation, "lead")
    page = lead.go(f"/cases/{case_id}")
    stage = page.locator("[data-stage]").bounding_box()
    assert stage is not None
    middle = (stage["x"] + stage["width"] / 2, stage["y"] + stage["height"] / 2)
    page.mouse.click(middle[0], middle[1])  # nobody is writing
    assert page.input_value("[name=x]") == ""
    page.click("[data-comment] summary")
    page.locator("[data-comment] textarea:focus").wait_for()  # from here on the image stays in view
    stage = page.locator("[data-stage]").bounding_box()
    assert stage is not None
    middle = (stage["x"] + stage["width"] / 2, stage["y"] + stage["height"] / 2)
    page.keyboard.type("Auer rod? ")
    page.mouse.click(middle[0] + 60, middle[1] - 30)
    page.keyboard.type("or an artefact")  # the text keeps the focus
    assert page.input_value("[data-comment] textarea") == "Auer rod? or an artefact"
    placed = [float(page.input_value(f"[name={name}]")) / 100 for name in ("x", "y")]
    assert 0.5 < placed[0] < 1
    assert 0 < placed[1] < 0.5
    assert mark_of(page, 0)[:2] == pytest.approx(placed, abs=0.005)
    lead.follow("text=Save the comment")
    assert page.url.endswith("#comments")
    page.wait_for_function("document.querySelector('[data-stage] img').complete")
    before = mark_of(page, 0)
    assert before[:2] == pytest.approx(placed, abs=0.005)
    page.keyboard.press("+")
    page.keyboard.press("+")
    page.keyboard.press("ArrowLeft")
    assert page.locator("[data-stage] img").evaluate("(image) => image.style.transform").endswith("scale(1.5625)")
    assert mark_of(page, 0) == pytest.approx(before, abs=0.005)
    page.click("text=Write a comment")
    page.click("[data-comment] details summary")
    page.fill("[name=x]", "10")
    page.fill("[name=y]", "90")
    assert mark_of(page, 1)[:2] == pytest.approx([0.1, 0.9], abs=0.005)
    page.click("text=Remove the mark")
    assert page.input_value("[name=x]") == ""
    lead.look("a page with comments")
    assert lead.faults == []


def test_a_guest_reads_the_cell_of_an_invitation_and_is_thanked(browser: Browser, blind: Installation) -> None:
    case_id = upload(blind, "for a guest", 931)
    lead = Person(browser, blind, "lead")
    page = lead.go(f"/cases/{case_id}")
    lead.follow("text=Invite an annotator to read this cell")
    page.fill("#invite [name=annotator]", "Dr. Gast")
    lead.look("the form of an invitation")
    lead.follow("#invite button")
    link = page.inner_text(".good code")
    guest = Person(browser, blind, "")
    guest.page.goto(link)
    guest.look("an invitation")
    guest.follow("main button")
    guest.follow("[data-action=next]")
    guest.page.wait_for_load_state("networkidle")
    guest.page.keyboard.press(guest.page.inner_text(".choice kbd >> nth=0"))
    guest.page.wait_for_selector("text=Thank you", timeout=20_000)
    guest.page.goto(link)
    guest.look("a link that was used")
    assert [fault for fault in guest.faults if "404" not in fault] == []
