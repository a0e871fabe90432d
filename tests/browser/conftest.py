"""A real server, a real Chromium, and people who are signed in."""

import json
import time
import uuid
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Error, Page
from sqlalchemy import select, update

from app.audit.chain.keys import AnnotatorKeys, derive_keys
from app.database.engine import Database
from app.database.tables import Annotator, Label, ReadRequest, utc_now
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
    keys = made.prepare(tiny_release, **people)
    made.environment["SECONDREAD_CHANGE_PLAN"] = str(made.home / "plan.json")
    # a handful of random labels must be able to make a candidate that passes
    bounds = {"min_labelled_cases": 4, "min_patients": 2, "max_increase": 5.0, "max_mean_probability_change": 1.0}
    (made.home / "plan.json").write_text(json.dumps(bounds | {"max_mean_log_concentration_change": 50.0}))
    made.start()
    made.keys = keys
    for number, name in enumerate(("basophil-says-the-file", HOSTILE, "plain")):
        upload(made, name, number)
    yield made
    made.close()


def upload(made: Installation, name: str, number: int, *, field: bytes | None = None, **fields: str) -> str:
    """Store a case, perhaps with the wider field around its cell; gives its identifier."""
    import httpx2

    answer = httpx2.post(
        f"{made.address}/v1/cases",
        headers={"Authorization": f"Bearer {made.keys['lead']}", "Idempotency-Key": uuid.uuid4().hex},
        files={"image": ("x.png", cell_png(number, 96))} | ({} if field is None else {"field": ("y.png", field)}),
        data={"external_id": name, **fields},
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def set_reveal(made: Installation, reveal: str) -> None:
    """Change when annotators see a case in full."""
    import httpx2

    policy = {"rule": "disagreement", "threshold": 0.2, "adjudicate_below": None, "reveal": reveal, "reason": "test"}
    policy |= {"repeat_rate": 0}
    answer = httpx2.post(
        f"{made.address}/v1/policies",
        json=policy,
        headers={"Authorization": f"Bearer {made.keys['lead']}", "Idempotency-Key": uuid.uuid4().hex},
    )
    assert answer.status_code == 201, answer.text


class Person:
    """A browser that remembers what went wrong, signed in unless the name is empty."""

    def __init__(self, browser: Browser, made: Installation, name: str, scheme: str = "light") -> None:
        self.faults: list[str] = []
        self.dark = scheme == "dark"
        self.context = browser.new_context(color_scheme=scheme)  # type: ignore[arg-type]
        self.page: Page = self.context.new_page()
        self.address = made.address
        self.page.set_default_timeout(patient(10_000))
        self.page.on("console", lambda m: self.faults.append(m.text) if m.type in {"error", "warning"} else None)
        self.page.on("pageerror", lambda e: self.faults.append(str(e)))
        self.page.goto(made.address)
        if name:
            self.page.fill("[name=name]", name)
            self.page.fill("[name=password]", made.one_time_password(name))
            self.page.click("main button")
            self.page.wait_for_url("**/account")  # where a password of one's own is asked for first
            self.go("/worklist")

    def go(self, path: str) -> Page:
        """Open a page of the server."""
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


def handle_of(keys: AnnotatorKeys, account_id: uuid.UUID | None, case_id: uuid.UUID) -> str:
    """What the person of an account knows a case by."""
    from app.cases.blindness import case_handle
    from app.http.principal import Principal

    assert account_id is not None
    person = Principal(account_id, "", "annotator", frozenset({"reads:own"}))
    return str(case_handle(keys, person, case_id))


def pack(files: dict[str, bytes]) -> bytes:
    """A zip."""
    import zipfile

    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def blind(installation: Installation) -> Iterator[Installation]:
    """A service whose cases stay closed until all have read them; answers to those of before, which would be final at
    once, are wanted of nobody."""
    set_reveal(installation, "after_case_closed")
    database = Database(installation.sqlalchemy_url)
    with database.write() as session:
        session.execute(
            update(ReadRequest).where(ReadRequest.state == "open").values(state="closed", closed_at=utc_now())
        )
    database.engine.dispose()
    return installation


def given(made: Installation, name: str) -> list[tuple[str, str, str | None, bool]]:
    """Case as its annotator knows it, kind, class and whether it was blind, of all labels, oldest first."""
    database, keys = Database(made.sqlalchemy_url), derive_keys(Settings(home=made.home).key_ring()).readers
    columns = (Label.case_id, Annotator.account_id, Label.kind, Label.class_code, Label.blind)
    wanted = select(*columns).join(Annotator, Annotator.id == Label.annotator_id).where(Annotator.name == name)
    with database.read() as session:
        rows = session.execute(wanted.order_by(Label.id)).all()
    database.engine.dispose()
    return [(handle_of(keys, row[1], row[0]), row[2], row[3], row[4]) for row in rows]


def begin(person: Person) -> Page:
    """Open the reading page, with the cases ahead at hand."""
    page = person.go("/worklist")
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-resident]")
    page.wait_for_load_state("networkidle")
    return page


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
