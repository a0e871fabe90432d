"""A training step that a GPU records once and replays: the host then starts one thing instead of hundreds.

Small networks are through with a batch sooner than a host can start its kernels one by one. The first steps run as
ever, and are part of the training; the next one is recorded (CUDA graphs). Where that fails the steps go on as ever,
with a warning that says why.
"""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from ml.training.augmentation import Draws
from ml.training.device_data import DeviceData
from ml.training.epoch_plan import Step
from ml.training.processes import Processes
from ml.training.run_folder import TrainConfig

#: Whole batches that run before one is recorded, by which libraries have chosen their algorithms.
WARM_UP = 5


class StepRecorder:
    """Runs steps of whole batches by replaying one of them.

    Args:
        run: one step; it must ask the device nothing, and give the loss.
        device: a GPU.
        size: images of a whole batch; other steps run as ever.

    Attributes:
        failed: whether nothing could be recorded.
    """

    def __init__(self, run: Callable[[Step], Tensor], device: torch.device, size: int) -> None:
        self._run, self._device, self._size = run, device, size
        self._stream = torch.cuda.Stream(device)
        self._warm, self.failed = 0, False
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] = []
        self._loss = torch.zeros((), device=device)

    @classmethod
    def of(
        cls, data: DeviceData, config: TrainConfig, processes: Processes, run: Callable[[Step], Tensor]
    ) -> "StepRecorder | None":
        """One where steps can be recorded: on a single GPU with all data on it; None elsewhere."""
        alone = data.device.type == "cuda" and processes.size == 1
        if not alone or not data.resident or config.compiled or config.augmentation == "wide":
            return None
        return cls(run, data.device, config.batch_size)

    @property
    def ready(self) -> bool:
        """Whether a step has been recorded."""
        return self._graph is not None

    def __call__(self, step: Step) -> Tensor:
        """Run a step, and give its loss."""
        if len(step.batch) != self._size or self.failed:
            return self._run(step)
        if self._graph is None and self._warm < WARM_UP:
            return self._warmed_up(step)
        if self._graph is None and not self._recorded(step):
            return self._run(step)
        return self._replayed(step)

    def _warmed_up(self, step: Step) -> Tensor:
        """A step beside the stream that records: CUDA wants it so."""
        self._warm += 1
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            loss = self._run(step)
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return loss

    def _recorded(self, step: Step) -> bool:
        """Record a step without running it; false where that fails."""
        batch, part = (torch.zeros_like(rows) for rows in _rows(step))
        fixed = Step(batch, part, _like(step.draws))
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self._stream):
                loss = self._run(fixed).detach()
        except RuntimeError as exc:
            self.failed = True
            reason = str(exc).strip().partition("\n")[0]
            warnings.warn(f"training steps are not recorded, and slower: {reason}", RuntimeWarning, stacklevel=2)
            return False
        self._graph, self._loss, self._inputs = graph, loss, _tensors(fixed)
        return True

    def _replayed(self, step: Step) -> Tensor:
        for fixed, given in zip(self._inputs, _tensors(step), strict=True):
            fixed.copy_(given, non_blocking=True)
        if self._graph is not None:
            self._graph.replay()
        return self._loss


def _rows(step: Step) -> list[Tensor]:
    """Numbers of the cases, which lie on the device."""
    return [rows for rows in (step.batch, step.part) if isinstance(rows, Tensor)]


def _like(draws: Draws | None) -> Draws | None:
    return None if draws is None else Draws(**{name: torch.zeros_like(t) for name, t in draws.tensors().items()})


def _tensors(step: Step) -> list[Tensor]:
    """All that a step reads, in a fixed order."""
    return [*_rows(step), *(step.draws.tensors().values() if step.draws is not None else ())]
