"""A network with its optimiser and its average: how one epoch changes the weights.

Within an epoch the host never waits for the device: order and augmentation are drawn before (``EpochPlan``), losses are
added up on the device, and read when somebody asks for them. On a single GPU a step is recorded once and replayed
(``ml.training.recorded_step``).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.optim.optimizer import StateDict

from ml.training.augmentation import changed, draw, shift
from ml.training.averaging import average_weights
from ml.training.device_data import DeviceData
from ml.training.epoch_plan import EpochPlan, Step
from ml.training.laboratory import vary
from ml.training.losses import balancing_weights, count_weighted_nll
from ml.training.networks import Network, build_network, read_backbone_weights
from ml.training.processes import ALONE, Processes
from ml.training.recorded_step import StepRecorder
from ml.training.run_folder import TrainConfig


@dataclass(frozen=True)
class StepReport:
    """Where training stands, after each step: for progress bars.

    Attributes:
        epoch: from 0.
        step: done, of ``steps``.
        steps: of the epoch.
        images_per_second: since the epoch began, as far as the host has come; a GPU may be some steps behind.
        total: loss of the images so far, added up, where it was computed.
        seen: how many images.
    """

    epoch: int
    step: int
    steps: int
    images_per_second: float
    total: Tensor
    seen: int

    @property
    def loss(self) -> float:
        """Mean loss of the epoch so far; to read it is to wait until the device has come here."""
        return float(self.total) / max(self.seen, 1)


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
        if data.device.type == "cuda":  # sizes stay the same: the fastest convolutions are looked for once
            torch.backends.cudnn.benchmark = True
        self._adam = _adam_for(data.device)
        self.optimiser = torch.optim.Adam(self.network.parameters(), lr=config.learning_rate)
        self._set_adam(config.learning_rate)
        self._recorder = StepRecorder.of(data, config, processes, self._step)
        decay = config.weight_averaging
        self.average = average_weights(self.network, decay) if decay else None
        self.judged = self.network if self.average is None else cast(Network, self.average.module)
        self._generator = torch.Generator()
        self._ahead: tuple[int, npt.NDArray[np.intp], EpochPlan] | None = None
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
        plan = self._plan(epoch, rows)
        torch.manual_seed(self.processes.seed(self.config.seed, epoch))
        self._set_rate(self.config.rate(epoch))
        self.network.train()
        total, seen, started = torch.zeros((), device=self.data.device), 0, time.perf_counter()
        for number, step in enumerate(plan):
            total += self._trained(step) * len(step.batch)
            seen += len(step.batch)
            speed = seen / (time.perf_counter() - started)
            observer(StepReport(epoch, number + 1, len(plan), speed, total, seen))
        if self.data.resident:  # drawn while the device still works on what it was sent
            self._ahead = epoch + 1, rows, self._drawn(epoch + 1, rows)
        return float(total) / max(seen, 1)

    def _plan(self, epoch: int, rows: npt.NDArray[np.intp]) -> EpochPlan:
        """The steps of an epoch, which may have been drawn during the one before."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == epoch and np.array_equal(ahead[1], rows):
            return ahead[2]
        return self._drawn(epoch, rows)

    def _drawn(self, epoch: int, rows: npt.NDArray[np.intp]) -> EpochPlan:
        config = self.config
        rng = np.random.default_rng([config.seed, epoch])
        order = np.concatenate([rng.permutation(rows) for _ in range(config.passes)])
        self._generator.manual_seed(self.processes.seed(config.seed, epoch))
        return EpochPlan(self.data, config, self.processes, order, self._generator)

    @property
    def recorded(self) -> bool:
        """Whether steps are replayed on a GPU."""
        return self._recorder is not None and self._recorder.ready

    def _trained(self, step: Step) -> Tensor:
        """Change weights and average once, and return the loss of the whole batch before."""
        loss = self._step(step) if self._recorder is None else self._recorder(step)
        if self._recorder is not None and self._recorder.failed:
            self._recorder = None
        if self.average is not None:
            self.average.update_parameters(self.network)
        return self.processes.total(loss.detach())

    def _step(self, step: Step) -> Tensor:
        """Change the weights once, and return the loss of this process's part; the device is asked nothing."""
        images = self._augmented(step)
        with torch.autocast(self.data.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
            logits, _ = self._forward(images)
            loss = count_weighted_nll(
                logits.float(), self.data.counts(step.part), self._log_weights, self.data.counts(step.batch)
            )
        self.optimiser.zero_grad(set_to_none=True)
        (loss * self.processes.size).backward()  # the mean over processes is then the loss of the whole batch
        self.optimiser.step()
        return loss

    def _augmented(self, step: Step) -> Tensor:
        """Images as they are shown to the network, in float32."""
        images, config, dataset = self.data.inputs(step.part), self.config, self.data.dataset
        if not len(images):  # this process has no part of a small batch
            return images
        if step.draws is not None:
            return changed(images, step.draws, config.shift)
        images = shift(images, config.shift, self._generator)
        images = vary(images, dataset.preprocessing, dataset.orientation, self._generator)
        drawn = draw(len(images), images.shape[1], dataset.orientation, 0, self._generator)
        return changed(images, drawn.to(images.device))

    def _set_adam(self, rate: float) -> None:
        """Let the optimiser work as it does on this device, whatever a checkpoint of another one says."""
        for group in self.optimiser.param_groups:
            group.update(self._adam)
            group["lr"] = torch.tensor(rate, device=self.data.device) if self._adam["fused"] else rate

    def _set_rate(self, rate: float) -> None:
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

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
        groups = [{**group, **self._adam} for group in document["optimiser"]["param_groups"]]
        self.optimiser.load_state_dict({**document["optimiser"], "param_groups": groups})
        self._set_adam(self.config.learning_rate)
        if self.average is not None and document["average"] is not None:
            self.average.load_state_dict(document["average"])


class _Adam(TypedDict):
    """How ``torch.optim.Adam`` is carried out."""

    fused: bool | None
    capturable: bool


def _adam_for(device: torch.device) -> _Adam:
    """On a GPU one kernel for all weights, whose rate and count of steps lie there, so that it can be recorded."""
    return {"fused": True, "capturable": True} if device.type == "cuda" else {"fused": None, "capturable": False}
