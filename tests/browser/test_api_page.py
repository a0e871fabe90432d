"""The page about the API: the viewer that ships with the service, within the policy of the page."""

import pytest
from playwright.sync_api import Browser

from app.http.openapi import EXAMPLES
from tests.browser.conftest import Person
from tests.support.process import Installation
from tests.support.waiting import patient


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_about_the_api_keeps_nobody_out(browser: Browser, installation: Installation, scheme: str) -> None:
    stranger = Person(browser, installation, "", scheme)
    elsewhere: list[str] = []
    stranger.page.on("request", lambda r: None if r.url.startswith(installation.address) else elsewhere.append(r.url))
    page = stranger.go("/v1/docs")
    page.wait_for_selector(".nav-bar-path >> nth=0", timeout=patient(30_000))
    assert page.locator(".nav-bar-path[role=link]").count() == len(EXAMPLES) + 1
    page.click(".nav-bar-path:has-text('End a read by a label')")
    for part in ("/v1/reads/{read_id}/labels", "idempotency-key", "REQUEST BODY", "RESPONSE", '"posterior"'):
        page.get_by_text(part).first.wait_for()
    for width in (390, 1280, 3840):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(_BRIGHTNESS) < 60 if stranger.dark else page.evaluate(_BRIGHTNESS) > 200
    assert (elsewhere, stranger.faults) == ([], [])


#: Of the paper behind the operations, 0 to 255.
_BRIGHTNESS = """() => {
  const viewer = document.querySelector("openapi-explorer").shadowRoot;
  const papers = [...viewer.querySelectorAll("#the-main-body, .main-content"), viewer.host];
  const colours = papers.map((paper) => getComputedStyle(paper).backgroundColor);
  const numbers = colours.find((one) => one !== "rgba(0, 0, 0, 0)").match(/[0-9.]+/g).slice(0, 3);
  return numbers.reduce((sum, one) => sum + Number(one), 0) / 3;
}"""


def test_only_the_page_about_the_api_allows_styles_inside(browser: Browser, installation: Installation) -> None:
    page = browser.new_context().new_page()
    for path, allowed in (("/v1/docs", True), ("/login", False)):
        answer = page.goto(installation.address + path)
        assert answer is not None
        policy = answer.headers["content-security-policy"]
        assert ("style-src 'self' 'unsafe-inline';" in policy) == allowed
        assert "script-src 'self';" in policy
