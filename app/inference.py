"""The predictor port: a decoded image in, a prediction out, by the release that is champion now.

On a CPU one network run at a time uses all cores; others wait in a bounded queue and are refused beyond it.
"""

import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from sqlalchemy.orm import Session

from app.errors import NoRelease, Overloaded
from app.observability import WAITING
from app.releases.queries import champion
from ml.artifact import ReleaseError, read_release
from ml.predictor import Prediction, Predictor

QUEUE_SECONDS = 10.0


@dataclass(frozen=True)
class Served:
    """A loaded release with its identifier and the alias revision it was loaded for."""

    release_id: uuid.UUID
    revision: int
    predictor: Predictor


class LocalInference:
    """ONNX Runtime in this process.

    Args:
        releases_folder: holds one folder a release, named by its identifier.
        threads: of one network run, 0 for all cores.
        queue: predictions that may wait.
    """

    def __init__(self, releases_folder: Path, threads: int, queue: int) -> None:
        self.releases_folder, self.threads = releases_folder, threads
        self._waiting = threading.BoundedSemaphore(queue)
        self._running = threading.Lock()
        self._loading = threading.Lock()
        self._served: Served | None = None
        self.fault: str | None = None

    def served(self, session: Session) -> Served:
        """The champion, loaded anew when its alias has moved; a release that fails leaves the old one serving.

        Raises:
            NoRelease: there is no champion, or the first one cannot be loaded.
        """
        alias = champion(session)
        if alias is None:
            raise NoRelease("no release is served; add one with `secondread release add`")
        with self._loading:
            held = self._served
            if held is not None and held.revision == alias.revision:
                return held
            try:
                release = read_release(self.releases_folder / str(alias.release_id))
                self._served = Served(alias.release_id, alias.revision, Predictor(release, self.threads))
                self.fault = None
            except ReleaseError as exc:
                self.fault = f"release {alias.release_id} cannot be loaded: {exc}"
                if held is None:
                    raise NoRelease("the release cannot be loaded; see /readyz") from exc
                return held
            return self._served

    def predict(self, served: Served, image: Image.Image) -> Prediction:
        """Predict one decoded image.

        Raises:
            Overloaded: too many predictions wait, or this one waited too long.
        """
        if not self._waiting.acquire(blocking=False):
            raise Overloaded("too many predictions are waiting; try again shortly")
        WAITING.inc()
        try:
            started = time.monotonic()
            if not self._running.acquire(timeout=QUEUE_SECONDS):
                waited = time.monotonic() - started
                raise Overloaded(f"the prediction waited {waited:.0f} s; try again shortly")
            try:
                return served.predictor.predict([image])
            finally:
                self._running.release()
        finally:
            WAITING.dec()
            self._waiting.release()
