"""The predictor port: a decoded image in, a prediction out, by the release that is champion now.

One run of the network at a time: on a CPU it uses all cores for one image, on a GPU it takes along whoever waits.
Those that wait stand in a bounded queue and are refused beyond it. Where the settings name a backend, the network runs
there, many runs at once, and never here.
"""

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from app.platform.errors import NoRelease, Overloaded, Unavailable
from app.platform.observability import BATCHES, WAITING
from app.platform.tracing import span
from app.predictions.remote import Backend, OtherNetwork
from app.tables import Alias
from ml.images.preprocess import Pixels
from ml.release.artifact import Release, ReleaseError, read_release
from ml.release.device import Device, fallen_back, runs_on_cuda
from ml.release.predictor import BATCH, Prediction, Predictor, prediction_of
from ml.release.unlikeness import appearance_of

QUEUE_SECONDS = 10.0
#: Releases that are kept loaded beside the champion.
MAX_OTHERS = 2


@dataclass(frozen=True)
class Served:
    """A loaded release with its identifier and the alias revision it was loaded for."""

    release_id: uuid.UUID
    revision: int
    predictor: Predictor


class Inference:
    """The release that is served, its network in this process or behind a backend.

    Args:
        folder_of: where a release lies, by its identifier.
        threads: of one network run, 0 for all cores.
        queue: predictions that may wait.
        batch: images per run of the network at most; None: many on a GPU, one on a CPU, where batches do not pay.
        backend: where the network runs; None: in this process.
        device: on which of this process.
    """

    def __init__(
        self,
        folder_of: Callable[[uuid.UUID], Path],
        threads: int,
        queue: int,
        batch: int | None = None,
        backend: Backend | None = None,
        device: Device = "auto",
    ) -> None:
        self.folder_of, self.threads, self.batch = folder_of, threads, batch
        self.backend, self.device = backend, device
        self._wanted: list[_Wanted] = []
        self._turn, self._busy = threading.Condition(), False
        self._waiting = threading.BoundedSemaphore(queue)
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
                self._served = Served(alias.release_id, alias.revision, self.predictor(release))
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
        """End what is kept open towards a backend."""
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
        return Predictor(release, self.threads, device=self.device, network=network)

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
                found = known or Served(release_id, -1, self.predictor(read_release(self.folder_of(release_id))))
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
        return self._wait_for(_Wanted(served, image))

    def predict_inputs(self, served: Served, inputs: npt.NDArray[np.float32]) -> Prediction:
        """Predict what others have preprocessed; features alone tell whether it is unlike the release's images.

        Args:
            served: the release.
            inputs: (N, C, H, W) of the network.

        Raises:
            Overloaded: too many predictions wait, or this one waited too long.
        """
        return self._wait_for(_Wanted(served, inputs=inputs))

    def _wait_for(self, wanted: "_Wanted") -> Prediction:
        """Its prediction, once it is its turn.

        Raises:
            Overloaded: too many predictions wait, or this one waited too long.
        """
        if not self._waiting.acquire(blocking=False):
            raise Overloaded("too many predictions are waiting; try again shortly")
        WAITING.inc()
        try:
            with span("inference", release=str(wanted.served.release_id)):
                return self._predicted(wanted)
        finally:
            WAITING.dec()
            self._waiting.release()

    def _predicted(self, wanted: "_Wanted") -> Prediction:
        """Its prediction, by a run of the network in this thread or in that of somebody who took it along.

        Raises:
            Overloaded: it waited too long.
        """
        if wanted.served.predictor.network.own_queue:
            self._run([wanted])
            return wanted.result.result()
        taken = self._turn_of(wanted)
        mine = taken[0]
        if not mine.result.done():
            try:
                self._run(taken)
            finally:
                with self._turn:
                    self._busy = False
                    self._turn.notify_all()
        return mine.result.result()

    def _turn_of(self, mine: "_Wanted") -> list["_Wanted"]:
        """Wait until the network is free, or until somebody has taken this image along.

        Returns:
            This image, and where it must be run now, those that go with it.

        Raises:
            Overloaded: it took too long.
        """
        with self._turn:
            self._wanted.append(mine)
            if not self._turn.wait_for(lambda: mine.result.done() or not self._busy, QUEUE_SECONDS):
                if mine in self._wanted:
                    self._wanted.remove(mine)
                    raise Overloaded(f"the prediction waited {QUEUE_SECONDS:.0f} s; try again shortly")
                self._turn.wait_for(mine.result.done)  # it is being run with others
            if mine.result.done():
                return [mine]
            self._busy = True
            most = self.batch or (BATCH if mine.served.predictor.on_gpu else 1)
            others = [image for image in self._wanted if image is not mine and image.goes_with(mine)]
            taken = [mine, *others[: most - 1]]
            self._wanted = [image for image in self._wanted if image not in taken]
            return taken

    def _run(self, taken: list["_Wanted"]) -> None:
        """Run the network once; each image gets its prediction, or all of them the failure."""
        BATCHES.observe(len(taken))
        with span("network", images=len(taken)):
            self._run_network(taken)

    def _run_network(self, taken: list["_Wanted"]) -> None:
        predictor = taken[0].served.predictor
        try:
            if taken[0].inputs is not None:
                taken[0].result.set_result(prediction_of(predictor.release, *predictor.run(taken[0].inputs)))
                return
            pixels = predictor.pixels([wanted.image for wanted in taken if wanted.image is not None])
            logits, features = predictor.outputs(pixels)
            seen = appearance_of(predictor.release, np.stack(pixels))
            for row, wanted in enumerate(taken):
                one = slice(row, row + 1)
                own = None if seen is None else seen[one]
                wanted.result.set_result(prediction_of(predictor.release, logits[one], features[one], own))
        except Exception as exc:  # whatever it is, each caller must learn of it
            for wanted in taken:
                if not wanted.result.done():
                    wanted.result.set_exception(exc)


@dataclass(frozen=True, eq=False)
class _Wanted:
    """An image, or inputs of the network, that waits for its prediction."""

    served: Served
    image: Image.Image | Pixels | None = None
    inputs: npt.NDArray[np.float32] | None = None
    result: "Future[Prediction]" = field(default_factory=Future)

    def goes_with(self, other: "_Wanted") -> bool:
        """Whether one run of the network may take both."""
        return self.served is other.served and self.image is not None and other.image is not None
