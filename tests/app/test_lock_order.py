"""One order of locks: whoever declines, labels, stores or imports locks requests before cases, and the chain last."""

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event

from tests.app.test_leases import requests_of, set_policy
from tests.support.service import Service, cell_png

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
    for number in range(4):
        service.add_case(f"case-{number}", cell_png(number))
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
