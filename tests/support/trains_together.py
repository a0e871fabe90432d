"""A training that several processes share, for tests.

``torchrun … -m tests.support.trains_together RUN CONFIG KILLED`` trains into RUN; CONFIG are changes of
``quick_config`` as JSON, with ``float64``, and KILLED the processes that end themselves in the third epoch, as JSON.
"""

import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from ml.datasets.base import ImageDataset
from ml.datasets.cells import load_cells
from ml.training import learner
from ml.training.learner import StepReport
from ml.training.networks import Network, build_network
from ml.training.processes import ALONE, Processes, started_processes
from ml.training.run_folder import RunFolder
from ml.training.train import train
from tests.support.configs import quick_config
from tests.support.waiting import wait_until

CPU = torch.device("cpu")
#: Epoch, from 0, and step, from 1, before the end of which processes are killed.
KILLED_AT = (2, 3)


def small_cells(network: str) -> ImageDataset:
    """Simulated cells of 16 px, of which 130 train; unaugmented for ``cnn3``."""
    cells = load_cells(240, seed=3)
    preprocessing = replace(cells.preprocessing, size=16)
    orientation = "fixed" if network == "cnn3" else cells.orientation
    return replace(cells, pixels=cells.pixels[:, ::3, ::3], preprocessing=preprocessing, orientation=orientation)


def without_dropout(name: str, *arguments: Any) -> Network:
    """The network of these arguments; ``cnn3`` without its dropout."""
    network = build_network(name, *arguments)
    for module in network.modules():
        if isinstance(module, nn.Dropout) and name == "cnn3":
            module.p = 0.0
    return network


def in_float64(name: str, *arguments: Any) -> Network:
    """The same in float64, where the optimiser does not turn rounding into steps of another sign."""
    network = without_dropout(name, *arguments).double()
    network.backbone.register_forward_pre_hook(lambda _, inputs: tuple(tensor.double() for tensor in inputs))
    return network


def train_together(
    run: Path, changes: dict[str, Any], killed: list[int] | None = None, processes: Processes = ALONE
) -> None:
    """Train into a run folder, as one of the processes."""

    def observe(report: StepReport) -> None:
        if processes.rank in (killed or []) and (report.epoch, report.step) == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)

    settings = {"network": "cnn3", "learning_rate": 1e-3} | changes
    build = in_float64 if settings.pop("float64", False) else without_dropout
    config = quick_config(**settings)
    with patch.object(learner, "build_network", build):
        cells = small_cells(config.network)
        train(cells, config, RunFolder(run), device=CPU, observer=observe, processes=processes)


def main() -> None:
    torch.set_num_threads(1)
    changes, killed = (json.loads(text) for text in sys.argv[2:])
    with started_processes() as processes:
        train_together(Path(sys.argv[1]), changes, killed, processes)
    # one that is left may abort the process when Python ends
    wait_until(lambda: not any(name.startswith("pt_gloo") for name in _threads()), 10)


def _threads() -> list[str]:
    names = []
    for folder in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # has ended
            names.append((folder / "comm").read_text())
    return names


if __name__ == "__main__":
    main()
