"""The predictor port: decodes images within a memory budget, and predicts them with the current champion."""

import asyncio
import math
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from app.database.tables import Alias
from app.http.errors import InvalidValue, NoRelease, Problem, ServiceUnavailable, TooLarge
from app.http.limiter import (
    BACKEND_PREDICTIONS,
    CHEAP_PICTURES,
    LARGE_PICTURES,
    MAX_SMALL_RUNS,
    PREDICTIONS,
    SMALL_PREDICTIONS,
    Limiter,
    LimitPlace,
    RequestTime,
)
from app.http.observability import BATCHES, WAITING, record_span
from app.predictions.remote import InferenceBackend, NetworkMismatchError
from ml.images.picture import DecodingCost, Picture, estimate_decoding_cost, read_limited, read_picture
from ml.images.preprocess import ImageRejectedError, Pixels, Preprocessing
from ml.release.artifact import Release, ReleaseError, read_release
from ml.release.device import Device, fallen_back, runs_on_cuda, worth_taking
from ml.release.predictor import BATCH, Prediction, Predictor, prediction_of, quality_features_for_release
from ml.util.files import cores


class UnsupportedImage(Problem):
    """Not an image format that is read here."""

    status, code, title = 415, "unsupported-image", "Unsupported image"


class BrokenImage(InvalidValue):
    """An image of a known format that cannot be decoded or used."""

    code, title = "broken-image", "Unusable image"


# what a process of its own takes before it decodes anything
_PROCESS_MEMORY = 96 * 1024**2
_SECONDS = 20
_KINDS = {"too-large": TooLarge, "format": UnsupportedImage}


class ImageDecoder:
    """Decoder of uploaded images with a memory budget."""

    def __init__(self, memory: int) -> None:
        self.large, self.cheap = Limiter(LARGE_PICTURES, memory), Limiter(CHEAP_PICTURES)

    def reserve(self, costs: Sequence[DecodingCost]) -> LimitPlace:
        """Reserve memory for images that are decoded one after the other."""
        large = [cost.memory + _PROCESS_MEMORY for cost in costs if not cost.cheap]
        if large:
            return LimitPlace(self.large, max(large))
        return LimitPlace(self.cheap, max(cost.memory for cost in costs))

    def decode(self, data: bytes, preprocessing: Preprocessing, cost: DecodingCost, *, png: bool = False) -> Picture:
        """Decode an image within the memory that is reserved for it."""
        try:
            if cost.cheap:
                return read_picture(data, preprocessing, png=png)
            return read_limited(data, preprocessing, png=png, memory=cost.memory, seconds=_SECONDS)
        except ImageRejectedError as exc:
            raise _KINDS.get(exc.reason, BrokenImage)(str(exc)) from exc

    @contextmanager
    def opened(
        self, data: bytes, preprocessing: Preprocessing, *, png: bool = False, cost: DecodingCost | None = None
    ) -> Iterator[Picture]:
        """Decode an image; its memory is reserved until the block ends."""
        cost = cost or estimate_decoding_cost(data)
        with self.reserve([cost]):
            yield self.decode(data, preprocessing, cost, png=png)


#: Releases that are kept loaded beside the champion.
MAX_OTHERS = 2
#: Images of a request of many that have one turn at the network, so that others have theirs in between.
_PER_TURN = 8
#: Weight of the newest run in the time that a run takes.
_NEWEST = 0.2
#: A network is small where one core runs one image in less than this. A second core spares such a run a third of its
#: time; with an image of its own it does as much again.
_SMALL_SECONDS = 0.008
#: Logits (N, K) and features (N, D).
Outputs = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class LoadedRelease:
    """A loaded release."""

    release_id: uuid.UUID
    # of the alias for which it was loaded
    revision: int
    predictor: Predictor
    # that a run of the network takes; None: all, so that nothing runs beside it
    cores: int | None = None
    # whether one core runs it in milliseconds
    is_small: bool = False


class InferenceEngine:
    """The release that is served, its network in this process or behind a backend."""

    def __init__(
        self,
        folder_of: Callable[[uuid.UUID], Path],
        threads: int,
        queue: int,
        batch: int | None = None,
        backend: InferenceBackend | None = None,
        device: Device = "auto",
        sharing: int = 1,
    ) -> None:
        self.folder_of, self.threads, self.batch = folder_of, threads, batch
        self._cores, self._all = max(1, cores() // sharing), 0 if sharing == 1 else max(1, cores() // sharing)
        self.backend, self.device = backend, device
        # a backend orders concurrent requests itself
        self.here = Limiter(PREDICTIONS, self._cores, queue=queue)
        self.elsewhere = Limiter(BACKEND_PREDICTIONS, queue)
        self._durations = RecentDurations()
        self._loading = threading.Lock()
        self._served: LoadedRelease | None = None
        self._others: OrderedDict[uuid.UUID, LoadedRelease] = OrderedDict()
        self.fault: str | None = None

    def served(self, alias: Alias | None) -> LoadedRelease:
        """The release of an alias, reloaded when it has moved; a release that fails leaves the old one serving."""
        if alias is None:
            raise NoRelease("no model release is in use; add one with `secondread release add`")
        with self._loading:
            loaded = self._served
            if loaded is not None and loaded.revision == alias.revision:
                return loaded
            try:
                release = read_release(self.folder_of(alias.release_id))
                self._served = self._loaded(alias.release_id, alias.revision, release)
                self.fault = None
            except NetworkMismatchError as exc:
                raise ServiceUnavailable(
                    "the inference backend runs a different network from the model release"
                ) from exc
            except ReleaseError as exc:
                self.fault = f"release {alias.release_id} cannot be loaded: {exc}"
                if loaded is None:
                    raise NoRelease("the release cannot be loaded; see /readyz") from exc
                return loaded
            return self._served

    def close(self) -> None:
        """End what is kept open."""
        if self.backend is not None:
            self.backend.close()

    def place(self) -> str:
        """Where networks run: remote, cuda or cpu, with the reason if ``auto`` fell back to the CPU."""
        if self.backend is not None:
            return "remote"
        if runs_on_cuda(self.device):
            return "cuda"
        fault = fallen_back(self.device)
        return "cpu" if fault is None else f"cpu: {fault}"

    def check_at_start(self, alias: Alias | None) -> str | None:
        """Refuse to start with a backend that has another network than the champion."""
        if self.backend is None or alias is None:
            return None
        try:
            self.backend.network(read_release(self.folder_of(alias.release_id)))
        except ServiceUnavailable as exc:
            return f"{exc.detail}; until then predictions are refused, and nothing is predicted here instead"
        return None

    def predictor(self, release: Release) -> Predictor:
        """A release with its network, wherever that runs."""
        network = None if self.backend is None else self.backend.network(release)
        return Predictor(release, self.threads or self._all, device=self.device, network=network)

    def _loaded(self, release_id: uuid.UUID, revision: int, release: Release) -> LoadedRelease:
        """A release ready to serve, its network with as many threads and runs at once as suit it."""
        predictor = self.predictor(release)
        if self.backend is not None or predictor.on_gpu:  # whose buffers belong to one run
            return LoadedRelease(release_id, revision, predictor)
        if self.threads > 1:
            return LoadedRelease(release_id, revision, predictor, self.threads)
        alone = self._cores == 1 or self.threads == 1
        by_one_core = predictor if alone else Predictor(release, 1, device=self.device)  # to the bit what more give
        is_small = by_one_core.core_seconds(enough=4 * _SMALL_SECONDS) < _SMALL_SECONDS
        if alone or not is_small:
            return LoadedRelease(release_id, revision, predictor, self.threads or None, is_small)
        return LoadedRelease(release_id, revision, by_one_core, 1, is_small)

    def other(self, release_id: uuid.UUID) -> LoadedRelease:
        """Load a release other than the champion; a few stay cached."""
        with self._loading:
            if self._served is not None and self._served.release_id == release_id:
                return self._served
            cached = self._others.pop(release_id, None)
            try:
                loaded = cached or self._loaded(release_id, -1, read_release(self.folder_of(release_id)))
            except ReleaseError as exc:
                raise NoRelease("the release cannot be loaded; see /readyz") from exc
            self._others[release_id] = loaded
            while len(self._others) > MAX_OTHERS:
                self._others.popitem(last=False)
            return loaded

    def predict(self, served: LoadedRelease, image: Image.Image | Pixels) -> Prediction:
        """Predict one decoded image, on a GPU together with those that wait for the same release."""
        (pixels,) = served.predictor.pixels([image])
        logits, features = self._outputs(served, pixels=pixels)
        release = served.predictor.release
        # what needs no network is done outside the queue, while the next one runs
        return prediction_of(release, logits, features, quality_features_for_release(release, pixels[None]))

    def predict_many(
        self, served: LoadedRelease, images: Pixels | npt.NDArray[np.float32], remaining: RequestTime
    ) -> Prediction:
        """Predict network pixels (N, size, size, C), or what others have preprocessed, in turns of a few images."""
        release, n = served.predictor.release, max(_PER_TURN, self._most(served))
        pixels = images.astype(np.uint8, copy=False) if images.dtype == np.uint8 else None
        outputs = []
        for start in range(0, len(images), n):
            remaining.require()
            if pixels is None:
                inputs = images[start : start + n].astype(np.float32, copy=False)
            else:
                inputs = release.preprocessing.normalise(pixels[start : start + n])
            outputs.append(self._outputs(served, inputs=inputs, remaining=remaining))
        # without pixels features alone tell whether an image is unlike the release's
        appearance = None if pixels is None else quality_features_for_release(release, pixels)
        logits, features = (np.concatenate(column) for column in zip(*outputs, strict=True))
        return prediction_of(release, logits, features, appearance)

    def require_room(self, served: LoadedRelease) -> None:
        """Refuse a request that would find the queue full, before any work is done for it."""
        limiter, size = self._limit_for(served)
        place = LimitPlace(limiter, size)
        place.seconds_for = self._durations.seconds_for
        limiter.require_room(place)

    def _limit_for(self, served: LoadedRelease) -> tuple[Limiter, int]:
        """The limiter of a release's runs, and what one of them takes: never more cores than there are."""
        if served.predictor.network.own_queue:
            return self.elsewhere, 1
        return self.here, min(served.cores or self._cores, self._cores)

    def _outputs(
        self,
        served: LoadedRelease,
        *,
        pixels: Pixels | None = None,
        inputs: npt.NDArray[np.float32] | None = None,
        remaining: RequestTime | None = None,
    ) -> Outputs:
        """Run the network in this thread when its turn comes, unless another caller's run takes this image along."""
        limiter, size = self._limit_for(served)
        with WAITING.track_inprogress(), record_span("inference", release=str(served.release_id)):
            together = self._most(served) * (limiter.size // size)
            pending = _PendingPrediction(limiter, size, served, pixels, inputs)
            pending.remaining = remaining
            # names no place, which would otherwise keep itself and its pixels
            pending.seconds_for = lambda number: self._durations.seconds_for(math.ceil(number / together))
            with pending:
                if not pending.result.done():
                    self._run_batch(pending)
            return pending.result.result()

    def _run_batch(self, mine: "_PendingPrediction") -> None:
        """Run the network once for an image and those that go with it, and wake their callers."""
        others = mine.limiter.take_along(mine, lambda line: self._choose_batch(mine, line))
        taken = [mine, *others]
        BATCHES.observe(len(taken))
        try:
            with record_span("network", images=len(taken)):
                self._durations.measure(lambda: _run_network(taken))
        finally:
            for image in others:
                image.wake()

    def _choose_batch(self, mine: "_PendingPrediction", line: list["_PendingPrediction"]) -> list["_PendingPrediction"]:
        others = [image for image in line if image.goes_with(mine)][: self._most(mine.served) - 1]
        if self.batch is None:  # no size was set: on a GPU, that of a batch which is not filled up for nothing
            others = others[: worth_taking(1 + len(others)) - 1]
        return others

    def _most(self, served: LoadedRelease) -> int:
        return self.batch or (BATCH if served.predictor.on_gpu else 1)


class _PendingPrediction(LimitPlace):
    """A prediction that waits for the network: the pixels of one image, or network inputs of any number of images."""

    __slots__ = ("inputs", "pixels", "result", "served")

    def __init__(
        self,
        limiter: Limiter,
        size: int,
        served: LoadedRelease,
        pixels: Pixels | None,
        inputs: npt.NDArray[np.float32] | None,
    ) -> None:
        super().__init__(limiter, size)
        self.served, self.pixels, self.inputs = served, pixels, inputs
        self.result: Future[Outputs] = Future()

    def goes_with(self, other: "_PendingPrediction") -> bool:
        """Whether one run of the network may take both."""
        return self.served is other.served and self.pixels is not None and other.pixels is not None


def _run_network(taken: list[_PendingPrediction]) -> None:
    predictor = taken[0].served.predictor
    try:
        if taken[0].inputs is not None:
            taken[0].result.set_result(predictor.run(taken[0].inputs))
            return
        logits, features = predictor.outputs([pending.pixels for pending in taken if pending.pixels is not None])
        for row, pending in enumerate(taken):
            pending.result.set_result((logits[row : row + 1], features[row : row + 1]))
    except BaseException as exc:  # whatever it is, each caller must learn of it
        for pending in taken:
            if not pending.result.done():
                pending.result.set_exception(exc)


class RecentDurations:
    """How long a piece of work takes, by the recent ones and by what still runs."""

    def __init__(self) -> None:
        self.seconds = 0.0
        # when what runs has begun, by thread
        self.begun_at: dict[int, float] = {}

    def measure(self, work: Callable[[], _Result]) -> _Result:
        """Do a piece of work, and note how long it takes."""
        started, thread = time.perf_counter(), threading.get_ident()
        self.begun_at[thread] = started
        try:
            return work()
        finally:
            del self.begun_at[thread]
            seconds = time.perf_counter() - started
            self.seconds += _NEWEST * (seconds - self.seconds) if self.seconds else seconds

    def seconds_for(self, rounds: float) -> int | None:
        """Whole seconds that so many take one after the other; None before the first has ended or run for a while."""
        now = time.perf_counter()
        one = max([self.seconds, *(now - begun for begun in list(self.begun_at.values()))])
        return max(1, math.ceil(rounds * one)) if self.seconds or one > 1 else None


class SmallImageQueue:
    """Threads for predictions of small pictures by a small network, as many at once as there are cores."""

    def __init__(self, cores: int, queue: int) -> None:
        self.limiter = Limiter(SMALL_PREDICTIONS, min(cores, MAX_SMALL_RUNS), queue=queue)
        # none is started before there is work for it
        self._threads = ThreadPoolExecutor(self.limiter.size, "front")
        self.durations = RecentDurations()

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """Run the work in a thread when its turn comes, and return its result."""
        place = LimitPlace(self.limiter)
        place.seconds_for = self._seconds_for
        with WAITING.track_inprogress():
            await place.take_async()
        future = self._threads.submit(copy_context().run, self.durations.measure, work)
        # once the work has ended: the caller may be gone before
        future.add_done_callback(lambda _: place.give_back())
        return await asyncio.wrap_future(future)

    def _seconds_for(self, number: int) -> int | None:
        return self.durations.seconds_for(number / self.limiter.size)
