"""Stage 1: images and label histograms → weights, curves, cached outputs.

A killed run resumes after the last whole epoch, and on a CPU in float32 ends
with the same weights as an uninterrupted one.
"""

import hashlib
import json
import platform
import time
from dataclasses import dataclass, field
from io import BytesIO

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from ml.charts.reliability import learning_curves, write_chart
from ml.charts.rows import EpochMetrics
from ml.datasets.base import ImageDataset
from ml.images.image_quality_features import compute_quality_features
from ml.release.training_index import TrainingIndex
from ml.training.baseline import fit_baseline
from ml.training.data import DeviceData, class_counts, require_two
from ml.training.evaluation import cached_outputs, validate
from ml.training.learner import Learner, Observer
from ml.training.networks import Network, build_network
from ml.training.processes import ALONE, Processes
from ml.training.release_checks import SHIFTED_IMAGES
from ml.training.run_folder import DatasetDocument, HeldOutImages, RunFolder, TrainConfig
from ml.util.files import write_bytes_atomically

#: A larger checkpoint (bytes) is written after so many times its writing time.
LARGE, _AT_LEAST = 64_000_000, 60.0
#: Attributes of ``Progress`` that a checkpoint contains beside the weights.
_STATE = ("epoch", "best_loss", "best_epoch", "history")
#: Held-out images for the parity check of an export.
EXPORT_EXAMPLES = 256
#: What the cases of each partition are used for; those of ``test`` for nothing.
_USES = {"train": "network", "valid": "network", "calibration": "calibration"}


def train(
    dataset: ImageDataset,
    config: TrainConfig,
    folder: RunFolder,
    *,
    device: torch.device,
    observer: Observer = lambda report: None,
    processes: Processes = ALONE,
) -> EpochMetrics:
    """Train a network, or resume a run of the same config."""
    require_two(dataset)
    processes.require_equal("settings", lambda: json.dumps(config.to_dict()))
    processes.require_equal("images or labels", lambda: digest_of(dataset))
    history: list[EpochMetrics] = json.loads(processes.from_first(lambda: _claim_run_folder(folder, dataset, config)))
    if history:
        return min(history, key=lambda row: row["valid_loss"])
    data = DeviceData(dataset, device)
    learner = Learner(data, config, processes)
    progress = load_checkpoint(folder, learner)
    _run_epochs(learner, progress, folder, observer)
    if processes.first:
        learner.judged.load_state_dict(progress.best)
        write_chart(learning_curves(progress.history), folder.curves)
        _write_trained(folder, learner.judged, progress.best, data, config.seed)
        folder.checkpoint.unlink(missing_ok=True)
    return progress.history[progress.best_epoch]


def _claim_run_folder(folder: RunFolder, dataset: ImageDataset, config: TrainConfig) -> bytes:
    """Claim a folder; a finished run's epochs as JSON, else an empty list."""
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    folder.claim({"train": config.to_dict(), "dataset": describe_dataset(dataset), "versions": versions})
    return json.dumps(folder.read_metrics() if folder.finished else []).encode()


def digest_of(dataset: ImageDataset) -> str:
    """SHA-256 of a data set's images, label counts and partitions."""
    digest = hashlib.sha256(json.dumps([list(dataset.case_ids), dataset.partition.tolist()]).encode())
    for array in (dataset.label_counts, dataset.pixels):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


@dataclass
class Progress:
    """Progress of a run."""

    epoch: int = 0  # the next one
    best_loss: float = float("inf")  # validation loss of the best epoch
    best_epoch: int = -1  # its number
    history: list[EpochMetrics] = field(default_factory=list)  # rows of ``metrics.jsonl``
    best: dict[str, Tensor] = field(default_factory=dict)  # weights of the best epoch
    written: int = -1  # epochs in the checkpoint of this process
    not_before: float = 0.0  # time of the next checkpoint, monotonic

    def keep(self, loss: float, learner: Learner) -> None:
        """Remember the current weights as the best."""
        self.best_loss, self.best_epoch = loss, self.epoch
        self.best = {name: tensor.detach().clone() for name, tensor in learner.judged.state_dict().items()}


def _run_epochs(learner: Learner, progress: Progress, folder: RunFolder, observer: Observer) -> None:
    """Train epoch by epoch, and write checkpoints."""
    config, processes, began = learner.config, learner.processes, time.perf_counter()

    def write() -> None:
        if processes.first and progress.written != progress.epoch:
            save_checkpoint(folder, learner, progress)

    while progress.epoch < config.epochs and progress.epoch - progress.best_epoch <= config.patience:
        loss = _run_epoch(learner, progress, observer)
        if loss < progress.best_loss:
            progress.keep(loss, learner)
        progress.epoch += 1
        ended = time.perf_counter()
        progress.history[-1]["seconds"], began = round(ended - began, 4), ended
        if time.monotonic() >= progress.not_before:
            write()
    write()


def _run_epoch(learner: Learner, progress: Progress, observer: Observer) -> float:
    """Train and validate once; return the validation loss."""
    epoch, dataset = progress.epoch, learner.data.dataset
    training = dataset.rows("train")
    started = time.perf_counter()
    loss = learner.train_epoch(epoch, training, observer)
    seconds = time.perf_counter() - started
    validation = validate(learner.judged, learner.data, dataset.rows("valid"), learner.processes)
    row: EpochMetrics = {
        "epoch": epoch,
        "train_loss": loss,
        "learning_rate": learner.optimiser.param_groups[0]["lr"],
        "valid_loss": validation["valid_loss"],
        "valid_agreement": validation["valid_agreement"],
        "images_per_second": round(learner.config.passes * len(training) / seconds, 1),
    }
    if learner.processes.size > 1:
        row["processes"] = learner.processes.size
        norm = learner.processes.batch_norm_of(learner.network)
        if norm is not None:
            row["batch_norm"] = norm
    if not np.isfinite(row["valid_loss"]):
        raise ValueError(f"training diverged in epoch {epoch}: try a lower --learning-rate")
    progress.history.append(row)
    return row["valid_loss"]


def save_checkpoint(folder: RunFolder, learner: Learner, progress: Progress) -> None:
    """Write checkpoint and metrics."""
    began = time.monotonic()
    state, buffer = {name: getattr(progress, name) for name in _STATE}, BytesIO()
    torch.save({**learner.state_dict(), "best": progress.best, "state": state}, buffer)
    write_bytes_atomically(folder.checkpoint, buffer.getbuffer())
    folder.write_metrics(progress.history)
    progress.written, ended = progress.epoch, time.monotonic()
    if buffer.tell() > LARGE:
        progress.not_before = ended + _AT_LEAST * (ended - began)


def load_checkpoint(folder: RunFolder, learner: Learner) -> Progress:
    """Load the checkpoint into a learner, read by the first process."""
    checkpoint = learner.processes.from_first(
        lambda: folder.checkpoint.read_bytes() if folder.checkpoint.is_file() else b""
    )
    if not checkpoint:
        return Progress()
    document = torch.load(BytesIO(checkpoint), map_location=learner.data.device, weights_only=True)
    learner.load_state_dict(document)
    return Progress(**document["state"], best=document["best"])


def _write_trained(
    folder: RunFolder, network: Network, weights: dict[str, Tensor], data: DeviceData, seed: int
) -> None:
    """Write network and data for later stages, cached outputs last."""
    write_bytes_atomically(folder.network, save({name: tensor.contiguous().cpu() for name, tensor in weights.items()}))
    held_out = data.dataset.rows("valid", "calibration", "test")
    chosen = np.random.default_rng(seed).permutation(held_out)[:EXPORT_EXAMPLES]
    folder.write_examples(data.dataset.pixels[chosen])
    layers = [(rate, layer.weight, layer.bias) for rate, layer in network.head_layers()]
    folder.write_head_layers([(rate, w.detach().cpu().numpy(), b.detach().cpu().numpy()) for rate, w, b in layers])
    test = np.flatnonzero(data.dataset.partition[held_out] == "test")
    kept = np.sort(np.random.default_rng([seed, 1]).permutation(test)[:SHIFTED_IMAGES])
    pixels = data.dataset.pixels[held_out]
    folder.write_held_out(HeldOutImages(compute_quality_features(pixels), kept, pixels[kept]))
    write_bytes_atomically(folder.training_index, index_of(data.dataset).to_bytes())
    # of the cases whose outputs are cached, in their order
    np.save(folder.baseline, fit_baseline(data.dataset)(pixels), allow_pickle=False)
    folder.write_outputs(cached_outputs(network, data))


def index_of(dataset: ImageDataset) -> TrainingIndex:
    """Digests of everything that a training on this data set uses."""
    uses = [_USES.get(str(name), "") for name in dataset.partition]
    if dataset.calibration_partition == "valid":  # ``valid`` stopped the network
        uses = ["network" if use else "" for use in uses]
    return TrainingIndex.of(dataset.digests(), uses, dataset.patient_hmacs)


def describe_dataset(dataset: ImageDataset) -> DatasetDocument:
    """Data set section of a run."""
    return {
        "name": dataset.name,
        "classes": [info.to_dict() for info in dataset.classes],
        "preprocessing": dataset.preprocessing.to_dict(),
        "orientation": dataset.orientation,
        "partitions": {str(n): int(c) for n, c in zip(*np.unique(dataset.partition, return_counts=True), strict=True)},
        "class_counts": class_counts(dataset),
        "annotators": None if dataset.annotators is None else list(dataset.annotators),
        "calibration_partition": dataset.calibration_partition,
        "split_by": "case" if dataset.patients is None else "patient",
        "source": dataset.source,
        "licence": dataset.licence,
    }


def load_trained(folder: RunFolder) -> Network:
    """Network of a finished run, with its best weights, ready for inference."""
    config = folder.read_config()
    channels = config["dataset"]["preprocessing"]["channels"]
    network = build_network(config["train"]["network"], channels, len(config["dataset"]["classes"]))
    try:
        network.load_state_dict(load_file(folder.finished_file(folder.network)))
    except RuntimeError as exc:
        raise ValueError(f"{folder.network}: weights do not fit the network: {exc}") from exc
    network.eval()
    return network


def choose_device(name: str) -> torch.device:
    """Device by name; ``auto`` takes a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as exc:
        raise ValueError(f"unknown device {name!r}; use auto, cpu or cuda") from exc
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} is not available on this machine")
    return device


def choose_precision(name: str, device: torch.device) -> str:
    """``float32`` or ``bf16``; ``auto`` prefers native bf16."""
    if name in {"float32", "bf16"}:
        return name
    if name != "auto":
        raise ValueError(f"unknown precision {name!r}; use auto, float32 or bf16")
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "float32"
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return "bf16" if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") else "float32"
