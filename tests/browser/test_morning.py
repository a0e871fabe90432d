"""A morning: two annotators differ, none is left, and the lead invites, discusses, settles and reopens."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from app.labels.corrections import finalize_labels
from tests.browser.conftest import Person, given, set_policy, until, upload
from tests.support.process import Installation

pytestmark = [pytest.mark.ci, pytest.mark.slow]


@pytest.fixture
def made(tmp_path: Path, tiny_release: Path) -> Iterator[Installation]:
    """A server with two leads, two annotators and one cell that both are to read."""
    made = Installation(tmp_path / "home")
    made.keys = made.prepare(tiny_release, lead="admin", deputy="admin", anna="annotator", ben="annotator")
    made.environment["SECONDREAD_WORKER"] = "false"  # it would conclude by rule within a minute what the leads settle
    made.start()
    set_policy(made, rule="disagreement", threshold=0.0, adjudicate_below=0.99, max_labels=9, repeat_rate=0)
    yield made
    made.close()


def answer(person: Person, made: Installation, name: str, key: str) -> None:
    """Read the one cell that waits, and sign out, which ends the time for corrections."""
    page = person.page
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-resident]")
    page.keyboard.press(key)
    until(page, lambda: len(given(made, name)) == 1, "the answer is stored")
    person.follow("text=Sign out")
    with made.parts() as context:  # which the worker does once a minute
        finalize_labels(context)


def test_a_disagreement_that_no_annotator_is_left_to_end_is_settled_by_the_lead(
    browser: Browser, made: Installation
) -> None:
    case = upload(made, "S-7", 7)
    for name, key in (("anna", "b"), ("ben", "m")):
        answer(Person(browser, made, name), made, name, key)
    lead, deputy = Person(browser, made, "lead"), Person(browser, made, "deputy")

    page = lead.page
    until(page, lambda: lead.go("/today").inner_text("[data-number=to-settle] b") == "1", "none is left to read it")
    lead.follow(".needs a:has-text('Settle')")
    lead.follow("main table a:has-text('S-7')")
    lead.follow("text=Invite an annotator to read this cell")
    page.fill("[name=annotator]", "Dr. Third")
    lead.follow("form[action='/people/invitations'] button")
    link = page.inner_text(".good code")

    guest = Person(browser, made, "")
    guest.page.goto(link)
    guest.follow("text=Sign in and read")
    guest.go("/worklist")
    answer(guest, made, "Dr. Third", "b")
    assert guest.page.goto(link) is not None
    assert "does not work" in guest.page.inner_text("h1")

    page = lead.go(f"/cases/{case}")
    assert page.locator("tbody tr:has-text('Dr. Third')").count() >= 1
    page.click("#comments summary >> nth=0")
    page.fill("#comments [name=text]", "Look at the nucleoli.")
    page.locator(".stage").click(position={"x": 120, "y": 90})
    lead.follow("#comments button:has-text('Comment') >> nth=-1")
    assert page.locator(".marks [data-x]:not([data-new-mark])").count() == 1
    assert lead.violations() == []

    deputy.go(f"/cases/{case}")
    lead.go(f"/cases/{case}")
    for person, outcome in ((lead, "Blast"), (deputy, "Monocyte")):
        person.page.select_option("[name=outcome]", label=outcome)
        person.page.fill(f"form[action='/cases/{case}/outcome'] [name=reason]", f"{outcome}, by its nucleoli")
        person.follow(f"form[action='/cases/{case}/outcome'] button:has-text('Settle')")
    assert "Blast, settled by lead" in page.inner_text("main")
    assert "settled by lead as Blast" in deputy.page.inner_text("main")

    assert made.server is not None
    made.stop(signal.SIGKILL)
    made.start()
    page = lead.go(f"/cases/{case}")
    assert "Blast, by its nucleoli" in page.inner_text("main")
    page.click("summary:has-text('Reopen the cell')")
    page.fill("form[action$='/reopening'] [name=reason]", "another stain came")
    lead.follow("form[action$='/reopening'] button")
    assert "settled by" not in page.inner_text("main")

    anna = Person(browser, made, "anna")
    anna.go("/settled")
    anna.follow("main a:has(img) >> nth=0")
    assert "Look at the nucleoli." in anna.page.inner_text("#comments")

    done = [event["action"] for event in made.get("/v1/audit-events?limit=100", made.keys["lead"])["items"]]
    acts = ["request.assign", "invitation.create", "invitation.use", "comment.add", "outcome.settle", "outcome.reopen"]
    assert [action for action in reversed(done) if action in acts] == acts
    assert [fault for fault in lead.faults + anna.faults if "status of" not in fault] == []
