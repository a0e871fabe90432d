"""Run folder on disk: configuration, log, state and cached outputs."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np
import numpy.typing as npt

from ml.calibration.calibrators import FitDocument
from ml.charts.rows import EpochMetrics
from ml.datasets.base import ImageDataset
from ml.documents import to_document
from ml.images.preprocess import Orientation, PreprocessingDocument
from ml.metrics.jackknife import EstimateDocument
from ml.release.card import ClassDocument, DisagreementDocument, DropoutDocument
from ml.release.training_index import INDEX_FILE
from ml.util.arrays import IntArray
from ml.util.files import read_json, write_bytes_atomically, write_json

#: Dropout rate, weight (out, in) and bias (out,) of one layer of a network's head.
HeadArrays = tuple[float, npt.NDArray[np.float32], npt.NDArray[np.float32]]
_LAYER = ("rate", "weight", "bias")
#: Share of one cycle in which the rate rises.
_WARMUP_SHARE = 0.25
#: Further arguments of a data set's loader.
DataOptions = dict[str, int]


class TrainDocument(TypedDict):
    """Fields of ``TrainConfig`` that other steps read."""

    data_options: DataOptions
    network: str
    seed: int


class DatasetDocument(TypedDict):
    """Data set section of a run."""

    name: str
    classes: list[ClassDocument]
    preprocessing: PreprocessingDocument
    orientation: Orientation
    partitions: dict[str, int]
    class_counts: dict[str, list[int]]
    annotators: list[str] | None
    calibration_partition: str
    split_by: str
    source: str
    licence: str


class RunDocument(TypedDict):
    """config.json: request, data and versions of a run."""

    train: TrainDocument
    dataset: DatasetDocument
    versions: dict[str, str]


class CalibrationReport(TypedDict):
    """calibration_report.json: calibration, and held-out metrics by step."""

    fit: FitDocument
    partition: str
    split_by: str
    n_held_out: int
    held_out: dict[str, dict[str, EstimateDocument]]
    mc_dropout: DropoutDocument | None
    disagreement_calibrated: bool
    constant_concentration: bool
    disagreement: DisagreementDocument | None


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a training; equal ones give equal weights on a CPU."""

    data: str  # name of a data set, or a folder
    data_options: DataOptions  # further arguments of its loader
    network: str  # name of a network
    epochs: int  # at most
    batch_size: int  # images per step
    learning_rate: float  # of Adam after warm-up, or the largest of one cycle
    warmup_epochs: int  # over which the rate rises from a tenth
    decay_epochs: tuple[int, ...]  # after each of which the rate falls to a tenth
    patience: int  # epochs without a better validation loss before stopping
    seed: int  # of weights, order, dropout and augmentation
    precision: str  # ``float32`` or ``bf16`` (autocast)
    compiled: bool  # whether ``torch.compile`` is used
    backbone_weights: str | None  # file with pretrained weights, or None
    weight_averaging: float = 0.0
    shift: int = 0  # pixels by which training images are moved at most, each way
    passes: int = 1  # showings of an image per epoch
    class_balance: float = 0.0
    augmentation: str = "light"
    schedule: str = "steps"  # Adam and ``decay_epochs``, or ``one-cycle`` of SGD

    def __post_init__(self) -> None:
        if min(self.epochs, self.batch_size, self.patience, self.passes) < 1 or not self.learning_rate > 0:
            raise ValueError("epochs, passes, batch size, patience and learning rate must be positive")
        if not 0 <= self.class_balance <= 1:
            raise ValueError(f"class balance must be in [0, 1], got {self.class_balance}")
        if self.augmentation not in {"flips", "light", "wide"}:
            raise ValueError(f"augmentation must be flips, light or wide, got {self.augmentation!r}")
        if self.schedule not in {"steps", "one-cycle"}:
            raise ValueError(f"schedule must be steps or one-cycle, got {self.schedule!r}")
        if self.shift < 0:
            raise ValueError(f"shift must not be negative, got {self.shift}")
        if not 0 <= self.weight_averaging < 1:
            raise ValueError(f"weight averaging must be at least 0 and below 1, got {self.weight_averaging}")

    def rate(self, epoch: int, step: int = 0, steps: int = 1) -> float:
        """Learning rate of a step of an epoch, both counted from zero."""
        if self.schedule == "one-cycle":
            return _one_cycle(self.learning_rate, epoch * steps + step, self.epochs * steps)
        if epoch < self.warmup_epochs:
            return self.learning_rate * (0.1 + 0.9 * (epoch + 1) / self.warmup_epochs)
        return float(self.learning_rate * 0.1 ** sum(epoch >= step for step in self.decay_epochs))

    def to_dict(self) -> TrainDocument:
        """Return it as JSON values."""
        return cast(TrainDocument, to_document(self))


def _one_cycle(largest: float, step: int, steps: int) -> float:
    """Rate of a step as in ``torch.optim.lr_scheduler.OneCycleLR``, which has a state to keep."""
    peak = _WARMUP_SHARE * steps - 1
    rising = step <= peak
    first, last = (largest / 25, largest) if rising else (largest, largest / 250_000)
    share = step / max(peak, 1) if rising else (step - peak) / (steps - 1 - peak)
    return last + (first - last) * (1 + math.cos(math.pi * share)) / 2


@dataclass(frozen=True)
class CachedOutputs:
    """Network outputs for calibration, early stopping and test."""

    logits: npt.NDArray[np.float32]  # (N, K) float32
    features: npt.NDArray[np.float32]  # (N, D) float32
    pooled: npt.NDArray[np.float32]  # (N, P) float32, before the head's first dropout
    label_counts: IntArray  # (N, K) int64
    partition: npt.NDArray[np.str_]  # (N,)
    case_ids: npt.NDArray[np.str_]  # (N,)
    groups: npt.NDArray[np.str_]  # (N,) patient or case

    @classmethod
    def of(
        cls, dataset: ImageDataset, rows: npt.NDArray[np.intp], outputs: Sequence[npt.NDArray[np.float32]]
    ) -> "CachedOutputs":
        """Logits, features and pooled vectors of some cases of a data set."""
        logits, features, pooled = outputs
        counts, case_ids = dataset.label_counts[rows], np.array(dataset.case_ids)[rows]
        return cls(logits, features, pooled, counts, dataset.partition[rows], case_ids, dataset.groups[rows])

    def take(self, rows: npt.NDArray[Any]) -> "CachedOutputs":
        """Pick cases by position or mask."""
        return CachedOutputs(*(getattr(self, f.name)[rows] for f in fields(self)))


@dataclass(frozen=True)
class HeldOutImages:
    """Stored pixels of cases that are not trained on."""

    appearance: npt.NDArray[np.float32]  # (N, F) of all cached outputs
    rows: npt.NDArray[np.intp]  # (M,) those kept as pixels
    pixels: npt.NDArray[np.uint8]  # (M, H, W, C) uint8


class RunFolder:
    """Paths and files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.metrics = path / "metrics.jsonl"
        self.checkpoint = path / "checkpoint.pt"
        self.network = path / "network.safetensors"
        self.outputs = path / "outputs.npz"
        self.examples = path / "examples.npz"
        self.held_out = path / "held_out.npz"
        self.head_layers = path / "head_layers.npz"
        self.dropout_head = path / "head.safetensors"
        self.calibration = path / "calibration.json"
        self.report = path / "calibration_report.json"
        self.curves = path / "learning_curves.svg"
        self.training_index = path / INDEX_FILE
        self.baseline = path / "baseline.npy"

    @property
    def finished(self) -> bool:
        """Whether training has ended and its outputs are cached."""
        return self.outputs.is_file()

    def read_config(self) -> RunDocument:
        """Read the run's configuration, with its data set's description."""
        self._require_folder()
        if not self.config.is_file():
            raise ValueError(f"{self.path}: not a training run (no config.json); start one with `secondread train`")
        return cast(RunDocument, read_json(self.config))

    def claim(self, document: RunDocument) -> None:
        """Write the config, or require an equal one in the folder."""
        self.path.mkdir(parents=True, exist_ok=True)
        if self.config.is_file():
            held = self.read_config()
            before = held.get("train", {})  # none where something else wrote the file
            differing = [key for key, value in document["train"].items() if before.get(key) != value]
            if differing:
                raise ValueError(
                    f"{self.path} contains a run with other settings ({', '.join(differing)}); choose another --out"
                )
        write_json(self.config, document)

    def write_metrics(self, history: list[EpochMetrics]) -> None:
        """Write one JSON line per epoch."""
        lines = "".join(json.dumps(row, sort_keys=True) + "\n" for row in history)
        write_bytes_atomically(self.metrics, lines.encode())

    def read_metrics(self) -> list[EpochMetrics]:
        """Rows written by ``write_metrics``."""
        return [json.loads(line) for line in self.metrics.read_text().splitlines()]

    def read_report(self) -> CalibrationReport:
        """Read the run's calibration report."""
        return cast(CalibrationReport, read_json(self.report))

    def write_head_layers(self, layers: list[HeadArrays]) -> None:
        """Keep the head's layers as (dropout rate, weight, bias)."""
        arrays = {f"{name}{i}": a for i, layer in enumerate(layers) for name, a in zip(_LAYER, layer, strict=True)}
        np.savez(self.head_layers, allow_pickle=False, **cast(Any, arrays))

    def read_head_layers(self) -> list[HeadArrays]:
        """Layers kept by ``write_head_layers``."""
        data = self._read_arrays(self.head_layers)
        count = len(data) // len(_LAYER)
        return [(float(data[f"rate{i}"]), data[f"weight{i}"], data[f"bias{i}"]) for i in range(count)]

    def write_examples(self, pixels: npt.NDArray[np.uint8]) -> None:
        """Keep some held-out images (N, H, W, C), on which exports are checked."""
        np.savez_compressed(self.examples, allow_pickle=False, pixels=pixels)

    def read_examples(self) -> npt.NDArray[np.uint8]:
        """Images kept by ``write_examples``."""
        return np.asarray(self._read_arrays(self.examples)["pixels"], dtype=np.uint8)

    def write_held_out(self, images: HeldOutImages) -> None:
        """Keep what exports need to tell unlike images, and to try shifts out."""
        np.savez_compressed(self.held_out, allow_pickle=False, **cast(Any, vars(images)))

    def read_held_out(self) -> HeldOutImages:
        """Images kept by ``write_held_out``."""
        return HeldOutImages(**self._read_arrays(self.held_out))

    def write_outputs(self, outputs: CachedOutputs) -> None:
        """Cache the network's outputs, which marks the training as finished."""
        temporary = self.outputs.with_name("outputs.tmp.npz")
        np.savez(temporary, allow_pickle=False, **cast(Any, vars(outputs)))
        temporary.replace(self.outputs)

    def read_outputs(self) -> CachedOutputs:
        """Read the cached outputs."""
        return CachedOutputs(**self._read_arrays(self.outputs))

    def _read_arrays(self, path: Path) -> dict[str, npt.NDArray[Any]]:
        with np.load(self.finished_file(path), allow_pickle=False) as data:
            return dict(data)

    def finished_file(self, path: Path) -> Path:
        """A file that a finished training has written."""
        self._require_folder()
        if not path.is_file():
            raise ValueError(f"{self.path}: training has not finished; run `secondread train` again to resume")
        return path

    def _require_folder(self) -> None:
        if not self.path.is_dir():
            raise ValueError(f"{self.path}: no such folder; name the --out folder of `secondread train`")
