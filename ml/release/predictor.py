"""Inference by ONNX Runtime and calibration, shared by service, evaluation and export parity."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from ml.distributions.families import PredictiveDistribution
from ml.images.augmented_views import views
from ml.images.image_quality_features import compute_quality_features, feature_columns
from ml.images.preprocess import Pixels
from ml.release.artifact import Release, ReleaseError
from ml.release.device import Device, DeviceError, PaddedRuns, open_session
from ml.release.ood_detector import OodScores

#: Images a run of the network at most, in predictions of many images.
BATCH = 64
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Prediction:
    """Predictions of N images."""

    distribution: PredictiveDistribution
    # (N, K) of the network
    logits: Floats
    # (N, D) of the network, or pooled vectors before a dropout head
    features: Floats
    # (N,) from the training cells, NaN if the release has no distance
    feature_distance: npt.NDArray[np.float64]
    unlikeness: OodScores
    # (N, F) statistics of their pixels, None if the release does not judge them
    appearance: Floats | None = None

    @property
    def out_of_distribution(self) -> npt.NDArray[np.bool_]:
        """Mask of the images that are out of distribution."""
        return self.unlikeness.flagged


class Network(Protocol):
    """Runner of ``network.onnx``, local or remote."""

    @property
    def on_gpu(self) -> bool:
        """Whether images that wait had better go together."""

    @property
    def own_queue(self) -> bool:
        """Whether it takes many runs at once, and puts them in order itself."""

    def trouble(self) -> str | None:
        """Why it cannot be run just now, None if it can."""

    def run(self, inputs: Floats) -> tuple[Floats, Floats]:
        """Logits (N, K) and features (N, D) of network inputs (N, C, H, W)."""


class LocalNetwork:
    """The network of a release in this process."""

    own_queue = False

    def __init__(self, release: Release, threads: int = 0, *, device: Device = "auto") -> None:
        self.session = open_session(str(release.network), threads, device=device)
        names = [node.name for node in self.session.get_outputs()]
        if names != ["logits", "features"] or [node.name for node in self.session.get_inputs()] != ["image"]:
            raise ReleaseError(f"{release.network}: must map image to logits and features, has {names}")
        self._padded = PaddedRuns(self.session, "cuda") if self.on_gpu else None

    @property
    def on_gpu(self) -> bool:
        """Whether the network runs on a GPU."""
        return "CUDAExecutionProvider" in self.session.get_providers()

    def trouble(self) -> str | None:
        """Return None: what is loaded runs."""
        return None

    def run(self, inputs: Floats) -> tuple[Floats, Floats]:
        """Logits (N, K) and features (N, D) of network inputs (N, C, H, W)."""
        if self._padded is not None:
            return self._padded(inputs)
        logits, features = self.session.run(["logits", "features"], {"image": inputs})
        return np.asarray(logits, dtype=np.float32), np.asarray(features, dtype=np.float32)


class Predictor:
    """A loaded release: images in, predictive distributions out."""

    def __init__(
        self, release: Release, threads: int = 0, *, device: Device = "auto", network: Network | None = None
    ) -> None:
        self.release = release
        if network is not None:
            self.network = network
            logits, features = self.run(self._blank())
        else:
            try:
                self.network = LocalNetwork(release, threads, device=device)
                logits, features = self.run(self._blank())
            except (ReleaseError, DeviceError):
                raise
            except Exception as exc:  # the runtime raises its own unrelated classes
                raise ReleaseError(f"{release.network}: ONNX Runtime cannot run it: {exc}") from exc
        if logits.shape[1] != len(release.classes):
            raise ReleaseError(f"{release.network}: {logits.shape[1]} outputs for {len(release.classes)} classes")
        self.n_features = int(features.shape[1])

    @property
    def on_gpu(self) -> bool:
        """Whether images that wait had better go together."""
        return self.network.on_gpu

    def run(self, inputs: Floats) -> tuple[Floats, Floats]:
        """Logits (N, K) and features (N, D) of network inputs (N, C, H, W)."""
        return self.network.run(inputs)

    def _blank(self) -> Floats:
        side, channels = self.release.preprocessing.size, self.release.preprocessing.channels
        return np.zeros((1, channels, side, side), dtype=np.float32)

    def core_seconds(self, enough: float = math.inf) -> float:
        """Processor seconds per image of one run."""
        blank = self._blank()
        seconds: list[float] = []
        for _ in range(3):
            started = time.thread_time()  # of this thread alone
            self.run(blank)
            seconds.append(time.thread_time() - started)
            if seconds[-1] >= enough:
                break
        return min(seconds)

    def predict_augmented(
        self, images: Sequence[Image.Image], *, samples: int, seed: int = 0
    ) -> PredictiveDistribution:
        """Predict decoded images by an ensemble of augmented views."""
        if not images:
            raise ValueError("no image to predict")
        if self.release.head is not None or self.release.calibration.refinement.loadings is not None:
            raise ValueError("this release predicts by an ensemble already: leave --tta out")
        orientation = self.release.card.get("orientation", "fixed")
        parts = []
        for start in range(0, len(images), BATCH):
            batch = np.stack([self.release.preprocessing(image) for image in images[start : start + BATCH]])
            members = [self.run(view) for view in views(batch, orientation, samples=samples, seed=seed)]
            parts.append([np.stack(column) for column in zip(*members, strict=True)])
        logits, features = (np.concatenate(column, axis=1) for column in zip(*parts, strict=True))
        return self.release.calibration.apply(logits, features)

    def predict(self, images: Sequence[Image.Image | Pixels]) -> Prediction:
        """Predict images, decoded or as network pixels, uint8 (size, size, C)."""
        pixels = self.pixels(images)
        appearance = quality_features_for_release(self.release, np.stack(pixels))
        return prediction_of(self.release, *self.outputs(pixels), appearance)

    def pixels(self, images: Sequence[Image.Image | Pixels]) -> list[Pixels]:
        """Network pixels, uint8 (size, size, C) each, of decoded images."""
        if not images:
            raise ValueError("no image to predict")
        return [
            image if isinstance(image, np.ndarray) else self.release.preprocessing.pixels(image) for image in images
        ]

    def outputs(self, images: Sequence[Image.Image | Pixels]) -> tuple[Floats, Floats]:
        """Logits (N, K) and features (N, D) of images as of ``pixels``."""
        pixels, normalise = self.pixels(images), self.release.preprocessing.normalise
        batches = [np.stack(pixels[start : start + BATCH]) for start in range(0, len(pixels), BATCH)]
        logits, features = zip(*(self.run(normalise(batch)) for batch in batches), strict=True)
        return np.concatenate(logits), np.concatenate(features)


def quality_features_for_release(release: Release, pixels: Pixels) -> Floats | None:
    """Quality features (N, F), None if the detector needs none."""
    detector = release.detector
    return compute_quality_features(pixels) if detector is not None and detector.reads_pixels else None


def _ood_scores(release: Release, logits: Floats, features: Floats, appearance: Floats | None) -> OodScores:
    if release.detector is None:
        unknown = np.full(len(logits), np.nan)
        return OodScores(np.zeros(len(logits), dtype=bool), unknown, unknown, [[] for _ in logits])
    side, channels = release.preprocessing.size, release.preprocessing.channels
    named = np.asarray(np.asarray(logits).argmax(axis=1), dtype=np.int64)
    return release.detector.judge(features, named, appearance, feature_columns(side, channels))


def prediction_of(release: Release, logits: Floats, features: Floats, appearance: Floats | None = None) -> Prediction:
    """Prediction from network outputs (N, K) and (N, D)."""
    distance = np.full(len(logits), np.nan) if release.distance is None else release.distance(features)
    unlikeness = _ood_scores(release, logits, features, appearance)
    distribution = release.calibration.apply(*release.by_members(logits, features))
    return Prediction(distribution, logits, features, distance, unlikeness, appearance)
