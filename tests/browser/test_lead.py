"""A lead's morning: an import, its report on paper and offline."""

import json
import re
import uuid
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, Page

from tests.browser.conftest import Person, pack
from tests.support.process import Installation
from tests.support.service import cell_png
from tests.support.waiting import patient, wait_until

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
    headers = {"Authorization": f"Bearer {installation.keys['lead']}"}
    with httpx2.Client(base_url=installation.address, headers=headers, timeout=patient(60)) as client:
        sent = {"Idempotency-Key": uuid.uuid4().hex, "Content-Type": "application/zip"}
        job = client.post("/v1/imports", content=archive("outside"), headers=sent).json()["id"]
        wait_until(lambda: client.get(f"/v1/jobs/{job}").json()["state"] == "succeeded", 60, job)
        cases = client.get("/v1/cases?limit=100").json()["items"]
        for number, case in enumerate(cases):
            classes = case["prediction"]["classes"]
            for reader in range(READERS):
                key = {"Authorization": f"Bearer {installation.keys['lis']}", "Idempotency-Key": uuid.uuid4().hex}
                role = (reader + number // 3) % READERS  # in turn, so that nobody differs from the others
                label = classes[(number + role * (number % 3)) % 3]
                body = {"label": label, "annotator": f"r{reader}", "blind": True}
                answer = client.post(f"/v1/cases/{case['id']}/labels", json=body, headers=key)
                assert answer.status_code == 201, answer.text
    return READERS * len(cases)


#: Without the appendix, as many months and sites as a report shows at most.
FULLEST = """() => {
  document.querySelector(".appendix").remove();
  for (const body of [...document.querySelectorAll(".pair > :nth-child(n + 3) tbody")]) {
    while (body.rows.length < 12) body.append(body.rows[0].cloneNode(true));
  }
}"""


def n_pages(page: Page) -> int:
    """Pages of paper."""
    return len(re.findall(rb"/Type\s*/Page\b", page.pdf(prefer_css_page_size=True)))


@pytest.mark.slow
def test_a_leads_morning(browser: Browser, installation: Installation, n_labels: int, tmp_path: Path) -> None:
    lead = Person(browser, installation, "lead")
    page = lead.go("/imports")
    (tmp_path / "cells.zip").write_bytes(archive("page"))
    page.set_input_files("[name=archive]", tmp_path / "cells.zip")
    page.click("main form button >> nth=0")
    page.wait_for_selector(f"text={N_CELLS} created, 0 already known, 1 failed", timeout=patient(40_000))
    import_page = page.url
    page.select_option("[name=status]", "failed")
    page.click("text=Show")
    assert "lost" in page.inner_text("table")
    # the page asks for the report, and shows it once the worker has made it
    page.goto(f"{installation.address}/report?partition=all")
    page.wait_for_selector(".findings", timeout=patient(40_000))
    assert f"{n_labels} labels" in page.inner_text("h2 >> nth=0")
    assert page.locator(".findings > li").count() == 5
    card = page.locator(".findings").evaluate("one => one.clientWidth")
    for sentence in page.locator(".findings summary").all():
        sentence.click()
    widths = page.locator(".findings .plot > svg").evaluate_all("all => all.map(one => one.clientWidth)")
    assert len(widths) >= 4
    assert min(widths) > 0.9 * card
    page.click("summary:has-text('to know before relying')")
    text = page.inner_text("main")
    for heading in ("By annotator", "By pair", "By class", "nobody else labelled"):
        assert heading in text
    assert "r0 and r1" in text
    with page.expect_download() as download:
        page.click("section.card:has(.panels) >> text=Numbers as CSV")
    header, *rows = Path(download.value.path()).read_text().splitlines()
    assert header.startswith("class,low,high,n,mean_prob,mean_freq")
    assert len(rows) == 8 * 15
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible()
    assert not page.locator("text=Freeze this report").is_visible()
    assert n_pages(page) > 2
    page.evaluate(FULLEST)
    assert n_pages(page) == 2
    page.emulate_media(media="screen")
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
    assert offline.locator(".findings > li").count() == 5
    assert offline.locator(".plot").count() > 8
    assert offline.locator("text=r0 and r1").count() == 1
    with page.expect_download() as download:
        page.click("text=JSON")
    download.value.save_as(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["document"]["n_cases"] > 0
    assert lead.faults == []
