"""The predictor port: predicts decoded images with the current champion.

On a CPU a large network uses all cores for one image, one run at a time; a small one uses one core, with as many runs
at once as there are cores; on a GPU a run takes along whoever waits. Who waits stands in a queue, in the order of
arrival, and whom it has no room for is refused. Where the settings name a backend, the network runs there alone.
"""

import math
import threading
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from app.database.tables import Alias
from app.http.errors import NoRelease, ServiceOverloaded, ServiceUnavailable
from app.http.observability import BATCHES, WAITING
from app.http.traces import record_span
from app.predictions.remote import InferenceBackend, NetworkMismatchError
from ml.images.preprocess import Pixels
from ml.messages import Message
from ml.release.artifact import Release, ReleaseError, read_release
from ml.release.device import Device, fallen_back, runs_on_cuda
from ml.release.ood_score import quality_features_for_release
from ml.release.padded_batching import worth_taking
from ml.release.predictor import BATCH, Prediction, Predictor, prediction_of
from ml.util.cores import cores

QUEUE_SECONDS = 10.0
#: Releases that are kept loaded beside the champion.
MAX_OTHERS = 2
#: Weight of the newest run in the time that a run takes.
_NEWEST = 0.2
#: A network is small where one core runs one image in less than this. A second core spares such a run a third of its
#: time; with an image of its own it does as much again.
_SMALL_SECONDS = 0.008
#: Logits (N, K) and features (N, D).
Outputs = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]


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
        self.backend, self.device, self.queue = backend, device, queue
        # those who wait, who came first first; while somebody waits, cores are taken
        self._wanted: deque[_PendingPrediction] = deque()
        self._taken, self._run_seconds = 0, 0.0
        self._lock = threading.Lock()
        self._under_way = threading.BoundedSemaphore(queue)
        self._loading = threading.Lock()
        self._served: LoadedRelease | None = None
        self._others: OrderedDict[uuid.UUID, LoadedRelease] = OrderedDict()
        self.fault: str | None = None

    def served(self, alias: Alias | None) -> LoadedRelease:
        """The release of an alias, reloaded when it has moved; a release that fails leaves the old one serving."""
        if alias is None:
            raise NoRelease("no release is served; add one with `secondread release add`")
        with self._loading:
            loaded = self._served
            if loaded is not None and loaded.revision == alias.revision:
                return loaded
            try:
                release = read_release(self.folder_of(alias.release_id))
                self._served = self._loaded(alias.release_id, alias.revision, release)
                self.fault = None
            except NetworkMismatchError as exc:
                raise ServiceUnavailable("the inference backend has another network than the release") from exc
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

    def _takes(self, wanted: "_PendingPrediction") -> int:
        """Cores that a run takes, never more than there are."""
        return min(wanted.served.cores or self._cores, self._cores)

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
        logits, features = self._outputs(_PendingPrediction(served, pixels))
        release = served.predictor.release
        # what needs no network is done outside the queue, while the next one runs
        return prediction_of(release, logits, features, quality_features_for_release(release, pixels[None]))

    def predict_inputs(self, served: LoadedRelease, inputs: npt.NDArray[np.float32]) -> Prediction:
        """Predict what others have preprocessed; features alone tell whether it is unlike the release's images."""
        return prediction_of(served.predictor.release, *self._outputs(_PendingPrediction(served, inputs=inputs)))

    def _outputs(self, wanted: "_PendingPrediction") -> Outputs:
        """Run the network for a prediction when its turn comes."""
        elsewhere = wanted.served.predictor.network.own_queue
        with WAITING.track_inprogress(), record_span("inference", release=str(wanted.served.release_id)):
            return self._run_elsewhere(wanted) if elsewhere else self._run_in_turn(wanted)

    def _too_many(self, number: int, wanted: "_PendingPrediction") -> ServiceOverloaded:
        """Build the error for a full queue, with the seconds to wait."""
        return ServiceOverloaded(
            "too many predictions are waiting; try again shortly", self._seconds_for(number, wanted)
        )

    def _run_elsewhere(self, wanted: "_PendingPrediction") -> Outputs:
        """Run the network on a backend, which orders concurrent requests itself."""
        if not self._under_way.acquire(blocking=False):
            raise self._too_many(self.queue, wanted)
        try:
            self._run([wanted])
            return wanted.result.result()
        finally:
            self._under_way.release()

    def _seconds_for(self, number: int, wanted: "_PendingPrediction") -> int | None:
        """Whole seconds that the network takes for so many images, by its recent runs; None before the first."""
        if not self._run_seconds:
            return None
        # a backend with a queue of its own has all of them at once
        own_queue = wanted.served.predictor.network.own_queue
        together = number if own_queue else self._most(wanted) * (self._cores // self._takes(wanted))
        return max(1, math.ceil(math.ceil(number / together) * self._run_seconds))

    def _most(self, wanted: "_PendingPrediction") -> int:
        """Images that one run of the network takes."""
        return self.batch or (BATCH if wanted.served.predictor.on_gpu else 1)

    def _run_in_turn(self, wanted: "_PendingPrediction") -> Outputs:
        """Run the network in this thread, or in that of a caller that batched this image."""
        self._wait_for_turn(wanted)
        if not wanted.result.done():
            taken = self._with_others(wanted)
            try:
                self._run(taken)
            finally:
                self._hand_over(taken)
        return wanted.result.result()

    def _wait_for_turn(self, mine: "_PendingPrediction") -> None:
        """Wait until the network is this one's, or until somebody has taken this image along."""
        with self._lock:
            if not self._wanted and self._taken + self._takes(mine) <= self._cores:
                self._taken += self._takes(mine)
                return
            if len(self._wanted) >= self.queue:
                raise self._too_many(self.queue + 1, mine)
            self._wanted.append(mine)
        if mine.turn.wait(QUEUE_SECONDS):
            return
        with self._lock:
            if mine in self._wanted:
                wait = self._seconds_for(len(self._wanted), mine)
                self._wanted.remove(mine)
                self._wake_those_who_may_run()  # who waited behind may run beside those that do
                raise ServiceOverloaded(
                    Message("the prediction waited {n:.0f} s; try again shortly", n=QUEUE_SECONDS), wait
                )
        mine.turn.wait()  # its turn has come just now, or it is being run with others

    def _with_others(self, mine: "_PendingPrediction") -> list["_PendingPrediction"]:
        """The image and those that go with it, whose threads go on waiting."""
        with self._lock:
            others = [image for image in self._wanted if image.goes_with(mine)][: self._most(mine) - 1]
            if self.batch is None:  # no size was set: on a GPU, that of a batch which is not filled up for nothing
                others = others[: worth_taking(1 + len(others)) - 1]
            for image in others:
                self._wanted.remove(image)
        return [mine, *others]

    def _hand_over(self, taken: list["_PendingPrediction"]) -> None:
        """Wake batched callers, and then waiting predictions in arrival order."""
        for image in taken[1:]:
            image.turn.set()
        with self._lock:
            self._taken -= self._takes(taken[0])
            self._wake_those_who_may_run()

    def _wake_those_who_may_run(self) -> None:
        """Start waiting predictions in arrival order while cores are free."""
        while self._wanted and self._taken + self._takes(self._wanted[0]) <= self._cores:
            first = self._wanted.popleft()
            self._taken += self._takes(first)
            first.turn.set()

    def _run(self, taken: list["_PendingPrediction"]) -> None:
        """Run the network once; each image gets its outputs, or all of them the failure."""
        BATCHES.observe(len(taken))
        started = time.perf_counter()
        with record_span("network", images=len(taken)):
            _run_network(taken)
        seconds = time.perf_counter() - started
        with self._lock:
            self._run_seconds += _NEWEST * (seconds - self._run_seconds) if self._run_seconds else seconds


@dataclass(frozen=True, eq=False)
class _PendingPrediction:
    """A prediction that waits for the network: the pixels of one image, or network inputs."""

    served: LoadedRelease
    pixels: Pixels | None = None
    # of any number of images
    inputs: npt.NDArray[np.float32] | None = None
    # set once the network is this one's, or the result is there
    turn: threading.Event = field(default_factory=threading.Event)
    result: "Future[Outputs]" = field(default_factory=Future)

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
