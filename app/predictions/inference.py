"""The predictor port: a decoded image in, a prediction out, by the release that is champion now.

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
from app.http.errors import NoRelease, Overloaded, Unavailable
from app.http.observability import BATCHES, WAITING
from app.http.traces import span
from app.predictions.remote import Backend, OtherNetwork
from ml.images.preprocess import Pixels
from ml.messages import Message
from ml.release.artifact import Release, ReleaseError, read_release
from ml.release.device import Device, fallen_back, runs_on_cuda
from ml.release.ood_score import appearance_of
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
class Served:
    """A loaded release.

    Attributes:
        release_id: its identifier.
        revision: of the alias for which it was loaded.
        predictor: with its network.
        cores: that a run of the network takes; None: all, so that nothing runs beside it.
        is_small: whether one core runs it in milliseconds.
    """

    release_id: uuid.UUID
    revision: int
    predictor: Predictor
    cores: int | None = None
    is_small: bool = False


class Inference:
    """The release that is served, its network in this process or behind a backend.

    Args:
        folder_of: where a release lies, by its identifier.
        threads: of one network run; 0: all cores for a large network, one for a small one.
        queue: predictions that may wait; of a backend, that may be under way.
        batch: images per run of the network at most; None: many on a GPU, one on a CPU, where batches do not pay.
        backend: where the network runs; None: in this process.
        device: on which of this process.
        sharing: processes that share the cores.
    """

    def __init__(
        self,
        folder_of: Callable[[uuid.UUID], Path],
        threads: int,
        queue: int,
        batch: int | None = None,
        backend: Backend | None = None,
        device: Device = "auto",
        sharing: int = 1,
    ) -> None:
        self.folder_of, self.threads, self.batch = folder_of, threads, batch
        self._cores, self._all = max(1, cores() // sharing), 0 if sharing == 1 else max(1, cores() // sharing)
        self.backend, self.device, self.queue = backend, device, queue
        # those who wait, who came first first; while somebody waits, cores are taken
        self._wanted: deque[_Wanted] = deque()
        self._taken, self._run_seconds = 0, 0.0
        self._lock = threading.Lock()
        self._under_way = threading.BoundedSemaphore(queue)
        self._loading = threading.Lock()
        self._served: Served | None = None
        self._others: OrderedDict[uuid.UUID, Served] = OrderedDict()
        self.fault: str | None = None

    def served(self, alias: Alias | None) -> Served:
        """The release of an alias, reloaded when it has moved; a release that fails leaves the old one serving.

        Args:
            alias: the champion's row, None where there is none.

        Raises:
            NoRelease: there is no champion, or the first one cannot be loaded.
            Unavailable: the backend does not answer, or has another network: no earlier release answers instead.
        """
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
            except OtherNetwork as exc:
                raise Unavailable("the inference backend has another network than the release") from exc
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
        """Where networks run: remote, cuda or cpu; the latter with the reason where ``auto`` could not use the GPU.

        Raises:
            DeviceError: not where it was asked for: nothing starts then.
        """
        if self.backend is not None:
            return "remote"
        if runs_on_cuda(self.device):
            return "cuda"
        fault = fallen_back(self.device)
        return "cpu" if fault is None else f"cpu: {fault}"

    def check_at_start(self, alias: Alias | None) -> str | None:
        """Refuse to start with a backend that has another network than the champion.

        Args:
            alias: the champion's row, None where there is none.

        Returns:
            What to warn of where the backend does not answer yet, None otherwise.

        Raises:
            OtherNetwork: it has another one.
        """
        if self.backend is None or alias is None:
            return None
        try:
            self.backend.network(read_release(self.folder_of(alias.release_id)))
        except Unavailable as exc:
            return f"{exc.detail}; until then predictions are refused, and nothing is predicted here instead"
        return None

    def predictor(self, release: Release) -> Predictor:
        """A release with its network, wherever that runs.

        Raises:
            ReleaseError: the network cannot be run, or the backend has another one.
            Unavailable: the backend does not answer.
        """
        network = None if self.backend is None else self.backend.network(release)
        return Predictor(release, self.threads or self._all, device=self.device, network=network)

    def _loaded(self, release_id: uuid.UUID, revision: int, release: Release) -> Served:
        """A release ready to serve, its network with as many threads and runs at once as suit it.

        Raises:
            ReleaseError: the network cannot be run, or the backend has another one.
            Unavailable: the backend does not answer.
        """
        predictor = self.predictor(release)
        if self.backend is not None or predictor.on_gpu:  # whose buffers belong to one run
            return Served(release_id, revision, predictor)
        if self.threads > 1:
            return Served(release_id, revision, predictor, self.threads)
        alone = self._cores == 1 or self.threads == 1
        by_one_core = predictor if alone else Predictor(release, 1, device=self.device)  # to the bit what more give
        is_small = by_one_core.core_seconds(enough=4 * _SMALL_SECONDS) < _SMALL_SECONDS
        if alone or not is_small:
            return Served(release_id, revision, predictor, self.threads or None, is_small)
        return Served(release_id, revision, by_one_core, 1, is_small)

    def _takes(self, wanted: "_Wanted") -> int:
        """Cores that a run takes, never more than there are."""
        return min(wanted.served.cores or self._cores, self._cores)

    def other(self, release_id: uuid.UUID) -> Served:
        """A release that need not be the champion, of which a few stay loaded.

        Raises:
            NoRelease: it cannot be loaded.
        """
        with self._loading:
            if self._served is not None and self._served.release_id == release_id:
                return self._served
            known = self._others.pop(release_id, None)
            try:
                found = known or self._loaded(release_id, -1, read_release(self.folder_of(release_id)))
            except ReleaseError as exc:
                raise NoRelease("the release cannot be loaded; see /readyz") from exc
            self._others[release_id] = found
            while len(self._others) > MAX_OTHERS:
                self._others.popitem(last=False)
            return found

    def predict(self, served: Served, image: Image.Image | Pixels) -> Prediction:
        """Predict one decoded image, on a GPU together with those that wait for the same release.

        Args:
            served: the release.
            image: decoded, or what the release's preprocessing made of it, uint8 (size, size, C).

        Raises:
            Overloaded: too many predictions wait, or this one waited too long.
        """
        (pixels,) = served.predictor.pixels([image])
        logits, features = self._outputs(_Wanted(served, pixels))
        release = served.predictor.release
        # what needs no network is done outside the queue, while the next one runs
        return prediction_of(release, logits, features, appearance_of(release, pixels[None]))

    def predict_inputs(self, served: Served, inputs: npt.NDArray[np.float32]) -> Prediction:
        """Predict what others have preprocessed; features alone tell whether it is unlike the release's images.

        Args:
            served: the release.
            inputs: (N, C, H, W) of the network.

        Raises:
            Overloaded: too many predictions wait, or this one waited too long.
        """
        return prediction_of(served.predictor.release, *self._outputs(_Wanted(served, inputs=inputs)))

    def _outputs(self, wanted: "_Wanted") -> Outputs:
        """What the network makes of it, once it is its turn.

        Raises:
            Overloaded: too many predictions wait, or this one waited too long.
        """
        elsewhere = wanted.served.predictor.network.own_queue
        with WAITING.track_inprogress(), span("inference", release=str(wanted.served.release_id)):
            return self._run_elsewhere(wanted) if elsewhere else self._run_in_turn(wanted)

    def _too_many(self, number: int, wanted: "_Wanted") -> Overloaded:
        """What is said to one more than so many that wait."""
        return Overloaded("too many predictions are waiting; try again shortly", self._seconds_for(number, wanted))

    def _run_elsewhere(self, wanted: "_Wanted") -> Outputs:
        """What a backend makes of it, which puts those that come at once in order itself.

        Raises:
            Overloaded: too many are under way.
        """
        if not self._under_way.acquire(blocking=False):
            raise self._too_many(self.queue, wanted)
        try:
            self._run([wanted])
            return wanted.result.result()
        finally:
            self._under_way.release()

    def _seconds_for(self, number: int, wanted: "_Wanted") -> int | None:
        """Whole seconds that the network takes for so many images, by its recent runs; None before the first."""
        if not self._run_seconds:
            return None
        # a backend with a queue of its own has all of them at once
        own_queue = wanted.served.predictor.network.own_queue
        together = number if own_queue else self._most(wanted) * (self._cores // self._takes(wanted))
        return max(1, math.ceil(math.ceil(number / together) * self._run_seconds))

    def _most(self, wanted: "_Wanted") -> int:
        """Images that one run of the network takes."""
        return self.batch or (BATCH if wanted.served.predictor.on_gpu else 1)

    def _run_in_turn(self, wanted: "_Wanted") -> Outputs:
        """What the network makes of it, by a run in this thread or in that of somebody who took it along.

        Raises:
            Overloaded: too many wait, or this one waited too long.
        """
        self._wait_for_turn(wanted)
        if not wanted.result.done():
            taken = self._with_others(wanted)
            try:
                self._run(taken)
            finally:
                self._hand_over(taken)
        return wanted.result.result()

    def _wait_for_turn(self, mine: "_Wanted") -> None:
        """Wait until the network is this one's, or until somebody has taken this image along.

        Raises:
            Overloaded: too many wait, or it took too long.
        """
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
                raise Overloaded(Message("the prediction waited {n:.0f} s; try again shortly", n=QUEUE_SECONDS), wait)
        mine.turn.wait()  # its turn has come just now, or it is being run with others

    def _with_others(self, mine: "_Wanted") -> list["_Wanted"]:
        """The image and those that go with it, whose threads go on waiting."""
        with self._lock:
            others = [image for image in self._wanted if image.goes_with(mine)][: self._most(mine) - 1]
            if self.batch is None:  # no size was set: on a GPU, that of a batch which is not filled up for nothing
                others = others[: worth_taking(1 + len(others)) - 1]
            for image in others:
                self._wanted.remove(image)
        return [mine, *others]

    def _hand_over(self, taken: list["_Wanted"]) -> None:
        """Wake those who were taken along, and of those who wait whoever came first."""
        for image in taken[1:]:
            image.turn.set()
        with self._lock:
            self._taken -= self._takes(taken[0])
            self._wake_those_who_may_run()

    def _wake_those_who_may_run(self) -> None:
        """Wake who came first, as long as there are cores for that one: nobody overtakes."""
        while self._wanted and self._taken + self._takes(self._wanted[0]) <= self._cores:
            first = self._wanted.popleft()
            self._taken += self._takes(first)
            first.turn.set()

    def _run(self, taken: list["_Wanted"]) -> None:
        """Run the network once; each image gets its outputs, or all of them the failure."""
        BATCHES.observe(len(taken))
        started = time.perf_counter()
        with span("network", images=len(taken)):
            _run_network(taken)
        seconds = time.perf_counter() - started
        with self._lock:
            self._run_seconds += _NEWEST * (seconds - self._run_seconds) if self._run_seconds else seconds


@dataclass(frozen=True, eq=False)
class _Wanted:
    """What the network sees of an image, or inputs of the network, that wait for what it makes of them.

    Attributes:
        served: the release.
        pixels: of one image.
        inputs: of any number of images.
        turn: set once the network is this one's, or the result is there.
        result: of the network.
    """

    served: Served
    pixels: Pixels | None = None
    inputs: npt.NDArray[np.float32] | None = None
    turn: threading.Event = field(default_factory=threading.Event)
    result: "Future[Outputs]" = field(default_factory=Future)

    def goes_with(self, other: "_Wanted") -> bool:
        """Whether one run of the network may take both."""
        return self.served is other.served and self.pixels is not None and other.pixels is not None


def _run_network(taken: list[_Wanted]) -> None:
    predictor = taken[0].served.predictor
    try:
        if taken[0].inputs is not None:
            taken[0].result.set_result(predictor.run(taken[0].inputs))
            return
        logits, features = predictor.outputs([wanted.pixels for wanted in taken if wanted.pixels is not None])
        for row, wanted in enumerate(taken):
            wanted.result.set_result((logits[row : row + 1], features[row : row + 1]))
    except BaseException as exc:  # whatever it is, each caller must learn of it
        for wanted in taken:
            if not wanted.result.done():
                wanted.result.set_exception(exc)
