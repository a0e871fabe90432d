"""The page about the API: for everybody, with and without the service."""

import pytest
from playwright.sync_api import Browser

from app.description.examples import EXAMPLES
from tests.browser.conftest import Person
from tests.support.api_files import PAGE
from tests.support.process import Installation


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_about_the_api_keeps_nobody_out(browser: Browser, installation: Installation, scheme: str) -> None:
    stranger = Person(browser, installation, "", scheme)
    page = stranger.go("/v1/docs")
    assert page.locator("article:has(pre:text('curl')) > h3").count() == len(EXAMPLES) + 1
    assert stranger.violations() == []
    for width in (390, 1280, 3840):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert stranger.faults == []


@pytest.mark.slow
def test_the_page_opens_as_a_file_and_without_javascript(browser: Browser) -> None:
    page = browser.new_context(java_script_enabled=False, offline=True).new_page()
    page.goto(PAGE.as_uri())
    page.click("nav a:text-is('commit_read')")
    assert "reads:own" in page.inner_text("#commit_read")
    page.click("#commit_read summary >> nth=1")
    assert '"posterior"' in page.inner_text("#commit_read details[open]")
