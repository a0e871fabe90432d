"""A flood of requests or bodies waits for itself, and nobody else does for it."""

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from app.http import middleware
from app.http.limiter import BODIES, MAX_SIGN_IN, MAX_UPLOAD, MIN_PER_ADDRESS, Limiter, LimitPlace
from app.http.middleware import BodyLimits, FairShare, make_share_limiters
from tests.security.test_pictures import memory_of, watched_memory
from tests.support.coroutines import asynchronous, run_async
from tests.support.process import Installation
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png
from tests.support.waiting import patient, wait_until

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


@undone("T17", "of one caller a few work at once", FairShare, "__call__", lambda self, *call: self.app(*call))
@asynchronous
async def test_a_flood_waits_in_turn_and_others_pass_it() -> None:
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


@asynchronous
async def test_an_address_with_ever_new_credentials_leaves_room_for_others() -> None:
    door = Door()
    flood = [task for number in range(60) for task in start(door, ["/x"], caller=f"Bearer made up {number}")]
    await until(lambda: len(door.inside) == MIN_PER_ADDRESS)
    other = start(door, ["/y"], address="192.0.2.2", caller="")
    await until(lambda: door.inside[-1] == "/y")
    door.let_go.set()
    assert await asyncio.gather(*flood, *other) == [200] * 61
    assert door.is_empty()


@asynchronous
async def test_what_streams_takes_no_place() -> None:
    door = Door(at_once=1)
    tasks = start(door, ["/stream"] * 5)
    await until(lambda: len(door.inside) == 5)
    door.let_go.set()
    assert await asyncio.gather(*tasks) == [200] * 5
    assert door.is_empty()


@asynchronous
async def test_who_waits_too_long_or_in_too_long_a_queue_is_asked_to_come_back() -> None:
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


@pytest.mark.parametrize("caller", ["Bearer a", ""])
@asynchronous
async def test_bodies_that_arrive_slowly_hold_no_place(caller: str) -> None:
    """Otherwise a few half-sent requests would keep out everybody of an address, or of a key."""
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


@asynchronous
async def test_who_finds_no_place_after_the_body_is_asked_to_come_back() -> None:
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


@asynchronous
async def test_nobody_takes_the_places_of_an_address_or_a_key_by_naming_them() -> None:
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


MIB = 1024**2


class BodyDoor:
    """The middleware before an application that reads a body and then keeps it until it is let go."""

    def __init__(self, memory: int) -> None:
        self.memory = Limiter(BODIES, memory)
        self.limits, self.let_go = BodyLimits(self._keep, self.memory), asyncio.Event()
        self.read: list[int] = []

    async def _keep(self, _: Any, receive: Any, send: Any) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            size, more = size + len(message["body"]), message.get("more_body", False)
        self.read.append(size)
        await self.let_go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def ask(self, size: int, path: str = "/v1/predictions", *, declared: bool = True) -> int:
        """Status of the answer to a body of some bytes."""
        statuses: list[int] = []
        headers = [(b"content-length", str(size).encode())] if declared else [(b"transfer-encoding", b"chunked")]

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"x" * size}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await self.limits({"type": "http", "path": path, "headers": headers}, receive, send)
        return statuses[0]


@undone("T1", "bodies that wait share a budget of memory", middleware, "_COPIES", 0)
@asynchronous
async def test_a_body_without_room_waits_unread_and_what_fits_passes_it() -> None:
    door = BodyDoor(20 * MIB)  # each counts twice
    first = asyncio.create_task(door.ask(7 * MIB))
    await until(lambda: door.read == [7 * MIB])
    large, small = asyncio.create_task(door.ask(4 * MIB)), asyncio.create_task(door.ask(MIB))
    await until(lambda: len(door.read) == 2)
    assert door.read[1:] == [MIB]
    unknown = asyncio.create_task(door.ask(100, declared=False))  # may become the largest that is allowed
    await until(lambda: door.memory.count_use().waiting == 2)
    door.let_go.set()
    assert [await task for task in (first, large, small, unknown)] == [200] * 4
    assert door.memory.count_use() == (0, 0)


@asynchronous
async def test_a_request_without_a_body_takes_nothing() -> None:
    """A stream of events lasts for hours and listens for the end of its connection."""
    door = BodyDoor(MIB)
    task = asyncio.create_task(door.ask(0))
    await until(lambda: door.read == [0])
    assert door.memory.count_use() == (0, 0)
    door.let_go.set()
    assert await task == 200


@asynchronous
async def test_who_waits_too_long_is_asked_to_come_back() -> None:
    door = BodyDoor(2 * MIB)
    door.memory.wait_seconds = 0.01
    first = asyncio.create_task(door.ask(MIB))
    await until(lambda: len(door.read) == 1)
    assert await door.ask(2) == 429
    gone = asyncio.create_task(door.ask(2))
    await until(lambda: door.memory.count_use().waiting == 1)
    gone.cancel()
    door.let_go.set()
    assert await first == 200
    assert await door.ask(MIB) == 200


def test_who_is_not_known_yet_takes_nothing_of_it(shared_service: Service) -> None:
    """Otherwise sign-ins that never end would keep out uploads; a name and a password are short."""
    answer = shared_service.client.post("/login", data={"name": "x" * MAX_SIGN_IN})
    assert answer.status_code == 413

    async def scene() -> None:
        door = BodyDoor(10)
        task = asyncio.create_task(door.ask(100, "/login"))
        await until(lambda: door.read == [100])
        assert door.memory.count_use() == (0, 0)
        door.let_go.set()
        assert await task == 200

    run_async(scene())


def test_an_upload_leaves_no_file_in_the_folder_for_temporary_ones(
    shared_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rollover(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.SpooledTemporaryFile.rollover", rollover)
    answer = shared_service.upload("large", cell_png() + bytes(2 * MIB))
    assert answer.status_code in {201, 422}, answer.text


@pytest.mark.heavy
def test_sixty_four_clients_with_twelve_mebibytes_each(tmp_path: Path, tiny_release: Path) -> None:
    data = cell_png() + bytes(MAX_UPLOAD - 64 * 1024)
    with Installation(tmp_path / "home") as made:
        keys = made.prepare(tiny_release, lead="admin")
        made.environment["SECONDREAD_WORKER"] = "false"
        made.start()
        assert made.server is not None
        pid, headers = made.server.pid, {"Authorization": f"Bearer {keys['lead']}"}

        def send(number: int) -> int:
            named = {**headers, "Idempotency-Key": f"key {number}"}
            options: dict[str, Any] = {"headers": named, "timeout": patient(300)}
            if number % 2:
                named["Content-Type"] = "application/octet-stream"
                return httpx2.post(f"{made.address}/v1/predictions", content=data, **options).status_code
            options |= {"files": {"image": ("x.png", data)}, "data": {"external_id": f"case {number}"}}
            return httpx2.post(f"{made.address}/v1/cases", **options).status_code

        assert {send(0), send(1)} == {200, 201}
        with watched_memory(pid) as seen, ThreadPoolExecutor(64) as pool:
            answers = Counter(pool.map(send, range(2, 66)))
        before, peak = seen
        print(f"{dict(answers)}; {(peak - before) / MIB:,.0f} MiB at most")
        assert set(answers) <= {200, 201, 429}, answers
        assert peak - before < BODIES.size + 300 * MIB, f"{(peak - before) / MIB:,.0f} MiB"
        wait_until(
            lambda: memory_of(pid) - before < 200 * MIB, what=lambda: f"{memory_of(pid) / MIB:,.0f} MiB are kept"
        )
