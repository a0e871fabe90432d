"""Stage 1: images and label histograms → network weights, learning curves, cached logits and features.

A run can be killed at any time and started again with the same arguments: it resumes after the last whole
epoch, and on a CPU in float32 ends with the same weights as an uninterrupted one.
"""

import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ml.charts.reliability import learning_curves, write_chart
from ml.datasets.base import ImageDataset
from ml.files import write_bytes_atomically
from ml.training.augmentation import augment, shift
from ml.training.losses import count_weighted_nll
from ml.training.networks import Network, build_network, read_backbone_weights
from ml.training.run_folder import CachedOutputs, RunFolder, TrainConfig

EVALUATION_BATCH = 512
#: Held-out images kept in the run, on which the exported network must agree with the trained one.
EXPORT_EXAMPLES = 256


@dataclass(frozen=True)
class StepReport:
    """Where training stands, after each step: for progress bars."""

    epoch: int
    step: int
    steps: int
    loss: float
    images_per_second: float


Observer = Callable[[StepReport], None]
Tensors = tuple[Tensor, ...] | list[Tensor]


def choose_device(name: str) -> torch.device:
    """Device by name; ``auto`` takes a GPU where there is one.

    Raises:
        ValueError: the device is not there.
    """
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
    """``float32`` or ``bf16``; ``auto`` takes bf16 where the hardware multiplies it natively.

    Raises:
        ValueError: an unknown name.
    """
    if name in {"float32", "bf16"}:
        return name
    if name != "auto":
        raise ValueError(f"unknown precision {name!r}; use auto, float32 or bf16")
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "float32"
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return "bf16" if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") else "float32"


@dataclass
class _State:
    """What a checkpoint contains besides weights and optimiser."""

    epoch: int = 0
    best_loss: float = float("inf")
    best_epoch: int = -1
    history: list[dict[str, Any]] = field(default_factory=list)


def _average_weights(network: Network, decay: float) -> AveragedModel:
    """Moving average of a network's weights, and of the statistics that its normalisation keeps.

    It reaches back over all steps so far until these are about 9 / (1 − decay), so that short runs are
    averaged over a tenth of themselves and not mostly over the random start.
    """

    def update(averages: Tensors, current: Tensors, steps: Tensor | int) -> None:
        get_ema_multi_avg_fn(min(decay, (1 + int(steps)) / (10 + int(steps))))(averages, current, steps)

    return AveragedModel(network, multi_avg_fn=update, use_buffers=True)


class _Trainer:
    """One run in memory: network, optimiser and data on the device.

    Attributes:
        network: what learns.
        average: moving average of its weights, or None where the config asks for none.
        judged: what is validated and kept: the average, or else the network itself.
    """

    def __init__(self, dataset: ImageDataset, config: TrainConfig, device: torch.device) -> None:
        self.dataset, self.config, self.device = dataset, config, device
        torch.manual_seed(config.seed)
        weights = read_backbone_weights(config.backbone_weights) if config.backbone_weights else None
        channels = dataset.preprocessing.channels
        network = build_network(config.network, channels, len(dataset.classes), weights)
        self.network: Network = network.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.forward: Callable[[Tensor], tuple[Tensor, Tensor]] = self.network
        if config.compiled:
            self.forward = torch.compile(self.network)
        self.optimiser = torch.optim.Adam(self.network.parameters(), lr=config.learning_rate)
        decay = config.weight_averaging
        self.average = _average_weights(self.network, decay) if decay else None
        self.judged = self.network if self.average is None else cast(Network, self.average.module)
        self.best: dict[str, Tensor] = {}
        self.state = _State()
        scale, offset = dataset.preprocessing.scale_and_offset()
        self.scale, self.offset = torch.from_numpy(scale).to(device), torch.from_numpy(offset).to(device)

    def inputs(self, rows: npt.NDArray[np.intp]) -> Tensor:
        """Network inputs of cases: the same numbers as ``Preprocessing.normalise`` gives in serving."""
        pixels = torch.from_numpy(self.dataset.pixels[rows]).to(self.device, non_blocking=True)
        images = pixels.permute(0, 3, 1, 2).float() * self.scale + self.offset
        return images.contiguous(memory_format=torch.channels_last)

    def counts(self, rows: npt.NDArray[np.intp]) -> Tensor:
        return torch.from_numpy(self.dataset.label_counts[rows]).to(self.device)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16")

    def keep(self, loss: float) -> None:
        """Remember the current weights as the best."""
        self.state.best_loss, self.state.best_epoch = loss, self.state.epoch
        self.best = {k: v.detach().clone() for k, v in self.judged.state_dict().items()}

    def train_epoch(self, rows: npt.NDArray[np.intp], observer: Observer) -> float:
        """Train on each row once, in an order and with augmentation that depend on seed and epoch only."""
        epoch, config = self.state.epoch, self.config
        order = np.random.default_rng([config.seed, epoch]).permutation(rows)
        generator = torch.Generator().manual_seed(config.seed * 100_003 + epoch)
        torch.manual_seed(config.seed * 100_003 + epoch)
        for group in self.optimiser.param_groups:
            group["lr"] = config.rate(epoch)
        self.network.train()
        # a last batch of one image would leave batch normalisation without a variance
        batches = [b for b in np.split(order, range(config.batch_size, len(order), config.batch_size)) if len(b) > 1]
        total, seen, started = torch.zeros((), device=self.device), 0, time.perf_counter()
        for step, batch in enumerate(batches):
            images = shift(self.inputs(batch), config.shift, generator)
            images = augment(images, self.dataset.orientation, generator)
            with self.autocast():
                logits, _ = self.forward(images)
                loss = count_weighted_nll(logits.float(), self.counts(batch))
            self.optimiser.zero_grad(set_to_none=True)
            loss.backward()
            self.optimiser.step()
            if self.average is not None:
                self.average.update_parameters(self.network)
            total += loss.detach() * len(batch)
            seen += len(batch)
            speed = seen / (time.perf_counter() - started)
            observer(StepReport(epoch, step + 1, len(batches), float(total) / seen, speed))
        return float(total) / max(seen, 1)

    def outputs(self, rows: npt.NDArray[np.intp]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Logits, features and pooled vectors of cases in batches, in float32 without dropout."""
        self.judged.eval()
        for batch in np.split(rows, range(EVALUATION_BATCH, len(rows), EVALUATION_BATCH)):
            with torch.inference_mode():
                pooled = self.judged.pooled(self.inputs(batch))
                logits, features = self.judged.apply_head(pooled)
            yield logits, features, pooled

    def validate(self, rows: npt.NDArray[np.intp]) -> dict[str, float]:
        """Validation loss in nats per label, and accuracy against the most frequent label."""
        loss = hits = labels = 0.0
        start = 0
        for logits, _, _ in self.outputs(rows):
            counts = self.counts(rows[start : start + len(logits)])
            start += len(logits)
            n_labels = float(counts.sum())
            loss += float(count_weighted_nll(logits, counts)) * n_labels
            labels += n_labels
            hits += float((logits.argmax(1) == counts.argmax(1)).sum())
        return {"valid_loss": loss / max(labels, 1.0), "valid_accuracy": hits / len(rows)}

    def save(self, path: RunFolder) -> None:
        buffer = BytesIO()
        document = {
            "network": self.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "best": self.best,
            "state": vars(self.state),
        }
        torch.save(document, buffer)
        write_bytes_atomically(path.checkpoint, buffer.getvalue())
        path.write_metrics(self.state.history)

    def load(self, path: RunFolder) -> None:
        document = torch.load(path.checkpoint, map_location=self.device, weights_only=True)
        self.network.load_state_dict(document["network"])
        self.optimiser.load_state_dict(document["optimiser"])
        if self.average is not None:
            self.average.load_state_dict(document["average"])
        self.best = document["best"]
        self.state = _State(**document["state"])


def train(
    dataset: ImageDataset,
    config: TrainConfig,
    folder: RunFolder,
    *,
    device: torch.device,
    observer: Observer = lambda report: None,
) -> dict[str, Any]:
    """Train a network, or resume where an interrupted run of the same config stopped.

    Args:
        dataset: images and label histograms; ``train`` fits, ``valid`` stops.
        config: what to train.
        folder: receives config, metrics, checkpoint, weights, learning curves and cached outputs.
        device: where to train.
        observer: called after each step.

    Returns:
        The metrics of the best epoch.

    Raises:
        ValueError: the folder contains a run of another config, or a partition is empty.
    """
    for name in ("train", "valid"):
        if dataset.rows(name).size < 2:
            raise ValueError(f"data set {dataset.name!r} has fewer than two cases in partition {name!r}")
    folder.claim({"train": config.to_dict(), "dataset": describe(dataset), "versions": versions()})
    if folder.finished:
        return min(folder.read_metrics(), key=lambda row: float(row["valid_loss"]))
    trainer = _Trainer(dataset, config, device)
    if folder.checkpoint.is_file():
        trainer.load(folder)
    _run_epochs(trainer, folder, observer)
    trainer.judged.load_state_dict(trainer.best)
    weights = {name: tensor.contiguous().cpu() for name, tensor in trainer.best.items()}
    write_bytes_atomically(folder.network, save(weights))
    write_chart(learning_curves(trainer.state.history), folder.curves)
    held_out = dataset.rows("valid", "calibration", "test")
    chosen = np.random.default_rng(config.seed).permutation(held_out)[:EXPORT_EXAMPLES]
    folder.write_examples(dataset.pixels[chosen])
    layers = [(rate, layer.weight, layer.bias) for rate, layer in trainer.judged.head_layers()]
    folder.write_head_layers([(rate, w.detach().cpu().numpy(), b.detach().cpu().numpy()) for rate, w, b in layers])
    folder.write_outputs(_cached_outputs(trainer))
    folder.checkpoint.unlink(missing_ok=True)
    return trainer.state.history[trainer.state.best_epoch]


def _run_epochs(trainer: _Trainer, folder: RunFolder, observer: Observer) -> None:
    state, config = trainer.state, trainer.config
    while state.epoch < config.epochs and state.epoch - state.best_epoch <= config.patience:
        loss = _run_epoch(trainer, observer)
        if loss < state.best_loss:
            trainer.keep(loss)
        state.epoch += 1
        trainer.save(folder)


def _run_epoch(trainer: _Trainer, observer: Observer) -> float:
    """Train and validate once; returns the validation loss.

    Raises:
        ValueError: the loss is not finite.
    """
    state, training = trainer.state, trainer.dataset.rows("train")
    started = time.perf_counter()
    loss = trainer.train_epoch(training, observer)
    seconds = time.perf_counter() - started
    row = {"epoch": state.epoch, "train_loss": loss, "learning_rate": trainer.config.rate(state.epoch)}
    row |= trainer.validate(trainer.dataset.rows("valid"))
    row |= {"images_per_second": round(len(training) / seconds, 1)}
    if not np.isfinite(row["valid_loss"]):
        raise ValueError(f"training diverged in epoch {state.epoch}: try a lower --learning-rate")
    state.history.append(row)
    return float(row["valid_loss"])


def _cached_outputs(trainer: _Trainer) -> CachedOutputs:
    dataset = trainer.dataset
    rows = dataset.rows("valid", "calibration", "test")
    logits, features, pooled = zip(*trainer.outputs(rows), strict=True)
    cases = np.array(dataset.case_ids)[rows]
    return CachedOutputs(
        logits=torch.cat(logits).cpu().numpy(),
        features=torch.cat(features).cpu().numpy(),
        pooled=torch.cat(pooled).cpu().numpy(),
        label_counts=dataset.label_counts[rows],
        partition=dataset.partition[rows],
        case_ids=cases,
        groups=cases if dataset.patients is None else np.array(dataset.patients)[rows],
    )


def describe(dataset: ImageDataset) -> dict[str, Any]:
    """What a run keeps of its data set: classes, preprocessing, sizes of the parts, source, licence."""
    return {
        "name": dataset.name,
        "classes": [info.to_dict() for info in dataset.classes],
        "preprocessing": dataset.preprocessing.to_dict(),
        "orientation": dataset.orientation,
        "partitions": {str(n): int(c) for n, c in zip(*np.unique(dataset.partition, return_counts=True), strict=True)},
        "calibration_partition": dataset.calibration_partition,
        "split_by": "case" if dataset.patients is None else "patient",
        "source": dataset.source,
        "licence": dataset.licence,
    }


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    return {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}


def load_trained(folder: RunFolder) -> Network:
    """Network of a finished run, with its best weights, ready for inference.

    Raises:
        ValueError: the run is unfinished or its weights do not fit.
    """
    config = folder.read_config()
    if not folder.network.is_file():
        raise ValueError(f"{folder.path}: training has not finished; run `secondread train` again to resume")
    channels = int(config["dataset"]["preprocessing"]["channels"])
    network = build_network(config["train"]["network"], channels, len(config["dataset"]["classes"]))
    try:
        network.load_state_dict(load_file(folder.network))
    except RuntimeError as exc:
        raise ValueError(f"{folder.network}: weights do not fit the network: {exc}") from exc
    network.eval()
    return network
