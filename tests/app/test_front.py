"""Small predictions: a few at once, in the order of arrival; nobody waits behind a picture that takes long."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY

from app.http.errors import ServiceOverloaded, ServiceUnavailable
from app.http.limiter import MAX_SMALL_RUNS
from app.predictions.inference import SmallImageQueue
from ml.images.picture import Picture
from tests.security.test_pictures import jpeg_of_scans, tiled
from tests.support.coroutines import run_async
from tests.support.images import encode, photo
from tests.support.service import Service, cell_png
from tests.support.waiting import patient, wait_until


class Held:
    """Work that says that it has begun, and goes on when it is told to."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.most, self._inside, self._lock = 0, 0, threading.Lock()
        self._go_on = threading.Semaphore(0)

    def work(self, number: int) -> Callable[[], int]:
        def held() -> int:
            with self._lock:
                self.begun.append(number)
                self._inside += 1
                self.most = max(self.most, self._inside)
            assert self._go_on.acquire(timeout=patient(60))
            with self._lock:
                self._inside -= 1
            return number

        return held

    def end(self, n: int = 1) -> None:
        self._go_on.release(n)


def waiting() -> float:
    """Predictions that wait, as monitoring shows them."""
    return REGISTRY.get_sample_value("secondread_predictions_waiting") or 0.0


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition)


@pytest.mark.parametrize(("cores", "at_once"), [(1, 1), (2, 2), (4, 4), (64, MAX_SMALL_RUNS)])
def test_as_many_run_at_once_as_there_are_cores_in_the_order_of_arrival(cores: int, at_once: int) -> None:
    async def scene() -> None:
        port, held = SmallImageQueue(cores, 20), Held()
        tasks = [asyncio.create_task(port.run(held.work(number))) for number in range(12)]
        await until(lambda: len(held.begun) == at_once)
        assert port.limiter.count_use().waiting == 12 - at_once
        for n in range(at_once, 12):
            held.end()
            await until(lambda n=n: len(held.begun) == n + 1)  # type: ignore[misc]
            assert sorted(held.begun) == list(range(n + 1)), "somebody was overtaken"
        held.end(at_once)
        assert await asyncio.gather(*tasks) == list(range(12))
        assert (held.most, port.limiter.count_use().waiting) == (at_once, 0)

    run_async(scene())


def test_what_has_run_for_long_counts_for_what_whoever_comes_next_is_told() -> None:
    """Recent ones took milliseconds, and two that took half of a minute held both places: "in two seconds", it said."""

    async def scene() -> None:
        port, held = SmallImageQueue(2, 1), Held()
        port.durations.seconds = 0.01
        tasks = [asyncio.create_task(port.run(held.work(number))) for number in range(3)]
        await until(lambda: len(held.begun) == 2)
        port.durations.begun_at = {thread: begun - 20 for thread, begun in port.durations.begun_at.items()}
        with pytest.raises(ServiceOverloaded) as refused:
            await port.run(held.work(3))
        assert refused.value.retry_after is not None
        assert 20 <= refused.value.retry_after < 60
        held.end(3)
        await asyncio.gather(*tasks)
        assert port._seconds_for(1) == 1

    run_async(scene())


def test_work_that_goes_on_keeps_its_place_though_its_caller_is_gone() -> None:
    async def scene() -> None:
        port, held = SmallImageQueue(1, 5), Held()
        port.limiter.wait_seconds = 0.1
        gone = asyncio.create_task(port.run(held.work(0)))
        await until(lambda: held.begun == [0])
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        with pytest.raises(ServiceOverloaded, match="waited"):
            await port.run(held.work(1))
        held.end()
        await until(lambda: port.limiter.count_use() == (0, 0))
        held.end()
        assert await port.run(held.work(2)) == 2

    run_async(scene())


def test_failures_reach_their_caller_and_free_the_place() -> None:
    def fail() -> int:
        raise ZeroDivisionError

    before = waiting()

    async def scene() -> None:
        port, held = SmallImageQueue(1, 5), Held()
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await port.run(fail)
        # who goes away while waiting leaves no work behind, and holds up nobody
        first = asyncio.create_task(port.run(held.work(0)))
        await until(lambda: held.begun == [0])
        gone, behind = (asyncio.create_task(port.run(held.work(number))) for number in (1, 2))
        await until(lambda: port.limiter.count_use().waiting == 2)
        assert waiting() == before + 2
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        held.end(2)
        assert (await first, await behind, held.begun) == (0, 2, [0, 2])
        assert waiting() == before

    run_async(scene())


@pytest.fixture
def slow_pictures(service: Service, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, list[int]]:
    """Pictures that are decoded in a process of their own take until the event; lengths of those that have begun."""
    go_on, begun = threading.Event(), []

    def held(data: bytes, *_: object, **__: object) -> Picture:
        begun.append(len(data))
        assert go_on.wait(patient(60))
        raise ServiceUnavailable("the end of the test")

    monkeypatch.setattr("app.predictions.inference.read_limited", held)
    return go_on, begun


SLOW: dict[str, Callable[[], bytes]] = {
    "of more than a megapixel": lambda: encode(photo(1, 1010)),
    "of a hundred scans": lambda: jpeg_of_scans(100),
    "of ten kilobytes, in tiles that take seconds": lambda: tiled(8192, 122, 16, 2**17),
}


@pytest.mark.parametrize("kind", SLOW)
def test_small_pictures_pass_those_that_take_long(
    service: Service, slow_pictures: tuple[threading.Event, list[int]], kind: str
) -> None:
    go_on, begun = slow_pictures
    slow = SLOW[kind]()
    at_once = service.context.front.limiter.size + 1
    service.call("viewer", "POST", "/v1/predictions", content=cell_png(1))  # what is in force is held from here on
    with ThreadPoolExecutor(at_once) as pool:
        waiting = [pool.submit(service.call, "viewer", "POST", "/v1/predictions", content=slow) for _ in range(at_once)]
        wait_until(lambda: len(begun) >= 1)
        for _ in range(3):
            assert service.call("viewer", "POST", "/v1/predictions", content=cell_png(1)).status_code == 200
        assert not any(one.done() for one in waiting)
        go_on.set()
        assert {one.result(timeout=patient(60)).status_code for one in waiting} <= {429, 503}


def test_a_large_network_never_takes_a_place_at_the_front(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would keep small ones waiting for its whole run."""
    taken: list[int] = []
    as_it_is = SmallImageQueue.run

    async def noted(port: SmallImageQueue, work: Callable[[], object]) -> object:
        taken.append(1)
        return await as_it_is(port, work)

    monkeypatch.setattr(SmallImageQueue, "run", noted)
    ask = {"role": "viewer", "method": "POST", "path": "/v1/predictions"}
    first = service.call(*ask.values(), content=cell_png(1))  # reads what is in force
    small = service.call(*ask.values(), content=cell_png(1))
    assert len(taken) == 1
    held = service.client.app.state.in_force  # type: ignore[attr-defined]
    known = held._held
    large = replace(known[1], served=replace(known[1].served, is_small=False))
    held._held = (known[0], large)
    other = service.call(*ask.values(), content=cell_png(1))
    assert len(taken) == 1
    assert first.json() == small.json() == other.json()
