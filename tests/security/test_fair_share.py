"""Of one caller a few requests are worked on at once: a flood waits for itself, and nobody else does for it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from app.platform import fair_share
from app.platform.fair_share import PER_ADDRESS, FairShare, Places
from tests.support.coroutines import run_async
from tests.support.waiting import patient


class Door:
    """The middleware before an application that works on each request until it is let go."""

    def __init__(self, at_once: int = 2) -> None:
        self.share, self.let_go = FairShare(self._work, at_once), asyncio.Event()
        self.inside: list[str] = []

    async def _work(self, scope: Any, _: Any, send: Any) -> None:
        self.inside.append(scope["path"])
        if scope["path"] == "/stream":
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await self.let_go.wait()
        if scope["path"] != "/stream":
            await send({"type": "http.response.start", "status": 200, "headers": []})

    async def ask(self, path: str, caller: str = "a", address: str = "1") -> int:
        """Status of the answer."""
        statuses: list[int] = []
        headers = [(b"authorization", caller.encode())] if caller else []

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        scope = {"type": "http", "path": path, "headers": headers, "client": (address, 1), "method": "GET"}
        await self.share(scope, self._nothing, send)
        return statuses[0]

    async def _nothing(self) -> Any:
        raise AssertionError("nothing is read")

    def is_empty(self) -> bool:
        """Whether nobody has a place or waits for one."""
        both = (self.share.of_callers, self.share.of_addresses)
        return not any(places.taken or places.waiting for places in both)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(patient(20)):
        while not condition():
            await asyncio.sleep(0)


def start(door: Door, paths: list[str], **whose: str) -> "list[asyncio.Task[int]]":
    return [asyncio.create_task(door.ask(path, **whose)) for path in paths]


def test_a_flood_waits_in_turn_and_others_pass_it() -> None:
    async def scene() -> None:
        door = Door()
        flood = start(door, [f"/{number}" for number in range(9)])
        await until(lambda: len(door.inside) == 2)
        others = start(door, ["/b", "/c", "/healthz", "/readyz", "/metrics"], caller="b")
        await until(lambda: len(door.inside) == 7)
        assert set(door.inside[2:]) == {"/b", "/c", "/healthz", "/readyz", "/metrics"}
        door.let_go.set()
        assert await asyncio.gather(*flood, *others) == [200] * 14
        assert [path for path in door.inside if path[1:].isdigit()] == [f"/{number}" for number in range(9)]
        assert door.is_empty()

    run_async(scene())


def test_an_address_with_ever_new_credentials_leaves_room_for_others() -> None:
    async def scene() -> None:
        door = Door()
        flood = [task for number in range(60) for task in start(door, ["/x"], caller=f"made up {number}")]
        await until(lambda: len(door.inside) == PER_ADDRESS)
        other = start(door, ["/y"], address="2", caller="")
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


def test_who_waits_too_long_or_in_too_long_a_queue_is_asked_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        door = Door(at_once=1)
        first = start(door, ["/1"])
        await until(lambda: door.inside == ["/1"])
        monkeypatch.setattr(fair_share, "WAIT_SECONDS", 0.01)
        assert await door.ask("/2") == 429
        monkeypatch.setattr(fair_share, "QUEUE", 0)
        assert await door.ask("/3") == 429
        door.let_go.set()
        assert await first[0] == 200
        assert door.inside == ["/1"]
        assert door.is_empty()

    run_async(scene())


def test_a_place_handed_to_somebody_who_has_just_gone_is_handed_on() -> None:
    async def scene() -> None:
        places = Places(1)
        await places.enter("a")
        gone, next_one = asyncio.create_task(places.enter("a")), asyncio.create_task(places.enter("a"))
        await until(lambda: len(places.waiting["a"]) == 2)
        places.leave("a")  # to the first of them, who is cancelled before it learns of it
        gone.cancel()
        await next_one
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert places.taken == {"a": 1}
        places.leave("a")
        assert not places.taken
        assert not places.waiting

    run_async(scene())


def test_what_fails_leaves_its_place() -> None:
    async def fails(*_: Any) -> None:
        raise ValueError

    async def scene() -> None:
        share = FairShare(fails, 1)
        scope = {"type": "http", "path": "/x", "headers": [], "client": ("1", 1), "method": "GET"}
        for _ in range(3):
            with pytest.raises(ValueError):  # noqa: PT011
                await share(scope, fails, fails)
        assert not share.of_callers.taken

    run_async(scene())
