"""Training step, its loss, and the moving average of weights."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional
from torch.optim.optimizer import StateDict
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ml.training.augmentation import augment_for_training
from ml.training.data import DeviceData
from ml.training.networks import Network, build_network, read_backbone_weights
from ml.training.processes import ALONE, Processes
from ml.training.run_folder import TrainConfig

Tensors = tuple[Tensor, ...] | list[Tensor]


#: Largest weight of a class; the smallest is its inverse.
_MOST = 10.0
#: Of stochastic gradient descent in one cycle.
_MOMENTUM, _WEIGHT_DECAY, _GRADIENT_NORM = 0.9, 5e-4, 5.0


def count_weighted_nll(
    logits: Tensor, label_counts: Tensor, log_weights: Tensor | None = None, whole: Tensor | None = None
) -> Tensor:
    """Mean of −Σ_k y_ik log f_ik per label (paper §6.1)."""
    counts, all_counts = (c.to(logits.dtype) for c in (label_counts, label_counts if whole is None else whole))
    if log_weights is not None:
        # the logits stay those of the true probabilities (Menon et al. 2021, eq. 10)
        weights = log_weights.exp()
        logits, counts, all_counts = logits + log_weights, counts * weights, all_counts * weights
    total = all_counts.sum().clamp(min=1)
    return -(counts * functional.log_softmax(logits, dim=1)).sum() / total


def balancing_weights(label_counts: npt.ArrayLike, exponent: float) -> npt.NDArray[np.float64]:
    """Class weights (mean count / count)^exponent, at most 10."""
    counts = np.asarray(label_counts, dtype=np.float64).sum(axis=0)
    present = counts > 0
    relative = np.ones(len(counts))
    relative[present] = counts[present].mean() / counts[present]
    return np.clip(relative, 1 / _MOST, _MOST) ** exponent


def average_weights(network: Network, decay: float) -> AveragedModel:
    """Moving average of a network's weights and buffers."""

    def update(averages: Tensors, current: Tensors, steps: Tensor | int) -> None:
        # a short run is averaged over a tenth of itself, not over its random start
        get_ema_multi_avg_fn(min(decay, (1 + int(steps)) / (10 + int(steps))))(averages, current, steps)

    return AveragedModel(network, multi_avg_fn=update, use_buffers=True)


def _optimiser(network: Network, config: TrainConfig) -> torch.optim.Optimizer:
    """Optimiser of a schedule; the rate is set before each step."""
    if config.schedule == "steps":
        return torch.optim.Adam(network.parameters(), lr=config.learning_rate)
    return torch.optim.SGD(
        network.parameters(), config.learning_rate, momentum=_MOMENTUM, weight_decay=_WEIGHT_DECAY, nesterov=True
    )


@dataclass(frozen=True)
class StepReport:
    """Where training stands, after each step: for progress bars."""

    epoch: int  # from 0
    step: int  # done, of ``steps``
    steps: int  # of the epoch
    images_per_second: float  # since the epoch began, by the host
    total: Tensor  # summed loss, on the device
    seen: int  # how many images

    @property
    def loss(self) -> float:
        """Mean loss of the epoch; waits for the device."""
        return float(self.total) / max(self.seen, 1)


Observer = Callable[[StepReport], None]


class LearnerState(TypedDict):
    """Weights, optimiser state, average of weights."""

    network: dict[str, Tensor]
    optimiser: StateDict
    average: dict[str, Tensor] | None


class Learner:
    """Network, optimiser and moving average in training."""

    def __init__(self, data: DeviceData, config: TrainConfig, processes: Processes = ALONE) -> None:
        self.data, self.config, self.processes = data, config, processes
        torch.manual_seed(config.seed)
        weights = read_backbone_weights(config.backbone_weights) if config.backbone_weights else None
        dataset = data.dataset
        network = build_network(config.network, dataset.preprocessing.channels, len(dataset.classes), weights)
        self.network: Network = network.to(data.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        shared = processes.averaging(self.network)
        self._forward: Callable[[Tensor], tuple[Tensor, Tensor]] = torch.compile(shared) if config.compiled else shared
        if data.device.type == "cuda":  # sizes stay the same
            torch.backends.cudnn.benchmark = True
        self.optimiser = _optimiser(self.network, config)
        decay = config.weight_averaging
        self.average = average_weights(self.network, decay) if decay else None
        self.judged = self.network if self.average is None else cast(Network, self.average.module)
        self._generator = torch.Generator()
        self._log_weights = None
        if config.class_balance:
            weights_by_class = balancing_weights(dataset.label_counts[dataset.rows("train")], config.class_balance)
            self._log_weights = torch.log(torch.tensor(weights_by_class, dtype=torch.float32)).to(data.device)

    def train_epoch(self, epoch: int, rows: npt.NDArray[np.intp], observer: Observer) -> float:
        """Train on each row ``passes`` times, in a seeded order."""
        config = self.config
        batches = self._batches(epoch, rows)
        torch.manual_seed(self.processes.seed(config.seed, epoch))
        self._generator.manual_seed(self.processes.seed(config.seed, epoch))
        self.network.train()
        total, seen, started = torch.zeros((), device=self.data.device), 0, time.perf_counter()
        for number, batch in enumerate(batches):
            for group in self.optimiser.param_groups:
                group["lr"] = config.rate(epoch, number, len(batches))
            total += self._step(batch) * len(batch)
            seen += len(batch)
            speed = seen / (time.perf_counter() - started)
            observer(StepReport(epoch, number + 1, len(batches), speed, total, seen))
        return float(total) / max(seen, 1)

    def _batches(self, epoch: int, rows: npt.NDArray[np.intp]) -> list[npt.NDArray[np.intp]]:
        rng, size = np.random.default_rng([self.config.seed, epoch]), self.config.batch_size
        order = np.concatenate([rng.permutation(rows) for _ in range(self.config.passes)])
        batches = [order[start : start + size] for start in range(0, len(order), size)]
        # a last batch of one image would leave batch normalisation without a variance
        return [batch for batch in batches if len(batch) > 1]

    def _step(self, batch: npt.NDArray[np.intp]) -> Tensor:
        """Change the weights once; return the loss before."""
        part = self.processes.part(batch)
        images = self._augmented(part)
        with torch.autocast(self.data.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
            logits, _ = self._forward(images)
            loss = count_weighted_nll(
                logits.float(), self.data.counts(part), self._log_weights, self.data.counts(batch)
            )
        self.optimiser.zero_grad(set_to_none=True)
        (loss * self.processes.size).backward()  # averaged over processes
        if self.config.schedule == "one-cycle":
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), _GRADIENT_NORM)
        self.optimiser.step()
        if self.average is not None:
            self.average.update_parameters(self.network)
        return self.processes.total(loss.detach())

    def _augmented(self, rows: npt.NDArray[np.intp]) -> Tensor:
        images, config, dataset = self.data.inputs(rows), self.config, self.data.dataset
        if not len(images):  # this process has no part of a small batch
            return images
        return augment_for_training(
            images, dataset.preprocessing, dataset.orientation, config.augmentation, config.shift, self._generator
        )

    def state_dict(self) -> LearnerState:
        """Weights, optimiser and average."""
        return {
            "network": self.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
        }

    def load_state_dict(self, document: LearnerState) -> None:
        """Go on from what ``state_dict`` returned, on this device or another one."""
        self.network.load_state_dict(document["network"])
        self.optimiser.load_state_dict(document["optimiser"])
        if self.average is not None and document["average"] is not None:
            self.average.load_state_dict(document["average"])
