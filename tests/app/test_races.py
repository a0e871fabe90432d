"""One order of locks, many requests at once, and promotions that race."""

import asyncio
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx2 as httpx
import pytest
from sqlalchemy import event

from app.accounts import people
from tests.app.test_leases import requests_of, set_policy
from tests.support.coroutines import run_async
from tests.support.service import Service, cell_png
from tests.support.waiting import patient

#: Tables whose rows several requests lock, in the order in which they may be locked.
ORDER = ("annotators", "read_requests", "cases", "audit_head")
#: Beginnings of the only statements after the lock that all writers share, of which none waits for anybody.
LINKING = ("INSERT INTO audit_events", "INSERT INTO case_changes", "UPDATE audit_head")
_LOCKS = re.compile(r"\bFROM (\w+).*\bFOR UPDATE(?: OF (\w+))?( SKIP LOCKED)?|^UPDATE (\w+)", re.DOTALL)


class Locks:
    """What one transaction locks.

    Attributes:
        waited: tables of which it locks rows, in the order of the first time; not those that it passes over when
            somebody else has them, which nobody waits for.
        linking: statements after the lock of the chain's head.
    """

    def __init__(self) -> None:
        self.waited: list[str] = []
        self.linking: list[str] = []
        self._passed_over: set[str] = set()

    def note(self, statement: str) -> None:
        if ORDER[-1] in self.waited:
            self.linking.append(statement)
        locked = _LOCKS.search(statement)
        if locked is None:
            return
        name = locked[2] or locked[1] or locked[4]
        if locked[3]:
            self._passed_over.add(name)
        elif name in ORDER and name not in self.waited and name not in self._passed_over:
            self.waited.append(name)


@contextmanager
def locks_of(service: Service) -> Iterator[list[Locks]]:
    """Locks of each transaction of the block."""
    transactions: list[Locks] = []
    engine = service.context.database.engine

    def begin(_: Any) -> None:
        transactions.append(Locks())

    def execute(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if transactions:
            transactions[-1].note(statement.replace('"', ""))

    event.listen(engine, "begin", begin)
    event.listen(engine, "before_cursor_execute", execute)
    try:
        yield transactions
    finally:
        event.remove(engine, "begin", begin)
        event.remove(engine, "before_cursor_execute", execute)


@pytest.mark.slow
@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_everything_that_locks_does_so_in_one_order(service: Service) -> None:
    seldom: dict[str, Any] = {"threshold": 0.999, "audit_rate": 1e-6}
    set_policy(service, **seldom)  # one planned read each
    service.add_cases(4)
    seen: dict[str, Locks] = {}

    def note(what: str, method: str, path: str, **body: Any) -> dict[str, Any]:
        with locks_of(service) as transactions:
            headers = {"Idempotency-Key": uuid.uuid4().hex}
            who = "outside" if what.startswith("outside") else "anna" if what != "store" else "admin"
            answer = service.call(who, method, path, headers=headers, **body)
        assert answer.status_code < 300, (what, answer.text)
        seen[what] = max(transactions, key=lambda locks: len(locks.waited))
        stored: dict[str, Any] = answer.json() if answer.content else {}
        return stored

    read = note("lease", "POST", "/v1/reads")
    note("decline", "POST", f"/v1/reads/{read['id']}/decline", json={"reason": "know_this_case"})
    read = note("lease again", "POST", "/v1/reads")
    note("label", "POST", f"/v1/reads/{read['id']}/labels", json={"label": "blast"})
    case = service.case_of("anna", read["case_id"])  # its only planned read is in
    label = note(
        "outside label",
        "POST",
        f"/v1/cases/{case}/labels",
        json={"label": "blast", "annotator": "r", "blind": True},
    )["label"]["id"]
    set_policy(service, **seldom, adjudicate_below=0.999999)  # and what follows from it is another read
    note("outside revision", "POST", f"/v1/labels/{label}/revisions", json={"label": "lymphocyte", "reason": "a slip"})
    note("store", "POST", "/v1/cases", files={"image": ("x", cell_png(9))}, data={"external_id": "new"})
    for what, locks in seen.items():
        assert locks.waited == sorted(locks.waited, key=ORDER.index), (what, locks.waited)
        assert all(statement.startswith(LINKING) for statement in locks.linking), (what, locks.linking)
    assert seen["decline"].waited == seen["label"].waited == ["read_requests", "cases", "audit_head"]
    assert seen["outside label"].waited == ["cases", "audit_head"]
    assert [request.arm for request in requests_of(service, case)] == ["first", "adjudication"]
    assert seen["store"].waited == ["audit_head"]


N_CALLERS, PER_CALLER = 12, 8


@pytest.mark.slow
@pytest.mark.both_databases
def test_many_requests_at_once_are_answered_without_waiting_for_each_other(service: Service) -> None:
    """A request holds its connection until its commit, and must not need a thread that others hold meanwhile."""
    service.add_case("case", cell_png(), patient="p")
    with service.context.database.write() as session:
        audit = service.context.keys.audit
        keys = [people.add_key(session, audit, "viewer", [])[1] for _ in range(N_CALLERS)]

    async def ask(key: str, number: int) -> tuple[int, float]:
        transport: Any = httpx.ASGITransport(app=service.client.app, client=(f"192.0.2.{number}", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
            begun = time.monotonic()
            answer = await client.get("/v1/cases", headers={"Authorization": f"Bearer {key}"})
            return answer.status_code, time.monotonic() - begun

    async def flood() -> list[tuple[int, float]]:
        return await asyncio.gather(*(ask(key, n) for n, key in enumerate(keys) for _ in range(PER_CALLER)))

    answers = run_async(flood())
    assert {status for status, _ in answers} == {200}
    assert max(seconds for _, seconds in answers) < patient(10)


PROMOTERS = 4


@pytest.mark.both_databases
@pytest.mark.parametrize("rounds", [6, pytest.param(75, marks=pytest.mark.heavy)])
def test_wins_are_revisions_are_events(service: Service, rounds: int) -> None:
    release = service.get("viewer", "/v1/releases").json()["items"][0]["id"]

    def revision() -> int:
        aliases = service.get("viewer", "/v1/aliases").json()["items"]
        return next((alias["revision"] for alias in aliases if alias["name"] == "challenger"), 0)

    def promote(number: int) -> list[int]:
        body, answers = {"release": release, "reason": f"promoter {number}"}, []
        for _ in range(rounds):
            headers = {"If-Match": f'"{revision()}"'}
            answer = service.call("admin", "PUT", "/v1/aliases/challenger", json=body, headers=headers)
            answers.append(answer.status_code)
        return answers

    with ThreadPoolExecutor(PROMOTERS) as pool:
        answers = Counter(status for part in pool.map(promote, range(PROMOTERS)) for status in part)
    assert set(answers) <= {200, 409, 412, 503}, answers
    moves = service.get("admin", "/v1/audit-events", params={"action": "alias.move", "limit": 200}).json()["items"]
    assert answers[200] == revision() == len(moves) >= rounds
    assert sorted(event["details"]["revision"] for event in moves) == list(range(1, len(moves) + 1))
