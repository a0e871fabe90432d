"""Names of any direction and length on every page; refused forms and a recalibration in a real Chromium."""

import pytest
from playwright.sync_api import Browser

from tests.browser.conftest import Person, pack, read_by_outsiders, upload
from tests.support.process import Installation
from tests.support.service import cell_png
from tests.support.tiny_release import write_tiny_release
from tests.support.waiting import patient, wait_until

MARK = "W" * 30
#: Letters that run to the left, markup, and no space to break at; an account's name is at most 100 characters long.
SHORT = "خلية<i>" + MARK * 3
LONG = "خلية<i>" + MARK * 6
#: Texts with the mark that stand in no element of their own, and elements from the markup in names.
LOOSE = """(mark) => {
  const found = [...document.querySelectorAll("main i")].map((one) => one.outerHTML);
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const parent = walk.currentNode.parentElement;
    if (walk.currentNode.data.includes(mark) && !parent.closest("bdi, option, textarea, script")) {
      found.push(parent.outerHTML.slice(0, 300));
    }
  }
  return found;
}"""


@pytest.fixture(scope="module")
def hostile(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Cells, people, a release, a policy and an import with names that run to the left and do not break."""
    made = installation
    for number in range(3):
        case = upload(made, f"{LONG[:180]}{number}", 700 + number, patient=LONG[:190], site=LONG[:190])
        read_by_outsiders(made, case, 0, number % 2)
        classes = made.get(f"/v1/cases/{case}", made.keys["lead"])["prediction"]["classes"]
        body = {"label": classes[0], "blind": True, "annotator": SHORT[:-1]}
        assert made.call("lis", "POST", f"/v1/cases/{case}/labels", json=body).status_code == 201
    made.run("user", "add", SHORT, "--role", "annotator")
    policy = {"rule": "disagreement", "threshold": 0.3, "reason": LONG[:190]}
    assert made.call("lead", "POST", "/v1/policies", json=policy).status_code == 201
    made.run("release", "add", str(write_tiny_release(tmp_path_factory.mktemp("other") / "other", SHORT)))
    manifest = f"file,external_id,patient,site\nlost.png,{LONG[:190]},,\n".encode()
    sent = {"content": pack({f"{LONG[:90]}.png": cell_png(710), "manifest.csv": manifest})}
    job = made.call("lead", "POST", "/v1/imports", headers={"Content-Type": "application/zip"}, **sent).json()["id"]
    wait_until(lambda: made.get(f"/v1/jobs/{job}", made.keys["lead"])["state"] == "succeeded", 60, job)
    return made


@pytest.mark.slow
def test_names_turn_no_page_and_widen_none(browser: Browser, hostile: Installation) -> None:
    lead, reader = Person(browser, hostile, "lead"), Person(browser, hostile, SHORT)
    job = hostile.get("/v1/jobs", hostile.keys["lead"])["items"][0]["id"]
    release = hostile.get("/v1/releases", hostile.keys["lead"])["items"][0]["id"]
    found: dict[str, list[str]] = {}
    shown = set()
    for person, paths in (
        (
            lead,
            ("/worklist", "/cells", "/report?partition=all", "/policy", "/releases", "/jobs", "/imports", "/readers"),
        ),
        (lead, ("/people", "/audit", "/flagged", "/practice", f"/imports/{job}", f"/releases/{release}")),
        (reader, ("/worklist", "/account", "/settled", "/practice", "/help")),
    ):
        person.page.set_viewport_size({"width": 390, "height": 844})
        for path in paths:
            page = person.go(path)
            page.wait_for_selector("[data-making]", state="detached", timeout=patient(40_000))
            page.evaluate("for (const one of document.querySelectorAll('main details')) one.open = true")
            found[path] = page.evaluate(LOOSE, MARK)
            shown |= {path} if MARK in page.content() else set()
            width = page.evaluate("document.documentElement.scrollWidth")
            found[path] += [f"{width} px wide"] if width > 390 else []
    named = ("/worklist", "/report?partition=all", "/policy", "/releases", "/people", "/audit", "/practice", "/account")
    assert {*named, f"/imports/{job}", f"/releases/{release}"} <= shown
    lead.go("/people")
    lead.follow(f"tr:has-text('{MARK}') a")
    found["person"] = lead.page.evaluate(LOOSE, MARK)
    assert MARK in lead.page.inner_text("h1 bdi")
    assert {path: faults for path, faults in found.items() if faults} == {}
    assert lead.faults + reader.faults == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_refused_form_takes_the_eye_and_the_keyboard_to_its_first_fault(
    browser: Browser, installation: Installation, scheme: str
) -> None:
    lead = Person(browser, installation, "lead", scheme)
    page = lead.go("/policy")
    page.set_viewport_size({"width": 1366, "height": 768})
    page.click("summary:has-text('Change it')")
    form = page.locator("form[action='/policy']")
    box = form.bounding_box()
    assert box is not None
    assert box["height"] < 768
    assert page.locator("form[action='/policy'] [name]:visible").count() == 5
    page.fill("[name=threshold]", "7")
    page.click("form[action='/policy'] summary")
    page.fill("[name=due_days]", "never")
    lead.follow("text=Save the new version")
    assert page.evaluate("document.activeElement.name") == "threshold"
    described = page.evaluate("document.activeElement.getAttribute('aria-describedby')")
    assert page.inner_text(f"#{described}") == "Must be less than 1."
    assert page.locator("[name=threshold]").evaluate("(one) => one.getBoundingClientRect().bottom <= innerHeight")
    assert page.locator("[name=due_days]").is_visible()
    assert page.input_value("[name=due_days]") == "never"
    assert lead.violations() == []
    lead.go("/people")
    page.fill("main [name=name]", "anna")
    lead.follow("main form button >> nth=0")
    assert page.evaluate("document.activeElement.name") == "name"
    assert lead.violations() == []
    for path in ("/people", "/practice", "/imports", "/releases"):
        lead.go(path)
        for box in [one.bounding_box() for one in page.locator("main form[method=post]:visible").all()]:
            assert box is not None
            assert box["height"] < 768, path
    assert all("status of 4" in fault for fault in lead.faults)


@pytest.mark.slow
def test_a_recalibration_shows_its_progress_and_its_verdict_on_the_page_of_models(
    browser: Browser, hostile: Installation
) -> None:
    lead = Person(browser, hostile, "lead")
    page = lead.go("/releases")
    page.route("**/jobs/events", lambda route: route.abort())  # the page stays as it is
    lead.follow("text=Recalibrate now")
    assert page.url.endswith("/releases")
    assert lead.violations() == []
    page.unroute("**/jobs/events")
    page.reload()
    page.wait_for_selector("h3:has-text('candidate'), .alert:has-text('refused')", timeout=patient(40_000))
    lead.look("releases")
    assert [fault for fault in lead.faults if "ERR_FAILED" not in fault] == []
