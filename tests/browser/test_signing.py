"""A specimen from upload to signature: deciding cells are read, a late label raises a notice, an amendment ends it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from app.labels.corrections import finalize_labels
from ml.util.files import read_json
from tests.browser.conftest import Person, close_open_requests, given, set_policy, shown, until
from tests.support.process import Installation
from tests.support.service import cell_png
from tests.support.tiny_release import edit_release, split_classes, write_tiny_release

pytestmark = [pytest.mark.ci, pytest.mark.slow]
PASSWORD = "a password for the tests"
N_CELLS = 50


@pytest.fixture
def made(tmp_path: Path, tiny_release: Path) -> Iterator[Installation]:
    """A server with two leads and two annotators."""
    made = Installation(tmp_path / "home")
    made.keys = made.prepare(
        tiny_release, lead="admin", deputy="admin", anna="annotator", ben="annotator", lis="service"
    )
    made.start()
    yield made
    made.close()


def upload_specimen(made: Installation) -> str:
    """A specimen of fifty cells, of which no read is asked for yet."""
    fields = {"external_id": "S-1042", "patient": "P-7", "site": "Ward 3"}
    specimen = made.call("lead", "POST", "/v1/specimens", json=fields).json()["specimen"]
    files = [("image", (f"{row}.png", cell_png(row, 64), "image/png")) for row in range(N_CELLS)]
    answer = made.call("lead", "POST", f"/v1/specimens/{specimen}/cells", files=files)
    assert (answer.status_code, answer.json()["n_stored"]) == (207, N_CELLS), answer.text
    close_open_requests(made)
    return str(specimen)


def groups_of(made: Installation, specimen: str) -> list[dict[str, Any]]:
    """The differential as it is now."""
    return list(made.get(f"/v1/specimens/{specimen}", made.keys["lead"])["groups"])


def put_threshold_that_is_nearly_decided(made: Installation, specimen: str) -> None:
    """A threshold so far below the share of monocytes and other common classes that some reads decide it."""
    shares = {one["group"]: one["patient"]["share"] for one in groups_of(made, specimen)}
    common = sorted(shares.keys() - {"monocyte", "blast"}, key=lambda code: -shares[code])
    group = {"group": "no blasts", "classes": ["monocyte", *common[:3]]}

    def put(at: float) -> dict[str, Any]:
        groups = [group | {"thresholds": [{"at": at, "miss_cost": 1}]}]
        rule = {"rule": "disagreement", "threshold": 0.99, "repeat_rate": 0, "reveal": "after_case_closed"}
        set_policy(made, **rule, reporting_groups=groups)
        return groups_of(made, specimen)[0]

    patient = put(0.5)["patient"]
    for step in range(1, 30):
        at = patient["interval"][0] + 0.02 * step * (patient["share"] - patient["interval"][0])
        if put(at)["thresholds"][0]["decision"] == "open":
            return
    raise AssertionError("no threshold is open")


def choose_password(person: Person) -> None:
    page = person.go("/account")
    page.fill("[name=wanted]", PASSWORD)
    person.follow("main form:first-of-type button")


def assign(person: Person, specimen: str, annotator: str, cells: slice) -> int:
    """Assign some of the deciding cells by keyboard; gives how many."""
    page = person.go(f"/specimens/{specimen}")
    boxes = page.locator(".strip [name=cell]").all()
    for box in boxes:
        box.set_checked(box in boxes[cells])
    page.select_option("[name=annotator]", annotator)
    page.locator("h1").click()  # letters are no keys while a list has the focus
    with page.expect_navigation():
        page.keyboard.press("a")
    return int(page.inner_text("[data-status]").split()[0])


def read_all(person: Person, made: Installation, name: str, n: int) -> None:
    """Read the assigned cells as monocytes."""
    page = person.go("/worklist")
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-resident]")
    case = ""
    for number in range(1, n + 1):
        until(page, lambda case=case: shown(page) not in {"", case}, "the next cell is shown")
        case = shown(page)
        page.keyboard.press("m")
        until(page, lambda number=number: len(given(made, name)) >= number, f"answer {number} is stored")
    person.follow("text=Sign out")
    with made.parts() as context:  # which the worker does once a minute
        finalize_labels(context)


def sign(person: Person, **fields: str) -> Page:
    page = person.page
    page.locator("h1").click()
    page.keyboard.press("s")
    for name, text in {"password": PASSWORD, **fields}.items():
        page.fill(f"form.sign [name={name}]", text)
    return person.follow("form.sign button")


def n_pages(page: Page) -> int:
    pdf = page.pdf(format="A4")
    return pdf.count(b"/Type /Page") - pdf.count(b"/Type /Pages")


def test_a_specimen_is_read_decided_signed_and_amended(browser: Browser, made: Installation) -> None:
    specimen = upload_specimen(made)
    put_threshold_that_is_nearly_decided(made, specimen)
    lead, deputy = Person(browser, made, "lead"), Person(browser, made, "deputy")
    for person in (lead, deputy):
        choose_password(person)
    page = lead.go("/specimens")
    lead.look("specimens")
    lead.follow("main table a:has-text('S-1042')")
    assert page.inner_text("h1 .tag") == "open"
    assert page.locator(".strip li").count() == 10
    lead.look("an open specimen")
    lead.follow("[data-action=gallery]")
    assert f"{N_CELLS} cells" in page.inner_text("h1")

    halves = {"anna": slice(0, 5), "ben": slice(5, 10)}
    assert [assign(lead, specimen, name, cells) for name, cells in halves.items()] == [5, 5]
    for name in halves:
        read_all(Person(browser, made, name), made, name, 5)
    page = lead.go(f"/specimens/{specimen}")
    assert page.inner_text("h1 .tag") == "decided"
    assert "10 labels by 2 annotators" in page.inner_text("h1")
    assert page.locator(".strip").count() == 0

    deputy.go(f"/specimens/{specimen}")  # both look at the same page
    sign(lead)
    assert page.inner_text("h1 .tag") == "signed"
    assert "approved by lead" in page.inner_text("#signature")
    assert n_pages(page) == 1
    sign(deputy)
    assert "has been signed" in deputy.page.inner_text("form.sign .fault")

    cells = made.get(f"/v1/specimens/{specimen}/cells?limit=200", made.keys["lead"])["items"]
    unread = [cell["id"] for cell in cells if cell["n_labels"] == 0]
    for case_id in unread:
        for reader in ("first", "second"):
            body = {"label": "blast", "blind": True, "annotator": f"outside {reader}"}
            assert made.call("lis", "POST", f"/v1/cases/{case_id}/labels", json=body).status_code == 201
    page = lead.go(f"/specimens/{specimen}")
    assert page.inner_text("h1 .tag") == "signed"
    assert "signed as" in page.inner_text("#signature .alert")
    assert "S-1042" in lead.go("/today").inner_text(".needs")
    assert "S-1042" not in deputy.go("/today").inner_text("main")

    deputy.go(f"/specimens/{specimen}")
    sign(deputy, reason="later reads of forty cells", comment="discussed")
    assert "Version 2: approved by deputy" in deputy.page.inner_text("#signature")
    assert deputy.page.locator("#signature .alert").count() == 0
    assert "S-1042" not in lead.go("/today").inner_text("main")
    page = lead.go(f"/specimens/{specimen}?signed=1")
    assert "signed version 1" in page.inner_text(".good")
    first, second = (one["document"] for one in reversed(signatures(made, specimen)))
    share = first["groups"][0]["patient"]["share"]
    assert f"{share:.0%}" in page.inner_text(".differential tbody tr >> nth=0")
    assert second["groups"][0]["thresholds"][0]["decision"] != first["groups"][0]["thresholds"][0]["decision"]
    lead.look("a signed version")
    assert n_pages(page) == 1
    assert lead.faults == []


def signatures(made: Installation, specimen: str) -> list[dict[str, Any]]:
    """Signed versions, newest first."""
    return list(made.get(f"/v1/specimens/{specimen}/signatures", made.keys["lead"])["items"])


def test_a_session_that_ended_meanwhile_signs_nothing(browser: Browser, made: Installation) -> None:
    specimen = upload_specimen(made)
    lead = Person(browser, made, "lead")
    choose_password(lead)
    page = lead.go(f"/specimens/{specimen}")
    lead.context.clear_cookies()
    sign(lead)
    assert page.url.endswith("/login")
    assert signatures(made, specimen) == []


def test_a_differential_of_many_classes_needs_no_scrolling(browser: Browser, tmp_path: Path) -> None:
    """Two hundred cells on a laptop of 1366 × 768."""
    fitted = write_tiny_release(tmp_path / "release", classes=split_classes(3, grouped=False))
    # these images are alike to the network: in its own mix the shares would stay open, which takes a further line
    fit = read_json(fitted / "card.json")["calibration"] | {"class_mix": [1 / 24] * 24}
    release = edit_release(fitted, tmp_path / "even", calibration=fit)
    made = Installation(tmp_path / "home")
    made.keys = made.prepare(release, lead="admin")
    made.start()
    try:
        specimen = made.call("lead", "POST", "/v1/specimens", json={"external_id": "S-1"}).json()["specimen"]
        for start in range(0, 200, 50):
            files = [("image", (f"{row}.png", cell_png(row, 64), "image/png")) for row in range(start, start + 50)]
            assert made.call("lead", "POST", f"/v1/specimens/{specimen}/cells", files=files).status_code == 207
        lead = Person(browser, made, "lead", viewport={"width": 1366, "height": 768})
        page = lead.go(f"/specimens/{specimen}")
        page.wait_for_load_state("networkidle")
        rows = page.locator(".differential tbody tr")
        assert rows.count() == 24
        box = rows.last.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 768
        assert len(page.content()) < 400_000
    finally:
        made.close()
