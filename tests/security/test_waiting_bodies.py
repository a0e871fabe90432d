"""Bodies that wait in memory: they share a budget, and whoever finds none left waits before a byte is read."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.http import middleware
from app.http.limiter import BODIES, MAX_SIGN_IN, MAX_UPLOAD, Limiter
from app.http.middleware import BodyLimits
from tests.security.test_pictures import memory_of
from tests.support.coroutines import run_async
from tests.support.process import Installation
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png
from tests.support.waiting import patient, wait_until

MIB = 1024**2


class Door:
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


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(patient(20)):
        while not condition():
            await asyncio.sleep(0)


@undone("T1", "bodies that wait share a budget of memory", middleware, "_COPIES", 0)
def test_a_body_without_room_waits_unread_and_what_fits_passes_it() -> None:
    async def scene() -> None:
        door = Door(20 * MIB)  # each counts twice
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

    run_async(scene())


def test_a_request_without_a_body_takes_nothing() -> None:
    """A stream of events lasts for hours and listens for the end of its connection."""

    async def scene() -> None:
        door = Door(MIB)
        task = asyncio.create_task(door.ask(0))
        await until(lambda: door.read == [0])
        assert door.memory.count_use() == (0, 0)
        door.let_go.set()
        assert await task == 200

    run_async(scene())


def test_who_waits_too_long_is_asked_to_come_back() -> None:
    async def scene() -> None:
        door = Door(2 * MIB)
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

    run_async(scene())


def test_who_is_not_known_yet_takes_nothing_of_it(shared_service: Service) -> None:
    """Otherwise sign-ins that never end would keep out uploads; a name and a password are short."""
    answer = shared_service.client.post("/login", data={"name": "x" * MAX_SIGN_IN})
    assert answer.status_code == 413

    async def scene() -> None:
        door = Door(10)
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
        before, peak, over = memory_of(pid), 0, threading.Event()

        def watch() -> None:
            nonlocal peak
            while not over.is_set():
                peak = max(peak, memory_of(pid))
                time.sleep(0.02)

        watcher = threading.Thread(target=watch)
        watcher.start()
        with ThreadPoolExecutor(64) as pool:
            answers = Counter(pool.map(send, range(2, 66)))
        over.set()
        watcher.join()
        print(f"{dict(answers)}; {(peak - before) / MIB:,.0f} MiB at most")
        assert set(answers) <= {200, 201, 429}, answers
        assert peak - before < BODIES.size + 300 * MIB, f"{(peak - before) / MIB:,.0f} MiB"
        wait_until(
            lambda: memory_of(pid) - before < 200 * MIB, what=lambda: f"{memory_of(pid) / MIB:,.0f} MiB are kept"
        )
