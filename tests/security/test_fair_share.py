"""Of one caller a few requests are worked on at once: a flood waits for itself, and nobody else does for it."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from app.http import middleware
from app.http.limiter import MIN_PER_ADDRESS, Limiter, LimitPlace
from app.http.middleware import FairShare, make_share_limiters
from tests.support.coroutines import run_async
from tests.support.sabotage import undone
from tests.support.service import Service
from tests.support.waiting import patient

#: What the middleware asks of the application around it.
AROUND = SimpleNamespace(
    state=SimpleNamespace(
        problem_page=None, context=SimpleNamespace(settings=SimpleNamespace(public_url=None)), database=None
    )
)


def scope_of(path: str, address: str, headers: dict[str, str]) -> dict[str, Any]:
    sent = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "headers": sent, "client": (address, 1), "method": "POST", "app": AROUND}
    return scope | {"scheme": "http", "server": ("127.0.0.1", 80), "query_string": b""}


class Door:
    """The middleware before an application that reads a body and works on each request until it is let go."""

    def __init__(self, at_once: int = 2) -> None:
        self.limiters = make_share_limiters(at_once)
        self.share, self.let_go = FairShare(self._work, *self.limiters), asyncio.Event()
        self.body = asyncio.Event()
        self.body.set()
        self.inside: list[str] = []
        self.working: list[str] = []

    async def _work(self, scope: Any, receive: Any, send: Any) -> None:
        self.inside.append(scope["path"])
        while (await receive()).get("more_body"):
            pass
        self.working.append(scope["path"])
        if scope["path"] == "/stream":
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await self.let_go.wait()
        if scope["path"] != "/stream":
            await send({"type": "http.response.start", "status": 200, "headers": []})

    async def ask(self, path: str, caller: str = "Bearer a", address: str = "192.0.2.1", slow: bool = False) -> int:
        """Status of the answer."""
        statuses: list[int] = []
        parts = [b"some", b""]

        async def receive() -> dict[str, Any]:
            if slow:
                await self.body.wait()
            part = parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(parts)}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await self.share(scope_of(path, address, {"authorization": caller} if caller else {}), receive, send)
        return statuses[0]

    def is_empty(self) -> bool:
        """Whether nobody has a place or waits for one."""
        return all(limiter.count_use() == (0, 0) for limiter in self.limiters)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(patient(20)):
        while not condition():
            await asyncio.sleep(0)


def start(door: Door, paths: list[str], **whose: Any) -> "list[asyncio.Task[int]]":
    return [asyncio.create_task(door.ask(path, **whose)) for path in paths]


@undone(
    "T17",
    "of one caller a few requests are worked on at once",
    middleware.FairShare,
    "__call__",
    lambda self, *call: self.app(*call),
)
def test_a_flood_waits_in_turn_and_others_pass_it() -> None:
    async def scene() -> None:
        door = Door()
        flood = start(door, [f"/{number}" for number in range(9)])
        await until(lambda: len(door.inside) == 2)
        others = start(door, ["/b", "/c", "/healthz", "/metrics"], caller="Bearer b")
        await until(lambda: len(door.inside) == 6)
        assert set(door.inside[2:]) == {"/b", "/c", "/healthz", "/metrics"}
        door.let_go.set()
        assert await asyncio.gather(*flood, *others) == [200] * 13
        assert [path for path in door.inside if path[1:].isdigit()] == [f"/{number}" for number in range(9)]
        assert door.is_empty()

    run_async(scene())


def test_an_address_with_ever_new_credentials_leaves_room_for_others() -> None:
    async def scene() -> None:
        door = Door()
        flood = [task for number in range(60) for task in start(door, ["/x"], caller=f"Bearer made up {number}")]
        await until(lambda: len(door.inside) == MIN_PER_ADDRESS)
        other = start(door, ["/y"], address="192.0.2.2", caller="")
        await until(lambda: door.inside[-1] == "/y")
        door.let_go.set()
        assert await asyncio.gather(*flood, *other) == [200] * 61
        assert door.is_empty()

    run_async(scene())


def test_what_streams_takes_no_place() -> None:
    async def scene() -> None:
        door = Door(at_once=1)
        tasks = start(door, ["/stream"] * 5)
        await until(lambda: len(door.inside) == 5)
        door.let_go.set()
        assert await asyncio.gather(*tasks) == [200] * 5
        assert door.is_empty()

    run_async(scene())


def test_who_waits_too_long_or_in_too_long_a_queue_is_asked_to_come_back() -> None:
    async def scene() -> None:
        door = Door(at_once=1)
        first = start(door, ["/1"])
        await until(lambda: door.inside == ["/1"])
        door.limiters[0].wait_seconds = 0.01
        assert await door.ask("/2") == 429
        door.limiters[0].queue = 0
        assert await door.ask("/3") == 429
        door.let_go.set()
        assert await first[0] == 200
        assert door.inside == ["/1"]
        assert door.is_empty()

    run_async(scene())


@pytest.mark.parametrize("caller", ["Bearer a", ""])
def test_bodies_that_arrive_slowly_hold_no_place(caller: str) -> None:
    """Otherwise a few half-sent requests would keep out everybody of an address, or of a key."""

    async def scene() -> None:
        door = Door()
        door.body.clear()
        parked = start(door, ["/slow"] * 40, caller=caller, slow=True)
        await until(lambda: len(door.inside) == 40)
        quick = start(door, ["/quick"] * 2, caller=caller)
        await until(lambda: door.working == ["/quick"] * 2)
        door.body.set()
        for _ in range(50):
            await asyncio.sleep(0)
        assert door.working == ["/quick"] * 2  # work waits for a place like everybody's
        door.let_go.set()
        assert await asyncio.gather(*parked, *quick) == [200] * 42
        assert door.is_empty()

    run_async(scene())


def test_who_finds_no_place_after_the_body_is_asked_to_come_back() -> None:
    async def scene() -> None:
        door = Door(at_once=1)
        door.body.clear()
        slow = start(door, ["/slow"], slow=True)
        await until(lambda: door.is_empty() and door.inside == ["/slow"])
        first = start(door, ["/1"])
        await until(lambda: door.working == ["/1"])
        door.limiters[0].wait_seconds = 0.01
        door.body.set()
        assert await slow[0] == 429
        door.let_go.set()
        assert await first[0] == 200
        assert door.is_empty()

    run_async(scene())


def test_nobody_takes_the_places_of_an_address_or_a_key_by_naming_them() -> None:
    async def scene() -> None:
        door = Door()
        named = start(door, ["/1", "/2", "/3"], caller="192.0.2.7")
        spaced = start(door, ["/4", "/5", "/6"], caller="Bearer  b")
        await until(lambda: len(door.working) == 4)
        of_the_address = start(door, ["/7"], caller="", address="192.0.2.7")
        await until(lambda: "/7" in door.working)
        of_the_key = start(door, ["/8"], caller="bearer b")
        await asyncio.sleep(0.05)
        assert "/8" not in door.inside  # one key, however it is written
        door.let_go.set()
        assert await asyncio.gather(*named, *spaced, *of_the_address, *of_the_key) == [200] * 8

    run_async(scene())


def test_a_server_that_works_on_more_at_once_does_so_for_one_address_too() -> None:
    assert make_share_limiters(64)[1].size >= 64


def test_what_fails_leaves_its_place() -> None:
    async def fails(*_: Any) -> None:
        raise ValueError

    async def scene() -> None:
        limiters = make_share_limiters(1)
        share = FairShare(fails, *limiters)
        for _ in range(3):
            with pytest.raises(ValueError):  # noqa: PT011
                await share(scope_of("/x", "192.0.2.1", {}), fails, fails)
        assert [limiter.count_use() for limiter in limiters] == [(0, 0), (0, 0)]

    run_async(scene())


def test_a_person_is_told_by_a_page(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    of_addresses: Limiter = service.client.app.state.limiters[1]  # type: ignore[attr-defined]
    monkeypatch.setattr(of_addresses, "queue", 0)
    with LimitPlace(of_addresses, of_addresses.size, "from testclient"):
        answer = service.client.get("/worklist", headers={"Accept": "text/html"})
        assert (answer.status_code, answer.headers["content-type"]) == (429, "text/html; charset=utf-8")
        assert "send fewer at once" in answer.text
        assert service.client.get("/v1/cases").headers["content-type"] == "application/problem+json"
        assert service.client.get("/v1/cases").headers["retry-after"] == "2"
