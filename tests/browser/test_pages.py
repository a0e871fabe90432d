"""Pages in a real Chromium: sign in, read blind, commit, reveal; nothing leaks and nothing breaks the policy."""

import pytest
from playwright.sync_api import Browser

from app.http.openapi import EXAMPLES
from tests.browser.conftest import HOSTILE, Person
from tests.support.process import Installation
from tests.support.waiting import patient

LEAD_PAGES = (
    "/worklist",
    "/report",
    "/policy",
    "/releases",
    "/jobs",
    "/imports",
    "/readers",
    "/people",
    "/audit",
    "/help",
    "/account",
)
SECRETS = ("disagreement", "second read", "basophil-says", "triage", "adjudication")


def test_an_annotator_reads_blind_commits_and_sees_the_posterior(browser: Browser, installation: Installation) -> None:
    anna = Person(browser, installation, "anna")
    page = anna.page
    assert "3 waiting, 0 read" in page.inner_text("h1")
    for word in SECRETS:
        assert word not in page.content()
    page.click("text=Read the next case")
    assert "blind read" in page.inner_text("h1")
    for word in (*SECRETS, "0."):
        assert word not in page.inner_text("main")
    for word in SECRETS:
        assert word not in page.content().replace("data-disagreement", "")
    page.check("input[value=monocyte]")
    page.click("[data-action=clear]")
    assert page.locator("[name=label]:checked").count() == 0
    page.check("input[value=lymphocyte]")
    page.click("text=Confidence, flag and note")
    page.select_option("[name=confidence]", "0.9")
    page.fill("form[action$=label] textarea", "clumped chromatin")
    page.click("[data-action=commit]")
    page.wait_for_selector("svg.bars")
    n_labels = page.locator("section:has(h2:text-is('Labels')) tbody tr").count()  # another test's reader may be first
    assert page.inner_text("h1").endswith(f"{n_labels} label{'s' * (n_labels > 1)}")
    assert "1 of 3 today" in page.inner_text(".day")
    assert "clumped chromatin" in page.inner_text("section:has(h2:text-is('Labels')) table")
    assert page.locator("svg.bars rect.posterior").count() == 8
    assert page.locator("svg.bars line.interval").count() == 16
    page.click("text=Change or take back my label")
    page.check("form[action$=revise] input[value=blast]")
    page.fill("form[action$=revise] textarea", "looked again")
    page.click("text=Save the change")
    page.wait_for_selector("section:has(h2:text-is('Labels')) td:has-text('Blast')")
    page.click("text=Next case")
    assert "blind read" in page.inner_text("h1")
    page.click("summary:has-text('Decline')")
    page.check("input[value=image_quality]")
    page.click("text=Decline this case")
    page.wait_for_url("**/worklist")
    assert "1 read" in page.inner_text("h1")
    page.wait_for_load_state("networkidle")  # an image ahead that is asked for while one leaves is refused, and said so
    page.click("text=Sign out")
    page.wait_for_url("**/login")
    anna.go("/worklist")
    assert page.url.endswith("/login")
    assert anna.faults == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_lead_sees_need_and_nothing_stored_is_executed(
    browser: Browser, installation: Installation, scheme: str
) -> None:
    lead = Person(browser, installation, "lead", scheme)
    page = lead.page
    needs = [float(text.split()[1]) for text in page.locator("p.need").all_inner_texts()]
    assert needs == sorted(needs, reverse=True)
    assert HOSTILE in page.inner_text("main")
    page.click("li.tile:has-text('script') a")
    page.wait_for_selector("svg.bars")
    assert "owned" not in page.title()
    assert page.locator("main script").count() == 0
    assert "first" in page.inner_text("section:has-text('Planned and further reads')")
    assert lead.faults == []


def test_times_are_of_the_readers_zone_and_of_utc_without_a_script(
    browser: Browser, installation: Installation
) -> None:
    lead = Person(browser, installation, "lead")
    shown = lead.go("/audit").locator("td time >> nth=0")
    assert "UTC" not in shown.inner_text()
    assert str(shown.get_attribute("title")).endswith("UTC")
    plain = browser.new_context(java_script_enabled=False, storage_state=lead.context.storage_state()).new_page()
    plain.goto(f"{installation.address}/audit")
    assert plain.inner_text("td time >> nth=0").endswith("UTC")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_keeps_anybody_out(browser: Browser, installation: Installation, scheme: str) -> None:
    """axe-core finds nothing on any page, the console stays silent, and the policy of contents is kept."""
    lead = Person(browser, installation, "lead", scheme)
    found = {}
    for path in LEAD_PAGES:
        lead.go(path).wait_for_load_state("networkidle")
        found[path] = lead.violations()
    lead.go("/releases")
    lead.follow(".releases h2 a >> nth=0")
    found["release"] = lead.violations()
    lead.go("/worklist")
    lead.follow("li.tile a >> nth=0")
    found["case"] = lead.violations()
    reader = Person(browser, installation, "cleo", scheme)
    found["to read"] = reader.violations()
    reader.page.keyboard.press("Enter")
    reader.page.wait_for_selector(".js [data-read]")
    reader.page.click("summary:has-text('Keys')")
    reader.page.click("summary:has-text('Decline')")
    found["read"] = reader.violations()
    reader.go("/help")
    found["help"] = reader.violations()
    reader.go("/me")
    assert "Agreement with yourself is shown after ten cases" in reader.page.inner_text("main")
    found["my reading"] = reader.violations()
    lead.go("/people")
    lead.follow("tr:has-text('anna') a")
    found["person"] = lead.violations()
    lead.follow("text=How they read")
    found["how they read"] = lead.violations()
    stranger = Person(browser, installation, "", scheme)
    found["login"] = stranger.violations()
    lead.go("/help")
    assert [f"{path}: {fault}" for path, faults in found.items() for fault in faults] == []
    assert lead.faults + reader.faults + stranger.faults == []
    wrong = Person(browser, installation, "lead", scheme)
    wrong.go("/cases/nonsense")
    assert "There is nothing at this address" in wrong.page.inner_text("main")
    assert wrong.violations() == []


def test_pages_work_without_javascript(browser: Browser, installation: Installation) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(installation.address)
    page.fill("[name=name]", "ben")
    page.fill("[name=password]", installation.one_time_password("ben"))
    page.click("main button")
    page.fill("[name=wanted]", "a password of one's own")
    page.click("main button")
    page.click("text=Go on")
    page.click("text=Read the next case")
    page.wait_for_selector(".viewer")
    page.wait_for_selector(".tools", state="hidden")
    page.check("input[value=eosinophil]")
    page.click("[data-action=commit]")
    assert "Class probabilities" in page.inner_text("main")
    page.click("text=Next case")
    page.click("summary:has-text('Decline')")
    page.check("input[value=cannot_tell]")
    page.click("text=Decline this case")
    page.wait_for_url("**/worklist")
    wrong = page.goto(f"{installation.address}/cases/01890000-0000-7000-8000-000000000000")
    assert wrong is not None
    assert wrong.status == 404
    assert "Not found" in page.inner_text("h1")


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
