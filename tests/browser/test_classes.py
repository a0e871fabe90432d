"""A lead edits the classes; annotators have new names and keys at the next load, and their own keys are stronger."""

import pytest
from playwright.sync_api import Browser

from tests.browser.conftest import Person, begin, begin_with, given, kept, shown, until
from tests.support.process import Installation


@pytest.mark.slow
def test_classes_are_edited_on_a_page_and_own_keys_are_stronger(browser: Browser, blind: Installation) -> None:
    lead = Person(browser, blind, "lead")
    page = lead.go("/classes")
    lead.look("classes")
    page.fill("#name-blast", "Blast cell")
    page.fill("#key-blast", "m")
    lead.follow("text=Save the classes")
    assert page.get_attribute("#key-monocyte", "aria-invalid") == "true"
    assert page.input_value("#name-blast") == "Blast cell"
    lead.look("classes with a fault")
    page.fill("#key-monocyte", "q")
    page.fill("#place-monocyte", "1")
    lead.follow("text=Save the classes")
    anna, reading = begin_with(browser, blind, "anna", 4)
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
        assert given(blind, "anna")[-1][2] == code
    lead.follow("text=Restore the model release's classes")
    assert page.input_value("#name-blast") == "Blast"
    assert anna.faults == []
