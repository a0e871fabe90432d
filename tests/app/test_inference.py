"""One run of the network at a time; whoever waits is taken along where batches pay, and nobody waits for ever."""

import threading
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from prometheus_client import REGISTRY

from app.database.tables import Alias
from app.http.errors import ServiceOverloaded
from app.predictions import inference
from app.predictions.inference import InferenceEngine, LoadedRelease, RecentDurations
from ml.images.preprocess import Pixels
from ml.release.artifact import Release, read_release
from ml.release.predictor import Prediction, Predictor
from tests.support.service import cell_png
from tests.support.waiting import patient, wait_until

N_IMAGES = 24


@pytest.fixture(scope="module")
def served(small_release: Path) -> LoadedRelease:
    return LoadedRelease(uuid.uuid4(), 1, Predictor(read_release(small_release), 1))


@pytest.fixture(scope="module")
def images() -> list[Image.Image]:
    found = [Image.open(BytesIO(cell_png(number))) for number in range(N_IMAGES)]
    for image in found:
        image.load()
    return found


def batches() -> tuple[float, float]:
    """Runs of the network, and images in them."""
    values = [REGISTRY.get_sample_value(f"secondread_batch_size_{part}") for part in ("count", "sum")]
    return values[0] or 0.0, values[1] or 0.0


@pytest.mark.parametrize(("batch", "together"), [(8, True), (None, False)])
def test_waiting_images_go_together_where_batches_pay(
    served: LoadedRelease, images: list[Image.Image], batch: int | None, together: bool
) -> None:
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


def test_a_failing_run_fails_everybody_in_it_and_nobody_else(
    served: LoadedRelease, images: list[Image.Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = InferenceEngine(Path(), 1, 64, 64)

    def fail(_images: object) -> None:
        raise RuntimeError("the runtime failed")

    with monkeypatch.context() as patch:
        patch.setattr(served.predictor, "outputs", fail)
        with ThreadPoolExecutor(8) as pool:
            errors = [
                future.exception() for future in [pool.submit(port.predict, served, image) for image in images[:8]]
            ]
    assert [type(error) for error in errors] == [RuntimeError] * 8
    assert port.predict(served, images[0]).logits.shape == (1, len(served.predictor.release.classes))


def test_who_waits_too_long_or_finds_the_queue_full_is_told(
    served: LoadedRelease, images: list[Image.Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = InferenceEngine(Path(), 1, 1, 8)
    port.here.wait_seconds = 0.2
    begun, go_on = threading.Event(), threading.Event()
    run = served.predictor.outputs

    def slow(taken: list[Image.Image]) -> object:
        begun.set()
        go_on.wait(patient(60))
        return run(taken)

    monkeypatch.setattr(served.predictor, "outputs", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(port.predict, served, images[0])
        assert begun.wait(patient(30))
        second = pool.submit(port.predict, served, images[1])
        with pytest.raises(ServiceOverloaded, match="waited"):
            second.result()
        port.here.wait_seconds = patient(60)
        third = pool.submit(port.predict, served, images[1])
        wait_until(lambda: port.here.count_use().waiting > 0, what="the third is in the queue")
        with pytest.raises(ServiceOverloaded, match="too many"):
            port.predict(served, images[2])
        go_on.set()
        assert first.result().logits.shape[0] == 1
        assert third.exception() is None or isinstance(third.exception(), ServiceOverloaded)
    assert port.predict(served, images[2]).logits.shape[0] == 1


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


def test_who_came_first_is_served_first(served: LoadedRelease, monkeypatch: pytest.MonkeyPatch) -> None:
    port, network = InferenceEngine(Path(), 1, 64), _Blocking(monkeypatch, served)
    with ThreadPoolExecutor(N_IMAGES) as pool:
        asked = [pool.submit(port.predict, served, numbered(served, 0))]
        assert network.begun.acquire(timeout=patient(30))
        asked += [arrive(pool, port, served, number) for number in range(1, N_IMAGES)]
        for _ in range(N_IMAGES):
            network.end.release()
            # somebody new comes whenever a place has just become free, and must not overtake
            asked.append(pool.submit(port.predict, served, numbered(served, 200)))
        network.end.release(len(asked))
        for one in asked:
            one.result(timeout=patient(60))
    assert network.order[:N_IMAGES] == list(range(N_IMAGES))
    assert port.here.count_use() == (0, 0)


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


def test_a_large_network_runs_alone_and_is_not_overtaken(
    served: LoadedRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_a_small_network_takes_one_core_and_a_large_one_all(
    small_release: Path, images: list[Image.Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is chosen, the numbers are the same to the bit."""
    monkeypatch.setattr(inference, "cores", lambda: 4)
    alias, found = Alias(name="champion", release_id=uuid.uuid4(), revision=1), {}
    for threads, limit in ((0, 1e9), (0, 0.0), (3, 1e9), (2, 1e9), (1, 0.0)):
        monkeypatch.setattr(inference, "_SMALL_SECONDS", limit)
        port = InferenceEngine(lambda _: small_release, threads, 64)
        loaded = port.served(alias)
        found[threads, limit] = loaded.cores
        assert loaded.is_small == (limit > 0 and threads in {0, 1})  # of several threads nobody measures one core
        logits = [port.predict(loaded, image).logits for image in images]
        np.testing.assert_array_equal(logits, [served_alone(small_release, image) for image in images])
    assert found == {(0, 1e9): 1, (0, 0.0): None, (3, 1e9): 3, (2, 1e9): 2, (1, 0.0): 1}


def test_processes_that_share_the_cores_have_a_part_of_them_each(
    small_release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large network takes those of its process; with less than one core each, one run goes on at a time."""
    monkeypatch.setattr(inference, "cores", lambda: 4)
    alias, threads = Alias(name="champion", release_id=uuid.uuid4(), revision=1), []
    as_it_is = Predictor.__init__

    def noted(predictor: Predictor, release: Release, n_threads: int = 0, **options: Any) -> None:
        threads.append(n_threads)
        as_it_is(predictor, release, n_threads, **options)

    monkeypatch.setattr(Predictor, "__init__", noted)
    monkeypatch.setattr(inference, "_SMALL_SECONDS", 0.0)
    for sharing, expected in ((1, 0), (2, 2), (4, 1), (9, 1)):
        threads.clear()
        InferenceEngine(lambda _: small_release, 0, 64, sharing=sharing).served(alias)
        assert threads[0] == expected


@pytest.mark.parametrize(("limit", "is_small"), [(1e9, True), (0.0, False)])
def test_a_process_of_one_core_knows_whether_its_network_is_small(
    small_release: Path, monkeypatch: pytest.MonkeyPatch, limit: float, is_small: bool
) -> None:
    monkeypatch.setattr(inference, "cores", lambda: 2)
    monkeypatch.setattr(inference, "_SMALL_SECONDS", limit)
    alias = Alias(name="champion", release_id=uuid.uuid4(), revision=1)
    loaded = InferenceEngine(lambda _: small_release, 0, 64, sharing=2).served(alias)
    assert (loaded.cores, loaded.is_small) == (None, is_small)


def test_on_a_gpu_one_run_goes_on_at_a_time_whatever_threads_are_set(
    small_release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its buffers belong to one run; the threads are those of the CPU."""
    alias = Alias(name="champion", release_id=uuid.uuid4(), revision=1)
    monkeypatch.setattr(Predictor, "on_gpu", property(lambda _: True))
    assert [InferenceEngine(lambda _: small_release, threads, 64).served(alias).cores for threads in (0, 1, 2)] == [
        None
    ] * 3


def served_alone(release: Path, image: Image.Image) -> npt.NDArray[np.float32]:
    return Predictor(read_release(release), 1).predict([image]).logits


@pytest.mark.parametrize("batch", [1, 4])
def test_who_finds_the_queue_full_is_told_when_to_come_back(
    served: LoadedRelease, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
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
