"""Runs of the network, and small predictions: in order, several where that pays, and nobody waits for ever."""

import asyncio
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from prometheus_client import REGISTRY

from app.database.tables import Alias
from app.http.errors import ServiceOverloaded, ServiceUnavailable
from app.http.limiter import MAX_SMALL_RUNS
from app.predictions import inference
from app.predictions.inference import InferenceEngine, LoadedRelease, RecentDurations, SmallImageQueue
from ml.images.picture import Picture
from ml.images.preprocess import Pixels
from ml.release.artifact import Release, read_release
from ml.release.predictor import Prediction, Predictor
from tests.security.test_pictures import jpeg_of_scans, tiled
from tests.support.coroutines import asynchronous
from tests.support.images import encode, photo
from tests.support.service import Service, cell_png, raising
from tests.support.waiting import patient, wait_until

N_IMAGES = 24
Images = list[Image.Image]


@pytest.fixture(scope="module")
def served(small_release: Path) -> LoadedRelease:
    return LoadedRelease(uuid.uuid4(), 1, Predictor(read_release(small_release), 1))


@pytest.fixture(scope="module")
def images() -> Images:
    found = [Image.open(BytesIO(cell_png(number))) for number in range(N_IMAGES)]
    for image in found:
        image.load()
    return found


def batches() -> tuple[float, float]:
    """Runs of the network, and images in them."""
    values = [REGISTRY.get_sample_value(f"secondread_batch_size_{part}") for part in ("count", "sum")]
    return values[0] or 0.0, values[1] or 0.0


@pytest.mark.parametrize(("batch", "together"), [(8, True), (None, False)])
def test_images_go_together(served: LoadedRelease, images: Images, batch: int | None, together: bool) -> None:
    """Each caller gets the prediction of its own image, whoever it travelled with."""
    port = InferenceEngine(Path(), 1, 64, batch)
    before = batches()
    with ThreadPoolExecutor(N_IMAGES) as pool:
        found = list(pool.map(lambda image: port.predict(served, image), images))
    runs, seen = (now - then for now, then in zip(batches(), before, strict=True))
    assert seen == N_IMAGES
    assert (runs < N_IMAGES) == together
    for image, prediction in zip(images, found, strict=True):
        alone = served.predictor.predict([image])
        np.testing.assert_allclose(prediction.logits, alone.logits, atol=1e-4)
        np.testing.assert_allclose(prediction.distribution.class_probs, alone.distribution.class_probs, atol=1e-5)


def test_a_failing_run_fails_everybody_in_it(
    served: LoadedRelease, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = InferenceEngine(Path(), 1, 64, 64)

    def fail(_images: object) -> None:
        raise RuntimeError("the runtime failed")

    with monkeypatch.context() as patch:
        patch.setattr(served.predictor, "outputs", fail)
        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(port.predict, served, image) for image in images[:8]]
        errors = [future.exception() for future in waiting]
    assert [type(error) for error in errors] == [RuntimeError] * 8
    assert port.predict(served, images[0]).logits.shape == (1, len(served.predictor.release.classes))


def test_who_waits_too_long_is_told(served: LoadedRelease, monkeypatch: pytest.MonkeyPatch) -> None:
    port, network = InferenceEngine(Path(), 1, 1, 8), _Blocking(monkeypatch, served)
    port.here.wait_seconds = 0.2
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(port.predict, served, numbered(served, 0))
        assert network.begun.acquire(timeout=patient(30))
        with pytest.raises(ServiceOverloaded, match="waited"):
            pool.submit(port.predict, served, numbered(served, 1)).result()
        network.end.release()
        assert first.result().logits.shape[0] == 1


class _Blocking:
    """A network whose runs end one by one, as the test says; remembers in which order images came.

    The first value of an image's pixels is its number.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, served: LoadedRelease) -> None:
        self.order: list[int] = []
        self.begun, self.end = threading.Semaphore(0), threading.Semaphore(0)
        self._outputs = served.predictor.outputs
        monkeypatch.setattr(served.predictor, "outputs", self.outputs)

    def outputs(self, taken: list[Pixels]) -> object:
        self.order += [int(pixels[0, 0, 0]) for pixels in taken]
        self.begun.release()
        assert self.end.acquire(timeout=patient(60))
        return self._outputs(taken)


def numbered(served: LoadedRelease, number: int) -> Pixels:
    shape = served.predictor.release.preprocessing
    return np.full((shape.size, shape.size, shape.channels), number, dtype=np.uint8)


def arrive(pool: ThreadPoolExecutor, port: InferenceEngine, served: LoadedRelease, number: int) -> Future[Prediction]:
    """Ask for a prediction, and return once it waits."""
    before = port.here.count_use().waiting
    asked = pool.submit(port.predict, served, numbered(served, number))
    wait_until(lambda: port.here.count_use().waiting > before, what=f"image {number} is in the queue")
    return asked


def two_cores(monkeypatch: pytest.MonkeyPatch) -> InferenceEngine:
    monkeypatch.setattr(inference, "cores", lambda: 2)
    return InferenceEngine(Path(), 1, 64)


def test_of_a_small_network_several_runs_go_on_at_once(served: LoadedRelease, monkeypatch: pytest.MonkeyPatch) -> None:
    port, network, small = two_cores(monkeypatch), _Blocking(monkeypatch, served), replace(served, cores=1)
    with ThreadPoolExecutor(N_IMAGES + 1) as pool:
        asked = [pool.submit(port.predict, small, numbered(served, number)) for number in (0, 0)]
        for _ in asked:
            assert network.begun.acquire(timeout=patient(30))
        asked += [arrive(pool, port, small, number) for number in range(1, N_IMAGES)]
        assert not network.begun.acquire(blocking=False), "a third run began beside two"
        for _ in range(1, N_IMAGES):
            network.end.release()
            assert network.begun.acquire(timeout=patient(30))
        network.end.release(2)
        for one in asked:
            one.result(timeout=patient(60))
    assert network.order == [0, *range(N_IMAGES)]
    assert port.here.count_use() == (0, 0)


def test_a_large_network_runs_alone_and_in_turn(served: LoadedRelease, monkeypatch: pytest.MonkeyPatch) -> None:
    port, network, small = two_cores(monkeypatch), _Blocking(monkeypatch, served), replace(served, cores=1)
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(port.predict, small, numbered(served, 0))]
        assert network.begun.acquire(timeout=patient(30))
        asked.append(arrive(pool, port, served, 1))
        asked.append(arrive(pool, port, small, 2))  # there would be room for it beside the first
        for number in range(3):
            assert network.order == list(range(number + 1))
            assert port.here.count_use().waiting == 2 - number, "somebody runs beside the large network"
            network.end.release()
            assert number == 2 or network.begun.acquire(timeout=patient(30))
        for one in asked:
            one.result(timeout=patient(60))


@pytest.mark.slow
def test_a_small_network_takes_one_core(small_release: Path, images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is chosen, the numbers are the same to the bit."""
    monkeypatch.setattr(inference, "cores", lambda: 4)
    alias, found = champion(), {}
    alone = [Predictor(read_release(small_release), 1).predict([image]).logits for image in images]
    for threads, limit in ((0, 1e9), (0, 0.0), (3, 1e9), (2, 1e9), (1, 0.0)):
        monkeypatch.setattr(inference, "_SMALL_SECONDS", limit)
        port = InferenceEngine(lambda _: small_release, threads, 64)
        loaded = port.served(alias)
        found[threads, limit] = loaded.cores
        assert loaded.is_small == (limit > 0 and threads in {0, 1})  # of several threads nobody measures one core
        np.testing.assert_array_equal([port.predict(loaded, image).logits for image in images], alone)
    assert found == {(0, 1e9): 1, (0, 0.0): None, (3, 1e9): 3, (2, 1e9): 2, (1, 0.0): 1}


def test_processes_that_share_the_cores_have_a_part_each(small_release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large network takes those of its process; with less than one core each, one run goes on at a time."""
    monkeypatch.setattr(inference, "cores", lambda: 4)
    threads = list[int]()
    as_it_is = Predictor.__init__

    def noted(predictor: Predictor, release: Release, n_threads: int = 0, **options: Any) -> None:
        threads.append(n_threads)
        as_it_is(predictor, release, n_threads, **options)

    monkeypatch.setattr(Predictor, "__init__", noted)
    monkeypatch.setattr(inference, "_SMALL_SECONDS", 0.0)
    for sharing, expected in ((1, 0), (2, 2), (4, 1), (9, 1)):
        threads.clear()
        InferenceEngine(lambda _: small_release, 0, 64, sharing=sharing).served(champion())
        assert threads[0] == expected


@pytest.mark.parametrize(("limit", "is_small"), [(1e9, True), (0.0, False)])
def test_a_process_of_one_core_knows_whether_its_network_is_small(
    small_release: Path, monkeypatch: pytest.MonkeyPatch, limit: float, is_small: bool
) -> None:
    monkeypatch.setattr(inference, "cores", lambda: 2)
    monkeypatch.setattr(inference, "_SMALL_SECONDS", limit)
    loaded = InferenceEngine(lambda _: small_release, 0, 64, sharing=2).served(champion())
    assert (loaded.cores, loaded.is_small) == (None, is_small)


def test_on_a_gpu_one_run_goes_on_at_a_time(small_release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever threads are set: its buffers belong to one run, and the threads are those of the CPU."""
    monkeypatch.setattr(Predictor, "on_gpu", property(lambda _: True))
    for threads in (0, 1, 2):
        assert InferenceEngine(lambda _: small_release, threads, 64).served(champion()).cores is None


def champion() -> Alias:
    return Alias(name="champion", release_id=uuid.uuid4(), revision=1)


@pytest.mark.parametrize("batch", [1, 4])
def test_a_full_queue_says_when_to_come(served: LoadedRelease, monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    """At once, and after longer the longer the queue is; in whole seconds, at least one."""
    told = {}
    for queue in (1, 4, 8):
        with monkeypatch.context() as patch, ThreadPoolExecutor(queue) as pool:
            port, network = InferenceEngine(Path(), 1, queue - 1, batch), _Blocking(patch, served)
            asked = [pool.submit(port.predict, served, numbered(served, 0))]
            assert network.begun.acquire(timeout=patient(30))
            asked += [arrive(pool, port, served, number) for number in range(1, queue)]
            patch.setattr(port, "_durations", RecentDurations())  # nothing is known of how long a run takes
            with pytest.raises(ServiceOverloaded, match="too many") as unknown:
                port.predict(served, numbered(served, 9))
            port._durations.seconds = 2.5
            with pytest.raises(ServiceOverloaded, match="too many") as refused:
                port.predict(served, numbered(served, 9))
            told[queue] = refused.value.retry_after
            assert unknown.value.retry_after == ServiceOverloaded.retry_after
            network.end.release(queue)
            for one in asked:
                one.result(timeout=patient(60))
    assert told == ({1: 3, 4: 10, 8: 20} if batch == 1 else {1: 3, 4: 3, 8: 5})


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
@asynchronous
async def test_as_many_run_at_once_as_there_are_cores_in_the_order_of_arrival(cores: int, at_once: int) -> None:
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


@asynchronous
async def test_what_has_run_for_long_counts_for_what_whoever_comes_next_is_told() -> None:
    """Recent ones took milliseconds, and two that took half of a minute held both places: "in two seconds", it said."""
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


@asynchronous
async def test_work_that_goes_on_keeps_its_place_though_its_caller_is_gone() -> None:
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


@asynchronous
async def test_failures_reach_their_caller_and_free_the_place() -> None:
    before, port, held = waiting(), SmallImageQueue(1, 5), Held()
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await port.run(raising(ZeroDivisionError()))
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
    ask = partial(service.call, "viewer", "POST", "/v1/predictions", content=cell_png(1))
    answers = [ask(), ask()]  # the first one reads what is in force
    assert len(taken) == 1
    held = service.client.app.state.in_force  # type: ignore[attr-defined]
    known = held._held
    held._held = (known[0], replace(known[1], served=replace(known[1].served, is_small=False)))
    answers.append(ask())
    assert len(taken) == 1
    assert answers[0].json() == answers[1].json() == answers[2].json()
