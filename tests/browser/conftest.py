"""A real server, a real Chromium, and people who are signed in."""

import itertools
import json
import time
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Error, Page
from sqlalchemy import select, update

from app.audit.chain.keys import AnnotatorKeys, derive_keys
from app.cases.blindness import case_handle
from app.database.engine import Database
from app.database.tables import Account, Annotator, Label, Read, ReadRequest, utc_now
from app.http.principal import Principal
from app.settings import Settings
from tests.support.process import Installation
from tests.support.service import cell_png
from tests.support.waiting import patient

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=document.title='owned'>"

SIZES = ((390, 844), (1024, 600), (1366, 768), (2560, 1440), (3840, 2160))
# What moves: the place of the image's frame, and every shift of the layout, those after a key included.
WATCH = """() => {
  window.shifts = [];
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) {
      for (const { node, previousRect: before, currentRect: after } of entry.sources)
        window.shifts.push(`${node?.className ?? node?.nodeName} ${JSON.stringify([before, after])}`);
    }
  }).observe({ type: 'layout-shift', buffered: true });
}"""
FRAME = "JSON.stringify(document.querySelector('.viewer .stage').getBoundingClientRect())"

#: Of cells that no other case has.
_NUMBERS = itertools.count(20_000)


@pytest.fixture(autouse=True)
def _windows_are_closed(browser: Browser) -> Iterator[None]:
    """An open page goes on asking its server."""
    yield
    for context in browser.contexts:
        context.close()


def until(page: Page, condition: Callable[[], bool], what: str, seconds: float = 30) -> None:
    """Wait while the page goes on, which a plain sleep would not let it.

    The page may leave for another while it is asked; then it is asked again.
    """
    deadline = time.monotonic() + patient(seconds)
    while not _holds(condition):
        assert time.monotonic() < deadline, what
        page.wait_for_timeout(50)


def _holds(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except Error as error:
        if "Execution context was destroyed" not in error.message:
            raise
        return False


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory, tiny_release: Path) -> Iterator[Installation]:
    """A server with its worker, three cases, an admin and annotators."""
    made = Installation(tmp_path_factory.mktemp("pages") / "home")
    made.home.mkdir()
    (made.home / "secret.key").write_bytes(b"the same partitions in every run")
    (made.home / "secret.key").chmod(0o600)
    people = {"lead": "admin", "viewer": "viewer", "lis": "service"} | dict.fromkeys(
        ("anna", "ben", "cleo", "emil"), "annotator"
    )
    made.keys = made.prepare(tiny_release, **people)
    made.environment["SECONDREAD_CHANGE_PLAN"] = str(made.home / "plan.json")
    # a handful of random labels must be able to make a candidate that passes
    bounds = {"min_labelled_cases": 4, "min_patients": 2, "max_increase": 5.0, "max_mean_probability_change": 1.0}
    (made.home / "plan.json").write_text(json.dumps(bounds | {"max_mean_log_concentration_change": 50.0}))
    made.start()
    for number, name in enumerate(("basophil-says-the-file", HOSTILE, "plain")):
        upload(made, name, number)
    yield made
    made.close()


def upload(made: Installation, name: str, number: int, *, field: bytes | None = None, **fields: str) -> str:
    """Store a case, perhaps with the wider field around its cell; gives its identifier."""
    files = {"image": ("x.png", cell_png(number, 96))} | ({} if field is None else {"field": ("y.png", field)})
    answer = made.call("lead", "POST", "/v1/cases", files=files, data={"external_id": name, **fields})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def set_policy(made: Installation, **fields: object) -> None:
    answer = made.call("lead", "POST", "/v1/policies", json={"adjudicate_below": None, "reason": "test"} | fields)
    assert answer.status_code == 201, answer.text


def set_reveal(made: Installation, reveal: str) -> None:
    """Change when annotators see a case in full."""
    set_policy(made, rule="disagreement", threshold=0.2, reveal=reveal, repeat_rate=0)


def read_by_outsiders(made: Installation, case_id: str, *labels: int) -> None:
    """Give a case labels of annotators of an outside system, each the class of this number."""
    classes = made.get(f"/v1/cases/{case_id}", made.keys["lead"])["prediction"]["classes"]
    for reader, k in enumerate(labels):
        body = {"label": classes[k], "blind": True, "annotator": f"outside {reader}"}
        answer = made.call("lis", "POST", f"/v1/cases/{case_id}/labels", json=body)
        assert answer.status_code == 201, answer.text


class Person:
    """A browser that remembers what went wrong, signed in unless the name is empty."""

    def __init__(self, browser: Browser, made: Installation, name: str, scheme: str = "light", **device: Any) -> None:
        self.faults: list[str] = []
        self.dark = scheme == "dark"
        self.context = browser.new_context(color_scheme=scheme, **device)  # type: ignore[arg-type]
        self.page: Page = self.context.new_page()
        self.address = made.address
        self.page.set_default_timeout(patient(10_000))
        self.page.on("console", lambda m: self.faults.append(m.text) if m.type in {"error", "warning"} else None)
        self.page.on("pageerror", lambda e: self.faults.append(str(e)))
        if name:
            self.sign_in(made, name)
            self.go("/worklist")
        else:
            self.page.goto(made.address)

    def sign_in(self, made: Installation, name: str) -> None:
        """Sign in by a one-time password, as far as where a password of one's own is asked for."""
        page = self.go("/login")
        page.fill("[name=name]", name)
        page.fill("[name=password]", made.one_time_password(name))
        page.click("main button")
        page.wait_for_url("**/account")

    def go(self, path: str) -> Page:
        self.page.goto(self.address + path)
        return self.page

    def follow(self, selector: str) -> Page:
        """Click what leads to another page, and wait for that."""
        with self.page.expect_navigation():
            self.page.click(selector)
        return self.page

    def violations(self) -> list[str]:
        """What axe-core finds wrong with the page that is open; in the dark by the rules about colours only, since the
        rest of the page is the same as in the light."""
        self.page.wait_for_selector("[data-making]", state="detached")  # a report that is being made comes by itself
        options: dict[str, object] = {"resultTypes": ["violations"]}
        if self.dark:
            options["runOnly"] = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
        found = Axe().run(self.page, options=options).response["violations"]
        return [
            f"{violation['id']}: {node['target']} {node['failureSummary']}"
            for violation in found
            for node in violation["nodes"]
        ]

    def look(self, name: str) -> None:
        """Assert that the page that is open keeps nobody out and is never wider than its window."""
        before = self.page.viewport_size
        self.page.wait_for_load_state("networkidle")
        assert self.violations() == [], name
        for width, height in ((390, 844), (1366, 768), (2560, 1440)):
            self.page.set_viewport_size({"width": width, "height": height})
            assert self.page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} at {width} px"
        assert before is not None
        self.page.set_viewport_size(before)


def handle_of(keys: AnnotatorKeys, account_id: uuid.UUID | None, case_id: uuid.UUID) -> str:
    """What the person of an account knows a case by."""
    assert account_id is not None
    person = Principal(account_id, "", "annotator", frozenset({"reads:own"}))
    return str(case_handle(keys, person, case_id))


def handles_of(made: Installation, name: str, case_ids: Iterable[str]) -> set[str]:
    keys = derive_keys(Settings(home=made.home).key_ring()).readers
    ((account_id,),) = made.rows(select(Account.id).where(Account.name == name))
    return {handle_of(keys, account_id, uuid.UUID(case_id)) for case_id in case_ids}


def pack(files: dict[str, bytes]) -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def close_open_requests(made: Installation) -> None:
    """Want no read any more of the cases that are there, whoever holds them."""
    database = Database(made.sqlalchemy_url)
    with database.write() as session:
        session.execute(update(Read).where(Read.state == "leased").values(state="expired", ended_at=utc_now()))
        no_more = update(ReadRequest).where(ReadRequest.state.in_(("open", "leased")))
        session.execute(no_more.values(state="closed", closed_at=utc_now(), lease_expires_at=None))
    database.engine.dispose()


@pytest.fixture(scope="module")
def blind(installation: Installation) -> Iterator[Installation]:
    """A service whose cases stay closed until all have read them; answers to those of before, which would be final at
    once, are wanted of nobody."""
    set_reveal(installation, "after_case_closed")
    close_open_requests(installation)
    return installation


def given(made: Installation, name: str) -> list[tuple[str, str, str | None, bool]]:
    """Case as its annotator knows it, kind, class and whether it was blind, of all labels, oldest first."""
    keys = derive_keys(Settings(home=made.home).key_ring()).readers
    columns = (Label.case_id, Annotator.account_id, Label.kind, Label.class_code, Label.blind)
    wanted = select(*columns).join(Annotator, Annotator.id == Label.annotator_id).where(Annotator.name == name)
    return [(handle_of(keys, row[1], row[0]), *row[2:]) for row in made.rows(wanted.order_by(Label.id))]


def begin(person: Person) -> Page:
    """Open the reading page, with the cases ahead at hand."""
    page = person.go("/worklist")
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-resident]")
    page.wait_for_load_state("networkidle")
    return page


def begin_with(browser: Browser, made: Installation, name: str, n: int = 0, **device: Any) -> tuple[Person, Page]:
    """The reading page of an annotator after so many cases were stored, with the cases ahead at hand."""
    for _ in range(n):
        number = next(_NUMBERS)
        upload(made, f"cell {number}", number)
    person = Person(browser, made, name, **device)
    return person, begin(person)


def box_of(page: Page, selector: str) -> Any:
    """Where an element stands, which must be shown."""
    box = page.locator(selector).first.bounding_box()
    assert box is not None, selector
    return box


def shown(page: Page) -> str:
    """Handle of the case on the page; empty while none is."""
    return str(page.evaluate("document.querySelector('[data-read]')?.dataset.case ?? ''"))


def kept(page: Page) -> list[str]:
    """Classes that wait in the browser."""
    resting: dict[str, str] = page.evaluate("({ ...localStorage })")
    return [label for key, label in resting.items() if key.startswith("secondread.outbox.")]


def hold_clock(page: Page) -> None:
    """From here the page's clock goes on only when the test says so, however long a busy machine takes in between."""
    page.clock.install()
    page.clock.pause_at(time.time() + 1)
