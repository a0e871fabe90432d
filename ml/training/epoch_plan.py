"""What chance decides of an epoch, drawn before it begins: the order of the cases and what is done to each image."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ml.training.augmentation import Draws, draw, joined
from ml.training.device_data import DeviceData, Rows
from ml.training.processes import Processes
from ml.training.run_folder import TrainConfig


@dataclass(frozen=True)
class Step:
    """One batch.

    Attributes:
        batch: numbers of its cases.
        part: of those, this process's.
        draws: what is done to the images of this part, on the device; None: drawn when the step comes.
    """

    batch: Rows
    part: Rows
    draws: Draws | None


class EpochPlan:
    """The steps of an epoch.

    Args:
        data: where cases are looked up.
        config: batch size, passes and augmentation.
        processes: that share each batch.
        order: numbers of the cases, each as often as it is shown.
        generator: of the augmentation, on the CPU. ``wide`` augmentation draws from it as the steps come, since what it
            draws depends on what it has drawn.
    """

    def __init__(
        self,
        data: DeviceData,
        config: TrainConfig,
        processes: Processes,
        order: npt.NDArray[np.intp],
        generator: torch.Generator,
    ) -> None:
        starts = range(0, len(order), config.batch_size)
        # a last batch of one image would leave batch normalisation without a variance
        self._ends = [
            (start, stop) for start in starts if (stop := min(start + config.batch_size, len(order))) > start + 1
        ]
        self._parts = [_own(processes, start, stop) for start, stop in self._ends]
        self._order = data.located(order)
        self._draws = None
        if config.augmentation != "wide":
            dataset = data.dataset
            drawn = [
                draw(stop - start, dataset.preprocessing.channels, dataset.orientation, config.shift, generator)
                for start, stop in self._parts
                if stop > start  # this process may have no part of a small batch
            ]
            self._draws = joined(drawn).to(data.device)

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[Step]:
        done = 0
        for (start, stop), (first, last) in zip(self._ends, self._parts, strict=True):
            draws = None if self._draws is None else self._draws.rows(done, done + last - first)
            done += last - first
            yield Step(self._order[start:stop], self._order[first:last], draws)


def _own(processes: Processes, start: int, stop: int) -> tuple[int, int]:
    """Ends of a process's part of a batch."""
    rows = processes.part(np.arange(start, stop))
    return (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (stop, stop)
