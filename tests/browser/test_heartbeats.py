"""A page that nobody uses lets its lease go, and says so before and after."""

from playwright.sync_api import Browser, Request

from tests.browser.conftest import Person, until, upload
from tests.support.process import Installation


def test_only_a_sign_of_a_person_extends_a_lease(browser: Browser, installation: Installation) -> None:
    upload(installation, "watched", 400, patient="w")
    cleo = Person(browser, installation, "cleo")
    page, beats = cleo.page, []

    def note(request: Request) -> None:
        if request.method == "PATCH":
            beats.append(request.url)

    page.on("request", note)
    page.clock.install()
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-read]")
    with page.expect_response("**/v1/reads/*"):  # opening the page is a sign
        page.clock.run_for(2_000)
    page.clock.run_for(500_000)
    assert len(beats) == 1
    assert page.inner_text("[data-status]") == ""
    page.clock.run_for(50_000)
    assert "goes back in less than a minute" in page.inner_text("[data-status]")
    page.keyboard.press("Shift")
    with page.expect_response("**/v1/reads/*"):
        page.clock.run_for(2_000)
    until(page, lambda: page.inner_text("[data-status]") == "", "the warning is taken back")
    assert len(beats) == 2
    page.clock.run_for(700_000)
    assert len(beats) == 2
    assert "Your time with this case ran out" in page.inner_text("[data-status]")
    assert cleo.faults == []
