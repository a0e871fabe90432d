"""Pages in a real Chromium: read blind, commit, reveal; a lead's morning; nothing leaks or breaks the policy."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from app.http.openapi import EXAMPLES
from tests.browser.conftest import HOSTILE, Person, pack, read_by_outsiders, until
from tests.support.process import Installation
from tests.support.service import cell_png
from tests.support.waiting import patient, wait_until

LEAD_PAGES = (
    *("/worklist", "/report", "/report/appendix", "/policy", "/releases", "/jobs", "/imports", "/readers"),
    *("/people", "/audit", "/help", "/report/specimens"),
    "/account",
)
SECRETS = ("disagreement", "second read", "basophil-says", "triage", "adjudication")


@pytest.mark.slow
@pytest.mark.ci
def test_an_annotator_reads_blind_commits_and_sees_the_posterior(browser: Browser, installation: Installation) -> None:
    anna = Person(browser, installation, "anna")
    page = anna.page
    assert "3 waiting, 0 read" in page.inner_text("h1")
    for word in SECRETS:
        assert word not in page.content()
    page.click("text=Read the next cell")
    assert "blinded read" in page.inner_text("h1")
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
    page.wait_for_selector(".ten-dots")
    n_labels = page.locator("section:has(h2:text-is('Labels')) tbody tr").count()  # another test's reader may be first
    assert page.inner_text("h1").endswith(f"{n_labels} label{'s' * (n_labels > 1)}")
    assert "1 of 3 today" in page.inner_text(".day")
    assert "clumped chromatin" in page.inner_text("section:has(h2:text-is('Labels')) table")
    assert page.locator(".ten-dots circle").count() == 10
    assert page.locator(".way").count() == 0
    page.click("text=Change or withdraw my label")
    page.check("form[action$=revise] input[value=blast]")
    page.fill("form[action$=revise] textarea", "looked again")
    page.click("text=Save the change")
    page.wait_for_selector("section:has(h2:text-is('Labels')) td:has-text('Blast')")
    page.click("text=Next cell")
    assert "blinded read" in page.inner_text("h1")
    page.click("summary:has-text('Skip')")
    page.check("input[value=image_quality]")
    page.click("text=Skip this cell")
    page.wait_for_url("**/worklist")
    assert "1 read" in page.inner_text("h1")
    page.wait_for_load_state("networkidle")  # an image ahead that is asked for while one leaves is refused, and said so
    page.click("text=Sign out")
    page.wait_for_url("**/login")
    anna.go("/worklist")
    assert page.url.endswith("/login")
    assert anna.faults == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_lead_sees_need_and_nothing_stored_runs(browser: Browser, installation: Installation, scheme: str) -> None:
    lead = Person(browser, installation, "lead", scheme)
    page = lead.page
    needs = [float(text.split()[1].rstrip("%")) for text in page.locator("p.need").all_inner_texts()]
    assert needs == sorted(needs, reverse=True)
    assert HOSTILE in page.inner_text("main")
    page.click("li.tile:has-text('script') a")
    page.wait_for_selector(".ten-dots")
    assert "owned" not in page.title()
    assert page.locator("main script").count() == 0
    assert "first" in page.inner_text("section:has-text('Planned and further reads')")
    assert lead.faults == []


@pytest.mark.slow
@pytest.mark.ci
def test_a_lead_looks_closer_and_goes_on_by_the_keyboard(browser: Browser, installation: Installation) -> None:
    lead = Person(browser, installation, "lead")
    page = lead.go("/cells?state=to_read")
    addresses = [link.get_attribute("href") for link in page.locator("table.cells a:has(img)").all()]
    lead.follow("table.cells a:has(img) >> nth=0")
    image = page.locator(".viewer img")
    page.keyboard.press("+")
    assert "scale(1.25)" in str(image.get_attribute("style"))
    page.keyboard.press("0")
    assert "scale(1)" in str(image.get_attribute("style"))
    page.keyboard.press("k")  # the first of the list has none before it
    for key, place in (("j", 1), ("k", 0)):
        with page.expect_navigation():
            page.keyboard.press(key)
        assert page.url == f"{installation.address}{addresses[place]}"
    lead.look("cell")
    assert lead.faults == []


def test_times_are_of_the_readers_zone_and_else_of_utc(browser: Browser, installation: Installation) -> None:
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
    reader.page.click("summary:has-text('Skip')")
    found["read"] = reader.violations()
    reader.go("/help")
    found["help"] = reader.violations()
    reader.go("/me")
    assert "Intra-rater agreement appears after ten" in reader.page.inner_text("main")
    found["my reading"] = reader.violations()
    lead.go("/people")
    lead.follow("tr:has-text('anna') a")
    found["person"] = lead.violations()
    lead.follow("text=Statistics")
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
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(installation.address)
    page.fill("[name=name]", "ben")
    page.fill("[name=password]", installation.one_time_password("ben"))
    page.click("main button")
    page.fill("[name=wanted]", "a password of one's own")
    page.click("main button")
    page.click("text=Continue")
    page.click("text=Read the next cell")
    page.wait_for_selector(".viewer")
    page.wait_for_selector(".tools", state="hidden")
    page.check("input[value=eosinophil]")
    page.click("[data-action=commit]")
    assert "of 10 experts would say" in page.inner_text("main")
    page.click("text=Next cell")
    page.click("summary:has-text('Skip')")
    page.check("input[value=cannot_tell]")
    page.click("text=Skip this cell")
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
    assert page.locator(".nav-bar-path[role=link]").count() == len(EXAMPLES)
    page.click(".nav-bar-path:has-text('Answer a read with a label')")
    for part in ("/v1/reads/{read_id}/labels", "idempotency-key", "REQUEST BODY", "RESPONSE", '"posterior"'):
        page.get_by_text(part).locator("visible=true").first.wait_for()
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


@pytest.mark.slow
def test_a_call_can_be_tried_on_the_page_about_the_api(browser: Browser, installation: Installation) -> None:
    stranger = Person(browser, installation, "")
    page = stranger.go("/v1/docs")
    page.get_by_text("--scope labels:write").wait_for(timeout=patient(30_000))
    calls = page.locator("openapi-explorer li a")
    assert calls.count() == 5
    page.get_by_role("link", name="Authentication").last.click()
    page.fill(".api-key-input >> nth=0", installation.keys["lead"])
    page.click("button:has-text('Set') >> nth=0")
    for number, operation in enumerate(
        ("post-/v1/cases", "get-/v1/cases/-case_id-", "get-/v1/cases", "get-/v1/cases/-case_id-/posterior")
    ):
        page.click("#link-overview")
        calls.nth(number).click()
        page.wait_for_url(f"**route={operation}")
    page.click("#link-get-\\/v1\\/cases")
    page.get_by_text("Only cells of this site").wait_for()
    page.click("button:has-text('Execute')")
    page.get_by_text("OK (200)").wait_for()
    page.get_by_text(f'"{HOSTILE}"').or_(page.get_by_text('"plain"')).first.wait_for()
    assert stranger.faults == []


def test_only_the_page_about_the_api_allows_styles_inside(browser: Browser, installation: Installation) -> None:
    page = browser.new_context().new_page()
    for path, allowed in (("/v1/docs", True), ("/login", False)):
        answer = page.goto(installation.address + path)
        assert answer is not None
        policy = answer.headers["content-security-policy"]
        assert ("style-src 'self' 'unsafe-inline';" in policy) == allowed
        assert ("img-src 'self' data:;" in policy) == allowed
        assert "script-src 'self';" in policy


N_CELLS, READERS = 36, 3


def archive(source: str) -> bytes:
    """Cells that no other source has, and one whose file is missing."""
    rows = ["file,external_id,patient,site"]
    files = {}
    for number in range(N_CELLS):
        files[f"cell{number}.png"] = cell_png(sum(source.encode()) * N_CELLS + number)
        rows.append(f"cell{number}.png,{source} {number},patient {number},north")
    rows.append(f"lost.png,{source} lost,,")
    return pack(files | {"manifest.csv": "\n".join(rows).encode()})


@pytest.fixture(scope="module")
def n_labels(installation: Installation) -> int:
    """The number of labels that three annotators of an outside system gave, one for each case of an archive and each
    case from before."""
    key = installation.keys["lead"]
    sent = {"content": archive("outside"), "headers": {"Content-Type": "application/zip"}}
    job = installation.call("lead", "POST", "/v1/imports", **sent).json()["id"]
    wait_until(lambda: installation.get(f"/v1/jobs/{job}", key)["state"] == "succeeded", 60, job)
    cases = installation.get("/v1/cases?limit=100", key)["items"]
    for number, case in enumerate(cases):
        # in turn, so that nobody differs from the others
        roles = ((reader + number // 3) % READERS for reader in range(READERS))
        read_by_outsiders(installation, case["id"], *((number + role * (number % 3)) % 3 for role in roles))
    return READERS * len(cases)


#: As many rows as a report shows at most.
FULLEST = """() => {
  for (const body of [...document.querySelectorAll(".pair .card > .scroll tbody")]) {
    while (body.rows.length < 5) body.append(body.rows[0].cloneNode(true));
  }
}"""
#: Bottom of the block about disagreement, and of the page, in pixels.
BOTTOMS = """() => [
  document.querySelector(".finding").getBoundingClientRect().bottom, document.documentElement.scrollHeight
]"""


def n_pages(page: Page) -> int:
    return len(re.findall(rb"/Type\s*/Page\b", page.pdf(prefer_css_page_size=True)))


@pytest.mark.slow
def test_a_leads_morning(browser: Browser, installation: Installation, n_labels: int, tmp_path: Path) -> None:
    lead = Person(browser, installation, "lead")
    page = lead.go("/imports")
    (tmp_path / "cells.zip").write_bytes(archive("page"))
    page.set_input_files("[name=archive]", tmp_path / "cells.zip")
    page.click("main form button >> nth=0")
    page.wait_for_selector(f"text={N_CELLS} created, 0 already stored, 1 failed", timeout=patient(40_000))
    import_page = page.url
    page.select_option("[name=status]", "failed")
    page.click("text=Show")
    assert "lost" in page.inner_text("table")
    # the page asks for the report, and shows it once the worker has made it
    page.goto(f"{installation.address}/report?partition=all")

    def is_of_all() -> bool:  # a report from before the import is shown first
        page.reload()
        return f"{n_labels} labels" in page.inner_text("main")

    until(page, is_of_all, "the report has all labels", 40)
    assert page.locator("p.said").count() == 5
    page.set_viewport_size({"width": 1366, "height": 768})
    page.evaluate(FULLEST)
    first, bottom = page.evaluate(BOTTOMS)
    assert first <= 768
    assert bottom <= 3 * 768
    card = page.locator(".pair .card >> nth=0").evaluate("one => one.clientWidth")
    widths = page.locator(".pair .plot > svg").evaluate_all("all => all.map(one => one.clientWidth)")
    assert len(widths) >= 2
    assert min(widths) > 0.75 * card
    for details in page.locator("main summary").all():
        if details.is_visible():
            details.click()
    assert "there are no other labels" in page.inner_text("main")
    assert lead.violations() == []
    page.reload()
    page.emulate_media(media="print")
    assert not page.locator("nav").filter(visible=True).count()
    assert page.locator("text=there are no other labels").is_visible()
    assert not page.locator("text=Freeze this report").is_visible()
    assert n_pages(page) <= 3
    page.emulate_media(media="screen")
    page.click("text=Statistician's appendix")
    page.goto(f"{installation.address}/report/appendix?partition=all")
    text = page.inner_text("main")
    for heading in ("By annotator", "By pair", "By class"):
        assert heading in text
    assert "outside 0 and outside 1" in text
    with page.expect_download() as download:
        page.click("section.card:has(.panels) >> text=Numbers as CSV")
    header, *rows = Path(download.value.path()).read_text().splitlines()
    assert header.startswith("class,name,low,high,n,mean_prob,mean_freq")
    assert len(rows) == 8 * 15
    page.goto(f"{installation.address}/report?partition=all")
    page.click("text=Freeze this report")
    page.wait_for_selector("tr[data-state=succeeded]:has-text('evaluation')", timeout=patient(40_000))
    page.goto(import_page)
    page.evaluate("window.sameAsBefore = true")
    page.wait_for_timeout(2500)
    assert page.evaluate("window.sameAsBefore"), "the page of one job loads itself anew for another's sake"
    page = lead.go("/report")
    with page.expect_download() as download:
        page.click("text=HTML")
    download.value.save_as(tmp_path / "report.html")
    offline = browser.new_context(offline=True).new_page()
    offline.goto(f"file://{tmp_path / 'report.html'}")
    assert "Evaluation of release" in offline.inner_text("h1")
    assert "Frozen on 20" in offline.inner_text("body")
    assert offline.locator("p.said").count() == 5
    assert offline.locator(".plot").count() >= 3
    assert offline.locator("text=outside 0 and outside 1").count() == 1
    with page.expect_download() as download:
        page.click("text=JSON")
    download.value.save_as(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["document"]["n_cases"] > 0
    assert lead.faults == []
