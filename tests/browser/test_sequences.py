"""Two people at one machine, two tabs, and everything that goes wrong, in random order: T19 of the threats.

Whatever happens, every answer that somebody gave is stored, once, under their name.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Browser, Page, Route
from playwright.sync_api import Error as BrowserError
from sqlalchemy import select, update

from app.auth.service import begin_session
from app.auth.sites import COOKIE
from app.context import Context, build_context
from app.settings import Settings
from app.tables import Account, Annotator, Label, Read, ReadRequest
from tests.browser.conftest import handle_of, until, upload
from tests.support.process import Installation
from tests.support.waiting import patient

PEOPLE = ("anna", "ben")
CODES = ("monocyte", "blast", "eosinophil", "basophil")
STEPS = 12
_FORM = ".js form[data-answer] [data-action=commit]:enabled"

#: Person and case: the classes that the person has committed for it.
Given = dict[tuple[str, str], set[str]]


@pytest.fixture(scope="module")
def parts(installation: Installation) -> Iterator[Context]:
    """The installation's database and secret."""
    context = build_context(Settings(home=installation.home, database_url=installation.sqlalchemy_url))
    yield context
    context.database.engine.dispose()


class Machine:
    """A browser that two people share, and what they have answered in it."""

    def __init__(self, browser: Browser, address: str, parts: Context, rng: random.Random, given: Given) -> None:
        self.browser = browser.new_context()
        self.address, self.parts, self.rng, self.given = address, parts, rng, given
        self.network, self.offline, self.signed_in = "works", False, ""
        self.browser.route("**/label", self._label)
        self.tabs = [self._tab(), self._tab()]
        #: for whom each tab's page was made
        self.owner = ["", ""]
        self.done: list[str] = []

    def _tab(self) -> Page:
        page = self.browser.new_page()
        page.set_default_timeout(patient(10_000))
        return page

    def _label(self, route: Route) -> None:
        """What the network does with an answer."""
        with suppress(BrowserError):  # the page went away meanwhile
            if self.offline or self.network == "loses requests":
                route.abort("connectionreset")
            elif self.network == "fails":
                route.fulfill(status=503)
            else:
                if self.network == "loses answers":
                    route.fetch(max_redirects=0)
                    route.abort("connectionreset")
                else:
                    route.continue_()

    def visit(self, tab: int, path: str) -> None:
        self.owner[tab] = ""
        with suppress(BrowserError):  # offline
            self.tabs[tab].goto(self.address + path)
            self.owner[tab] = self.signed_in

    def sign_in(self, who: str, tab: int) -> None:
        with self.parts.database.write() as session:
            account = session.execute(select(Account).where(Account.name == who)).scalar_one()
            token = begin_session(session, self.parts.secret, account)
        self.browser.add_cookies([{"name": COOKIE, "value": token, "url": self.address}])
        self.signed_in = who
        self.visit(tab, "/worklist")

    def somebody_signs_in(self, tab: int) -> None:
        self.sign_in(self.rng.choice(PEOPLE), tab)

    def session_ends(self, tab: int) -> None:
        self.browser.clear_cookies()
        self.signed_in = ""

    def next_case(self, tab: int) -> None:
        self.visit(tab, "/worklist")
        page = self.tabs[tab]
        with suppress(BrowserError):
            if not self.offline and page.locator("[data-action=next]").count():
                page.click("[data-action=next]")
                page.wait_for_load_state()

    def answer(self, tab: int) -> None:
        page = self.tabs[tab]
        if self.owner[tab] and page.locator(_FORM).count():
            code = self.rng.choice(CODES)
            page.check(f"[name=label][value={code}]")
            self.given[self.owner[tab], page.url.rsplit("/", 1)[1]].add(code)
            page.click("[data-action=commit]", no_wait_after=True)

    def answer_and_reload(self, tab: int) -> None:
        self.answer(tab)
        self.reload(tab)

    def reload(self, tab: int) -> None:
        path = self.tabs[tab].url.removeprefix(self.address)
        self.visit(tab, path if path.startswith("/") and not path.startswith("/reads/") else "/worklist")

    def tab_closes(self, tab: int) -> None:
        self.tabs[tab].close()
        self.tabs[tab], self.owner[tab] = self._tab(), ""

    def connection(self, tab: int) -> None:
        self.offline = not self.offline
        self.browser.set_offline(self.offline)

    def network_changes(self, tab: int) -> None:
        self.network = self.rng.choice(("works", "loses requests", "loses answers", "fails"))

    def leases_run_out(self, tab: int) -> None:
        past = datetime.now(UTC) - timedelta(hours=1)
        with self.parts.database.write() as session:
            session.execute(update(ReadRequest).where(ReadRequest.state == "leased").values(lease_expires_at=past))
            session.execute(update(Read).where(Read.state == "leased").values(expires_at=past))

    def read(self, tab: int) -> None:
        """Somebody gets a case, something goes wrong, and they answer."""
        if self.offline:
            self.connection(tab)
        if not self.signed_in:
            self.somebody_signs_in(tab)
        self.next_case(tab)
        for _ in range(self.rng.randrange(3)):
            self._one_of(self.mishaps, 1 - tab)
        self.answer(tab)

    def _one_of(self, happenings: list[Callable[[int], None]], tab: int) -> None:
        happening = self.rng.choice(happenings)
        self.done.append(f"{happening.__name__} in {tab}")
        happening(tab)

    def step(self) -> None:
        """Something happens in one of the tabs."""
        usual = [self.read, self.read, self.read, self.answer, self.answer_and_reload, self.next_case, self.reload]
        self._one_of([*usual, *self.mishaps], self.rng.randrange(2))

    @property
    def mishaps(self) -> list[Callable[[int], None]]:
        """What comes between a person and their answer."""
        return [
            self.somebody_signs_in,
            self.session_ends,
            self.connection,
            self.network_changes,
            self.tab_closes,
            self.leases_run_out,
        ]

    def everybody_comes_back(self) -> None:
        """The network works again, and each person signs in once more."""
        self.network, self.offline = "works", False
        self.browser.set_offline(False)
        for who in PEOPLE:
            self.sign_in(who, 0)
            until(self.tabs[0], lambda: not self._waiting(), f"answers of {who} still wait: {self.done}", 60)
        resting = self.tabs[0].evaluate("Object.keys(localStorage).filter((key) => key.includes('outbox'))")
        assert resting == [], self.done

    def _waiting(self) -> list[str]:
        """Answers of the person whose page this is."""
        with suppress(BrowserError):
            account, keys = self.tabs[0].evaluate("[document.body.dataset.account, Object.keys(localStorage)]")
            return [key for key in keys if account in key]
        return ["the page is on its way"]


def stored(made: Installation, parts: Context) -> list[tuple[str, str, str | None]]:
    """Annotator, case as the annotator knows it, and class of every label."""
    columns = (Annotator.name, Annotator.account_id, Label.case_id, Label.class_code)
    with parts.database.read() as session:
        rows = session.execute(select(*columns).join(Label, Label.annotator_id == Annotator.id)).all()
    return [(row[0], handle_of(made, row[1], row[2]), row[3]) for row in rows]


@pytest.mark.parametrize("n", [8, pytest.param(200, marks=pytest.mark.heavy)])
def test_nothing_is_lost_misnamed_or_doubled(
    browser: Browser, installation: Installation, parts: Context, n: int
) -> None:
    given: Given = defaultdict(set)
    earlier = set(stored(installation, parts))
    for number in range(n):
        for case in range(3):
            upload(
                installation, f"sequence {n} {number} {case}", 10_000 * n + 3 * number + case, patient=f"{n}-{number}"
            )
        machine = Machine(browser, installation.address, parts, random.Random(number), given)
        machine.somebody_signs_in(0)
        for _ in range(STEPS):
            machine.step()
        machine.everybody_comes_back()
        machine.browser.close()
        rows = [row for row in stored(installation, parts) if row not in earlier]
        wrong = [row for row in rows if row[2] not in given.get(row[:2], set())]
        assert wrong == [], (number, machine.done)  # under another name, or a class that nobody gave
        whose = [row[:2] for row in rows]
        assert sorted(whose) == sorted(given), (number, machine.done)  # none lost, none twice
    assert len(given) > n  # most people answered something
