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

from app.accounts.people import add_account, begin_session
from app.context import ServiceContext, build_context
from app.database.tables import Account, Read, ReadRequest
from app.http.principal import COOKIE
from app.settings import Settings
from tests.browser.conftest import given, set_reveal, until, upload
from tests.support.process import Installation
from tests.support.waiting import patient

CODES = ("monocyte", "blast", "eosinophil", "basophil")
SCENES = 5

#: Person and case: the classes that the person has committed for it, in order.
Given = dict[tuple[str, str], list[str]]

# In one go, since a page may move on at any moment: choose a class and send the form; gives the case.
_ANSWER = """code => {
  const form = document.querySelector('.js form[data-answer]');
  if (!form || form.querySelector('[data-action=commit]').disabled) return null;
  form.querySelector(`[name=label][value=${code}]`).checked = true;
  form.requestSubmit();
  return document.querySelector('.viewer img').getAttribute('src').split('/')[3];
}"""
_DECLINE = """() => {
  const form = document.querySelector('.js form[data-send]');
  if (!form || form.querySelector('button').disabled) return null;
  form.querySelector('[name=reason][value=other]').checked = true;
  form.requestSubmit();
  return document.querySelector('.viewer img').getAttribute('src').split('/')[3];
}"""
_SIGN_OUT = """() => {
  const form = document.querySelector('form[action="/logout"]');
  form?.requestSubmit();
  return form !== null;
}"""
_BACK = "document.querySelector('.js [data-action=back]')?.getAttribute('href')"
_SETTLED = "!location.pathname.endsWith('/correction') || document.querySelector('[data-status].alert')"
_KEPT = "Object.keys(localStorage).filter((key) => key.includes('outbox'))"


@pytest.fixture(scope="module")
def parts(installation: Installation) -> Iterator[ServiceContext]:
    """The installation's database and secret."""
    set_reveal(installation, "after_case_closed")  # so that answers can be corrected
    context = build_context(Settings(home=installation.home, database_url=installation.sqlalchemy_url))
    yield context
    context.database.engine.dispose()


class Machine:
    """A browser that two people share, and what they have answered and declined in it."""

    def __init__(self, browser: Browser, installation: Installation, parts: ServiceContext, number: str) -> None:
        self.browser = browser.new_context()
        self.installation, self.address = installation, installation.address
        self.parts, self.rng = parts, random.Random(number)
        #: their own for each sequence, so that lists of what they have read stay short
        self.people = [f"anna {number}", f"ben {number}"]
        with parts.database.write() as session:
            for name in self.people:
                add_account(session, parts.keys.audit, name, "annotator")
        self.given: Given = defaultdict(list)
        #: what had been given when a correction had surely arrived
        self.settled: Given = {}
        self.declined: set[tuple[str, str]] = set()
        self.network, self.is_offline, self.signed_in = "works", False, ""
        self.browser.route("**/label", self._label)
        self.browser.route("**/image", lambda route: route.abort())  # nobody looks
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
            if self.network == "loses requests":
                route.abort("connectionreset")
            elif self.network == "fails":
                route.fulfill(status=503)
            elif self.network == "loses answers":
                route.fetch(max_redirects=0)
                route.abort("connectionreset")
            else:
                route.continue_()

    def visit(self, tab: int, path: str) -> None:
        self.owner[tab] = ""
        with suppress(BrowserError):  # offline, or an answer has arrived and the page moves on
            self.tabs[tab].goto(self.address + path)
            self.owner[tab] = self.signed_in

    def sign_in(self, who: str, tab: int) -> None:
        self.holds_session(who)
        self.visit(tab, "/worklist")

    def holds_session(self, who: str) -> None:
        with self.parts.database.write() as session:
            account = session.execute(select(Account).where(Account.name == who)).scalar_one()
            token = begin_session(session, self.parts.keys.audit, account)
        self.browser.add_cookies([{"name": COOKIE, "value": token, "url": self.address}])
        self.signed_in = who

    def the_other_signs_in(self, tab: int) -> None:
        self.sign_in(self.people[self.signed_in == self.people[0]], tab)

    def session_ends(self, tab: int) -> None:
        self.browser.clear_cookies()
        self.signed_in = ""

    def signs_out(self, tab: int) -> None:
        page = self.tabs[tab]
        if not self.is_offline:
            with suppress(BrowserError):
                if page.evaluate(_SIGN_OUT):
                    page.wait_for_url("**/login")
        self.session_ends(tab)

    def next_case(self, tab: int) -> None:
        self.visit(tab, "/worklist")
        page = self.tabs[tab]
        with suppress(BrowserError):
            if page.locator("[data-action=next]").count():
                page.click("[data-action=next]")
                page.wait_for_load_state()

    def answer(self, tab: int) -> None:
        self._send(tab, _ANSWER, self.rng.choice(CODES))

    def decline(self, tab: int) -> None:
        self._send(tab, _DECLINE, None)

    def _send(self, tab: int, script: str, code: str | None) -> None:
        page, owner = self.tabs[tab], self.owner[tab]
        with suppress(BrowserError):
            page.wait_for_load_state()
            case = page.evaluate(script, code) if owner else None
            if case is not None and code is None:
                self.declined.add((owner, case))
            elif case is not None:
                self.given[owner, case].append(str(code))

    def correct(self, tab: int) -> None:
        """Back to the last answer; where nothing is in the way, the new one must be there."""
        page = self.tabs[tab]
        with suppress(BrowserError):
            page.wait_for_load_state()
            back = page.evaluate(_BACK)
            if back is None:
                return
            self.visit(tab, back)
            before = dict.fromkeys(self.given)
            owner, n_before = self.owner[tab], {key: len(codes) for key, codes in self.given.items()}
            self.answer(tab)
            if self.network == "works" and owner == self.signed_in != "":
                page.wait_for_function(_SETTLED)
                if page.url.endswith("/correction"):
                    return  # refused: the label was final
                for key in before:
                    if len(self.given[key]) > n_before[key]:
                        self.settled[key] = list(self.given[key])

    def reload(self, tab: int) -> None:
        path = self.tabs[tab].url.removeprefix(self.address)
        self.visit(tab, path if path.startswith("/") else "/worklist")

    def tab_closes(self, tab: int) -> None:
        with suppress(BrowserError):
            self.tabs[tab].goto("about:blank")  # Chromium may hang when a page closes on its way elsewhere
        self.tabs[tab].close()
        self.tabs[tab], self.owner[tab] = self._tab(), ""

    def offline(self, tab: int) -> None:
        self.is_offline = True
        self.browser.set_offline(True)

    def online(self, tab: int) -> None:
        self.network, self.is_offline = "works", False
        self.browser.set_offline(False)

    def network_changes(self, tab: int) -> None:
        self.network = self.rng.choice(("loses requests", "loses answers", "fails"))

    def leases_run_out(self, tab: int) -> None:
        past = datetime.now(UTC) - timedelta(hours=1)
        with self.parts.database.write() as session:
            session.execute(update(ReadRequest).where(ReadRequest.state == "leased").values(lease_expires_at=past))
            session.execute(update(Read).where(Read.state == "leased").values(expires_at=past))

    def scene(self) -> None:
        """Somebody gets a case, something goes wrong, they answer, something else goes wrong."""
        tab, other = self.rng.sample(range(2), 2)
        self._do(self.online, tab)
        self.holds_session(self.rng.choice(self.people))
        self._do(self.next_case, tab)
        if self.rng.random() < 0.4:
            self._do(self.answer, tab)
            self._do(self.reload, tab)
            self._do(self.next_case, tab)
        before = [self.offline, self.network_changes, self.session_ends, self.the_other_signs_in, self.leases_run_out]
        self._do(self.rng.choice(before), other)
        self._do(self.rng.choice([self.answer] * 4 + [self.correct, self.correct, self.decline]), tab)
        after = [self.reload, self.tab_closes, self.the_other_signs_in, self.session_ends, self.signs_out, self.online]
        for happening in self.rng.sample(after, self.rng.randrange(1, 4)):
            self._do(happening, self.rng.choice([tab, tab, other]))

    def _do(self, happening: Callable[[int], None], tab: int) -> None:
        self.done.append(f"{happening.__name__} in {tab}, {self.signed_in or 'nobody'}, network {self.network}")
        happening(tab)

    def everybody_comes_back(self) -> None:
        """The network works again, and each person signs in once more."""
        self.online(0)
        for who in self.people:
            self.sign_in(who, 0)
            until(self.tabs[0], lambda: not self._waiting(), f"answers of {who} still wait: {self.done}", 60)
        assert self.tabs[0].evaluate(_KEPT) == [], self.done

    def _waiting(self) -> list[str]:
        """Answers of the person whose page this is."""
        with suppress(BrowserError):
            account, keys = self.tabs[0].evaluate(f"[document.body.dataset.account, {_KEPT}]")
            if account is None:  # an answer of the other person arrived, and the page moved on to their case
                self.visit(0, "/worklist")
                return ["nobody's page"]
            return [key for key in keys if account in key]
        return ["the page is on its way"]

    def check(self) -> None:
        """None lost, none under another name, none twice, no class that nobody gave."""
        rows = [(who, case, code, kind) for who in self.people for case, kind, code, _ in given(self.installation, who)]
        assert [row for row in rows if row[2] not in self.given.get(row[:2], [])] == [], self.done
        first = [row[:2] for row in rows if row[3] == "label"]
        assert len(first) == len(set(first)), self.done
        for key, codes in self.settled.items():
            last = [row[2] for row in rows if row[:2] == key][-1]
            assert codes != self.given[key] or last == codes[-1], (key, self.done)
        lost = self.given.keys() - set(first)
        assert lost <= self.declined, (lost, self.done)  # who declined in another tab has no answer


@pytest.mark.parametrize("n", [pytest.param(4, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.heavy)])
def test_nothing_is_lost_misnamed_or_doubled(
    browser: Browser, installation: Installation, parts: ServiceContext, n: int
) -> None:
    n_given = 0
    for number in range(n):
        for case in range(3):
            name = f"sequence {n} {number} {case}"
            upload(installation, name, 10_000 * n + 3 * number + case, patient=f"{n}-{number}")
        machine = Machine(browser, installation, parts, f"{n} {number}")
        for _ in range(SCENES):
            machine.scene()
        machine.everybody_comes_back()
        machine.browser.close()
        machine.check()
        n_given += len(machine.given)
    assert n_given > 2 * n  # most people answered something
