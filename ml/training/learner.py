"""A network with its optimiser and its average: how one epoch changes the weights."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.optim.optimizer import StateDict

from ml.training.augmentation import augment, shift
from ml.training.averaging import average_weights
from ml.training.device_data import DeviceData
from ml.training.laboratory import vary
from ml.training.losses import balancing_weights, count_weighted_nll
from ml.training.networks import Network, build_network, read_backbone_weights
from ml.training.processes import ALONE, Processes
from ml.training.run_folder import TrainConfig


@dataclass(frozen=True)
class StepReport:
    """Where training stands, after each step: for progress bars."""

    epoch: int
    step: int
    steps: int
    loss: float
    images_per_second: float


Observer = Callable[[StepReport], None]


class LearnerState(TypedDict):
    """Weights, state of the optimiser, and the average of weights where there is one."""

    network: dict[str, Tensor]
    optimiser: StateDict
    average: dict[str, Tensor] | None


class Learner:
    """What learns.

    Args:
        data: images and label counts on the device.
        config: network, optimiser and rates.
        processes: that share each batch.

    Attributes:
        network: the weights that the optimiser changes.
        average: their moving average, or None where the config asks for none.
        judged: what is validated and kept: the average, or else the network itself.
    """

    def __init__(self, data: DeviceData, config: TrainConfig, processes: Processes = ALONE) -> None:
        self.data, self.config, self.processes = data, config, processes
        torch.manual_seed(config.seed)
        weights = read_backbone_weights(config.backbone_weights) if config.backbone_weights else None
        dataset = data.dataset
        network = build_network(config.network, dataset.preprocessing.channels, len(dataset.classes), weights)
        network = cast(Network, processes.converted(network))
        self.network: Network = network.to(data.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        shared = processes.averaging(self.network)
        self._forward: Callable[[Tensor], tuple[Tensor, Tensor]] = torch.compile(shared) if config.compiled else shared
        self.optimiser = torch.optim.Adam(self.network.parameters(), lr=config.learning_rate)
        decay = config.weight_averaging
        self.average = average_weights(self.network, decay) if decay else None
        self.judged = self.network if self.average is None else cast(Network, self.average.module)
        self._log_weights = self._class_weights()

    def _class_weights(self) -> Tensor | None:
        """Logarithms of the weights of the K classes, None where all weigh the same."""
        if self.config.class_balance == 0:
            return None
        dataset = self.data.dataset
        weights = balancing_weights(dataset.label_counts[dataset.rows("train")], self.config.class_balance)
        return torch.log(torch.tensor(weights, dtype=torch.float32)).to(self.data.device)

    def train_epoch(self, epoch: int, rows: npt.NDArray[np.intp], observer: Observer) -> float:
        """Train on each row ``passes`` times, in an order that depends on seed and epoch only.

        Augmentation and dropout depend on the number of the process besides: each draws for its part of the batch.
        """
        config, seed = self.config, self.processes.seed(self.config.seed, epoch)
        rng = np.random.default_rng([config.seed, epoch])
        order = np.concatenate([rng.permutation(rows) for _ in range(config.passes)])
        generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        for group in self.optimiser.param_groups:
            group["lr"] = config.rate(epoch)
        self.network.train()
        # a last batch of one image would leave batch normalisation without a variance
        batches = [b for b in np.split(order, range(config.batch_size, len(order), config.batch_size)) if len(b) > 1]
        total, seen, started = torch.zeros((), device=self.data.device), 0, time.perf_counter()
        for step, batch in enumerate(batches):
            total += self._step(batch, generator) * len(batch)
            seen += len(batch)
            speed = seen / (time.perf_counter() - started)
            observer(StepReport(epoch, step + 1, len(batches), float(total) / seen, speed))
        return float(total) / max(seen, 1)

    def _step(self, batch: npt.NDArray[np.intp], generator: torch.Generator) -> Tensor:
        """Change the weights once, and return the loss of the whole batch before."""
        part = self.processes.part(batch)
        images = self._augmented(self.data.inputs(part), generator)
        with torch.autocast(self.data.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
            logits, _ = self._forward(images)
            loss = count_weighted_nll(
                logits.float(), self.data.counts(part), self._log_weights, self.data.counts(batch)
            )
        self.optimiser.zero_grad(set_to_none=True)
        (loss * self.processes.size).backward()  # the mean over processes is then the loss of the whole batch
        self.optimiser.step()
        if self.average is not None:
            self.average.update_parameters(self.network)
        return self.processes.total(loss.detach())

    def _augmented(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Images as they are shown to the network, in float32."""
        if not len(images):  # this process has no part of a small batch
            return images
        images = shift(images, self.config.shift, generator)
        if self.config.augmentation == "wide":
            images = vary(images, self.data.dataset.preprocessing, self.data.dataset.orientation, generator)
        return augment(images, self.data.dataset.orientation, generator)

    def state_dict(self) -> LearnerState:
        """Weights, optimiser and average."""
        return {
            "network": self.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
        }

    def load_state_dict(self, document: LearnerState) -> None:
        """Go on from what ``state_dict`` returned."""
        self.network.load_state_dict(document["network"])
        self.optimiser.load_state_dict(document["optimiser"])
        if self.average is not None and document["average"] is not None:
            self.average.load_state_dict(document["average"])
