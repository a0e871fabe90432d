"""A lead's morning: import, recalibrate, compare, promote, roll back, report, people."""

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

PASSWORD = "a long enough password for the lead"
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


def move(page: Page, alias: str, reason: str) -> None:
    form = f"form:has([name=alias][value={alias}])"
    page.fill(f"{form} textarea", reason)
    if page.locator(f"{form} [name=despite_gate]").count():  # a release that no gate has judged
        page.check(f"{form} [name=despite_gate]")
    page.fill(f"{form} [name=password]", PASSWORD)
    page.click(f"{form} button")
    page.wait_for_url("**/releases")


def choose_password(lead: Person) -> None:
    """Choose the password that promotions ask for: a new one-time password has ended the one before."""
    page = lead.go("/account")
    page.fill("[name=wanted]", PASSWORD)
    page.click("main button")
    page.wait_for_load_state()


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


@pytest.mark.slow
@pytest.mark.usefixtures("n_labels")
def test_recalibrate_compare_promote_and_roll_back(browser: Browser, installation: Installation) -> None:
    lead = Person(browser, installation, "lead")
    choose_password(lead)
    page = lead.go("/releases")
    first = page.locator(".releases h2 a >> nth=0").get_attribute("href")
    page.click("text=Make a candidate")
    page.wait_for_selector(
        "tr:not([data-state=queued], [data-state=running]):has-text('recalibration')", timeout=patient(60_000)
    )
    assert "succeeded" in page.inner_text("tr:has-text('recalibration')")
    page.click("tr[data-state=succeeded]:has-text('recalibration') a")
    text = page.inner_text("main")
    assert "Against the champion at that time" in text
    assert "Paired change" in text
    assert page.locator("table >> nth=1").locator("tbody tr").count() >= 4
    # so few labels that have nothing to do with the cells cannot show that it is better; it is promoted by a choice
    assert "The gate refused it" in text
    assert "Attempt 1 on this champion" in text
    assert "has not predicted any labelled case" in text
    candidate = page.url
    move(page, "challenger", "to look at it first")
    page = lead.go("/jobs")
    page.wait_for_selector("tr[data-state=succeeded]:has-text('prediction')", timeout=patient(40_000))
    page.goto(candidate)
    beside = page.locator("section:has-text('Compared with the champion on current labels') table")
    assert beside.locator("tbody tr").count() == 6
    assert "L_φ" in beside.inner_text()
    assert page.locator("text=Predict missing cases").count() == 0
    assert lead.violations() == []
    move(page, "champion", "the stain has changed")
    assert "champion" in page.inner_text(".releases li >> nth=0")
    page = lead.go(str(first))
    move(page, "champion", "for comparison")
    assert "champion" in page.inner_text(f".releases li:has(h2 a[href='{first}'])")
    page = lead.go("/audit?action=alias.move")
    assert [page.inner_text(f"tbody tr >> nth={row} >> td >> nth=3") for row in (0, 1)] == [
        "for comparison",
        "the stain has changed",
    ]
    assert lead.faults == []


@pytest.mark.slow
def test_the_policy_changes_by_a_new_version(browser: Browser, installation: Installation) -> None:
    lead = Person(browser, installation, "lead")
    page = lead.go("/policy")
    page.click("text=Change it")
    page.select_option("[name=rule]", "capacity")
    page.fill("[name=capacity_per_day]", "12")
    page.fill("[name=reason]", "two annotators are away")
    page.click("text=Save the new version")
    page.wait_for_selector("text=version 2")
    assert "12 per day" in page.inner_text("main")
    assert "two annotators are away" in page.inner_text("section:has-text('Versions')")
    assert lead.faults == []


def test_people_come_and_go(browser: Browser, installation: Installation) -> None:
    lead = Person(browser, installation, "lead")
    page = lead.go("/people")
    page.fill("[name=name]", "dora")
    page.select_option("[name=role]", "annotator")
    page.click("text=Add")
    secret = page.inner_text("[role=status] code")
    other = browser.new_context().new_page()
    other.goto(installation.address)
    other.fill("[name=name]", "dora")
    other.fill("[name=password]", secret)
    other.click("main button")
    other.wait_for_url("**/account")
    page.click("summary:has-text('Let in no more')")
    page.click("text=Yes, let them in no more")
    page.wait_for_selector("h1:has-text('let in no more since')")
    other.goto(f"{installation.address}/worklist")
    assert other.url.endswith("/login")
    page = lead.go("/people")
    page.fill("[name=search]", "LI")
    assert page.locator("[data-narrowed]").inner_text().startswith("1 of ")
    page.click("tr:has-text('lis') a")
    page.click("summary:has-text('New API key')")
    page.check("input[value=predict]")
    page.click("text=Create key")
    token = page.inner_text("[role=status] code")
    assert token.startswith("sr_")
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": "x"}
    image = {"image": ("x.png", cell_png(1))}
    assert httpx2.post(f"{installation.address}/v1/predictions", headers=headers, files=image).status_code == 200
    page.click("tr:last-child >> text=Revoke")
    page.wait_for_selector("text=revoked 20")
    assert httpx2.post(f"{installation.address}/v1/predictions", headers=headers, files=image).status_code == 401
    assert lead.faults == []
