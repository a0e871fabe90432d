"""A lead's morning without a dead end: from an empty service to a recalibration that is refused in words."""

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser.conftest import Person, pack, until
from tests.support.process import Installation
from tests.support.service import cell_png
from tests.support.waiting import patient, wait_until

N_CELLS = 6


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Installation]:
    """A server without a release, a case or anybody but its admin."""
    made = Installation(tmp_path / "home")
    made.prepare(None, lead="admin")
    made.spawn("serve", log="server.log")

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"{made.address}/healthz", timeout=patient(5)):
                return True
        except OSError:
            return False

    wait_until(answers, 60, lambda: made.log)
    yield made
    made.close()


def archive() -> bytes:
    rows = [f"{number}.png,slide-9-{number:03},patient {number},Zürich" for number in range(N_CELLS)]
    files = {f"{number}.png": cell_png(number) for number in range(N_CELLS)}
    files |= {"__MACOSX/._0.png": b"x", "labels.csv": b"x", "twin.png": cell_png(0)}
    manifest = "\n".join(["file,external_id,patient,site", *rows, "twin.png,twin,patient 9,Bern", "lost.png,lost,,"])
    return pack(files | {"manifest.csv": manifest.encode()})


@pytest.mark.slow
def test_a_leads_morning_has_no_dead_end(
    browser: Browser, empty: Installation, tiny_release: Path, tmp_path: Path
) -> None:
    lead = Person(browser, empty, "lead")
    page = lead.go("/worklist")

    def state(step: str) -> str:
        return str(page.locator(f"[data-step={step}]").get_attribute("data-state"))

    assert [state(step) for step in ("release", "people", "policy", "import")] == ["next", "later", "later", "waits"]
    for path in ("/report", "/policy", "/releases", "/jobs", "/imports", "/readers", "/people", "/audit"):
        lead.go(path)
        assert page.locator("nav").is_visible(), path
    assert lead.faults == []
    empty.run("release", "add", tiny_release)
    lead.go("/worklist")
    assert (state("release"), state("people"), state("import")) == ("done", "next", "later")
    page.click("text=Add annotators")
    for name in ("anna", "ben"):
        lead.go("/people")
        page.fill("[name=name]", name)
        page.click("text=Add")
        assert page.locator("[role=status] code").inner_text()
    lead.go("/worklist")
    assert (state("people"), state("policy")) == ("done", "next")
    page.click("text=Look at the policy")
    page.click("text=Change it")
    page.fill("[name=threshold]", "0,3")
    page.fill("[name=audit_rate]", "often")
    page.fill("[name=reason]", "our first policy")
    page.click("text=Save the new version")
    assert "Must be a number" in page.inner_text("#audit_rate-fault")
    assert page.input_value("[name=threshold]") == "0,3"
    assert lead.violations() == []
    page.fill("[name=audit_rate]", "0,2")
    page.click("text=Save the new version")
    page.wait_for_selector("text=version 2")
    lead.go("/worklist")
    assert state("import") == "next"
    page.click("text=Import images")
    page.set_input_files("[name=archive]", {"name": "a.zip", "mimeType": "application/zip", "buffer": b"no zip"})
    page.click("main form button >> nth=0")
    assert "not a zip archive" in page.inner_text("#archive-fault").lower()
    (tmp_path / "cells.zip").write_bytes(archive())
    page.set_input_files("[name=archive]", tmp_path / "cells.zip")
    page.click("main form button >> nth=0")
    page.wait_for_selector(f"text={N_CELLS + 1} created, 0 already known, 1 failed", timeout=patient(40_000))
    page.click("text=Which, and why")
    assert "labels are not imported" in page.inner_text("table")
    assert lead.violations() == []
    with page.expect_download() as download:
        page.click("text=Failed rows as CSV")
    assert "lost" in Path(download.value.path()).read_text()
    lead.go("/worklist")
    assert f"{N_CELLS + 1} cases to read" in page.inner_text("h1")
    assert page.locator("text=same image as").count() == 2
    page.fill("[name=search]", "SLIDE-9-004")
    page.click("main form button >> nth=0")
    until(page, lambda: page.locator(".tile").count() == 1, "one case is found")
    assert lead.violations() == []
    lead.go("/releases")
    assert "It predicts every new case since" in page.inner_text(".releases")
    page.click("text=Make a candidate")
    page.wait_for_selector("text=The newest recalibration was refused", timeout=patient(60_000))
    told = page.inner_text("section[aria-label='The newest recalibration']")
    assert "needs 50 labelled cases" in told
    assert "more labelled cases are needed there" in told
    assert page.locator("text=Try again").count() == 0
    assert lead.violations() == []
    lead.go("/audit?about=slide-9-004")
    assert "lead stored slide-9-004" in page.inner_text("table")
    assert lead.violations() == []
    shown = page.locator("td time >> nth=0")
    assert "UTC" not in shown.inner_text()
    assert shown.get_attribute("title").endswith("UTC")
    plain = browser.new_context(java_script_enabled=False, storage_state=lead.context.storage_state()).new_page()
    plain.goto(f"{empty.address}/audit")
    assert plain.inner_text("td time >> nth=0").endswith("UTC")
    lead.go("/cases/nonsense")
    assert page.locator("nav").is_visible()
    page.click("text=Back to where I was")
    page.wait_for_url("**/audit?about=slide-9-004")
    refused = [fault for fault in lead.faults if "422" not in fault]
    assert refused == []
