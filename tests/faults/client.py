"""A client that asks until it is answered for good, and the comparison of what it was told with what is stored."""

import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import httpx2
from sqlalchemy import select

from app.audit.verify import verify_all
from app.context import ServiceContext
from app.database.tables import Case, Label
from tests.faults.rounds import Rounds
from tests.support.service import cell_png
from tests.support.waiting import patient


class Client:
    """Sends requests, each with its key until it is answered, and notes what was acknowledged.

    Args:
        address: where the next request goes.
        keys: of the people whose requests they are.
        retried: statuses after which the same request is sent again.
    """

    def __init__(
        self, address: Callable[[], str], keys: Mapping[str, str], retried: Collection[int] = frozenset({503})
    ) -> None:
        self._address, self._keys, self._retried = address, keys, retried
        self._http = httpx2.Client(timeout=patient(60))
        self.forget()

    def forget(self) -> None:
        """Count from here on."""
        self.statuses, self.acknowledged = Counter[int](), list[str]()
        self.unknown = self.replayed = 0

    def send(self, who: str, path: str, key: str = "", **body: Any) -> httpx2.Response:
        """Send a request until it is answered, with nobody's key if ``who`` is empty."""
        headers = {"Authorization": f"Bearer {self._keys[who]}"} if who else {}
        headers["Idempotency-Key"] = key or uuid.uuid4().hex
        headers |= {"Connection": "close"} | body.pop("headers", {})
        until = time.monotonic() + patient(120)
        while time.monotonic() < until:
            with suppress(httpx2.TransportError):
                answer = self._http.post(self._address() + path, headers=headers, **body)
                self.statuses[answer.status_code] += 1
                if answer.status_code not in self._retried:
                    self.replayed += "Idempotent-Replayed" in answer.headers
                    return answer
            self.unknown += 1
            time.sleep(0.05)
        raise AssertionError(f"never answered: {self.statuses}")

    def store(self, who: str, path: str, **body: Any) -> Any:
        """Send what must be stored; gives the document of the answer."""
        answer = self.send(who, path, **body)
        assert answer.status_code == 201, answer.text
        document = answer.json()
        self.acknowledged.append(document.get("label", document)["id"])
        return document

    def add_case(self, name: str = "case", number: int = 0, who: str = "lis", **fields: str) -> Any:
        files = {"image": ("cell.png", cell_png(number))}
        return self.store(who, "/v1/cases", files=files, data={"external_id": name, **fields})

    def label(self, case_id: str, reader: str, code: str = "blast", who: str = "lis") -> None:
        body = {"label": code, "annotator": reader, "blind": True}
        self.store(who, f"/v1/cases/{case_id}/labels", json=body)


def assert_kept(
    context: ServiceContext,
    clients: Sequence[Client],
    fault: str,
    what: str,
    rounds: int,
    others: Sequence[str] = (),
    tables: Sequence[type[Case] | type[Label]] = (Label,),
    recovery_seconds: float | None = None,
) -> None:
    """Every row that was acknowledged is there once, and but for some others no further one; notes what it came to."""
    acknowledged = [row for client in clients for row in client.acknowledged]
    statuses = sum((client.statuses for client in clients), Counter[int]())
    with context.database.read_moment() as session:  # as `db verify` does: thousands of images take a while
        stored = [str(row) for table in tables for row in session.execute(select(table.id)).scalars()]
        faults = verify_all(session, context).faults
    Rounds(
        fault,
        what,
        context.database.engine.dialect.name,
        rounds,
        len(acknowledged),
        lost=len(set(acknowledged) - set(stored)),
        duplicates=len(stored) - len({*acknowledged, *others}),
        server_errors=sum(n for status, n in statuses.items() if status >= 500 and status not in {503, 507}),
        recovery_seconds=recovery_seconds,
    ).note()
    assert set(statuses) <= {201, 503, 507}, statuses
    assert Counter(stored) == Counter([*acknowledged, *others])
    assert faults == []
