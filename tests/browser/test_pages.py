"""Pages in a real Chromium: sign in, read blind, commit, reveal; nothing leaks and nothing breaks the policy."""

import shutil
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.conftest import missing
from tests.support.process import Installation
from tests.support.service import cell_png

_FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
_FLAGS += " --disable-component-update --disable-sync"
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=document.title='owned'>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if binary is None:
        missing("Chromium (Debian package chromium)")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=binary, args=_FLAGS.split())
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory, small_release: Path) -> Iterator[Installation]:
    made = Installation(tmp_path_factory.mktemp("pages") / "home")
    made.run("db", "upgrade")
    made.run("release", "add", small_release)
    for name, role in (("lead", "admin"), ("anna", "annotator"), ("ben", "annotator")):
        made.run("user", "add", name, "--role", role)
    made.start()
    _upload(made)
    yield made
    made.stop(signal.SIGTERM)


def _upload(made: Installation) -> None:
    import httpx2

    headers = {"Authorization": f"Bearer {made.key('lead')}"}
    for number, name in enumerate(("basophil-says-the-file", HOSTILE, "plain")):
        answer = httpx2.post(
            f"{made.address}/v1/cases",
            headers=headers | {"Idempotency-Key": uuid.uuid4().hex},
            files={"image": ("x.png", cell_png(number))},
            data={"external_id": name},
        )
        assert answer.status_code == 201, answer.text


class Person:
    """A signed-in browser that remembers what went wrong."""

    def __init__(self, browser: Browser, made: Installation, name: str, scheme: str = "light") -> None:
        self.faults: list[str] = []
        context = browser.new_context(color_scheme=scheme)  # type: ignore[arg-type]
        self.page: Page = context.new_page()
        self.page.set_default_timeout(10_000)
        self.page.on("console", lambda m: self.faults.append(m.text) if m.type in {"error", "warning"} else None)
        self.page.on("pageerror", lambda e: self.faults.append(str(e)))
        self.page.goto(made.address)
        self.page.fill("[name=name]", name)
        self.page.fill("[name=password]", made.password("user", "password", name))
        self.page.click("text=Sign in >> nth=-1")
        self.page.wait_for_url("**/worklist")


def test_an_annotator_reads_blind_commits_and_sees_the_posterior(browser: Browser, installation: Installation) -> None:
    anna = Person(browser, installation, "anna")
    page = anna.page
    assert "3 waiting, 0 read" in page.inner_text("h1")
    for word in ("disagreement", "second read", "basophil-says"):
        assert word not in page.content()
    page.click("text=Read the next case")
    assert "blind read" in page.inner_text("h1")
    for word in ("disagreement", "second read", "basophil-says", "0."):
        assert word not in page.inner_text("main")
    page.keyboard.press("Tab")
    page.check("input[value=monocyte]")
    page.click("text=Clear")
    assert page.locator("input:checked").count() == 0
    page.check("input[value=lymphocyte]")
    page.fill("textarea", "clumped chromatin")
    page.click("text=Commit and reveal")
    page.wait_for_selector("svg.bars")
    assert "1 label" in page.inner_text("h1")
    assert "clumped chromatin" in page.inner_text("table >> nth=-1")
    assert page.locator("svg.bars rect.posterior").count() == 8
    assert page.locator("svg.bars line.interval").count() == 16
    page.click("text=Next case")
    assert "blind read" in page.inner_text("h1")
    page.goto(f"{installation.address}/worklist")
    assert "1 read" in page.inner_text("h1")
    page.click("text=Sign out")
    page.wait_for_url("**/login")
    page.goto(f"{installation.address}/worklist")
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
    assert lead.faults == []


def test_pages_work_without_javascript(browser: Browser, installation: Installation) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(installation.address)
    page.fill("[name=name]", "ben")
    page.fill("[name=password]", installation.password("user", "password", "ben"))
    page.click("text=Sign in >> nth=-1")
    page.click("text=Read the next case")
    page.check("input[value=eosinophil]")
    page.click("text=Commit and reveal")
    assert "Class probabilities" in page.inner_text("main")
    wrong = page.goto(f"{installation.address}/cases/01890000-0000-7000-8000-000000000000")
    assert wrong is not None
    assert wrong.status == 404
    assert "Not found" in page.inner_text("h1")
