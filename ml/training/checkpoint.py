"""Checkpoints after each epoch, from which a killed run resumes.

A large network on a fast device is through with an epoch sooner than its weights are on the disk. Then some epochs are
left out, so that writing takes a sixtieth of the time at most.
"""

import time
from dataclasses import dataclass, field
from io import BytesIO
from typing import TypedDict

import torch
from torch import Tensor

from ml.charts.rows import EpochMetrics
from ml.training.learner import Learner, LearnerState
from ml.training.run_folder import RunFolder
from ml.util.files import write_bytes_atomically

#: A checkpoint of more bytes is written again only after so many times the time that writing it took.
LARGE, _AT_LEAST = 64_000_000, 60.0


class _State(TypedDict):
    """A ``Progress`` without its weights."""

    epoch: int
    best_loss: float
    best_epoch: int
    history: list[EpochMetrics]


class _Checkpoint(LearnerState):
    """Everything that a checkpoint contains."""

    best: dict[str, Tensor]
    state: _State


@dataclass
class Progress:
    """Progress of a run.

    Attributes:
        epoch: the next one.
        best_loss: validation loss of the best epoch.
        best_epoch: its number.
        history: rows of ``metrics.jsonl``.
        best: weights of the best epoch.
        written: how many epochs the checkpoint contains that this process has written; −1 before the first.
        not_before: when it may be written again, in seconds of the monotonic clock.
    """

    epoch: int = 0
    best_loss: float = float("inf")
    best_epoch: int = -1
    history: list[EpochMetrics] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)
    written: int = -1
    not_before: float = 0.0

    @property
    def worth_writing(self) -> bool:
        """Whether enough time has passed since it was last written."""
        return time.monotonic() >= self.not_before

    def keep(self, loss: float, learner: Learner) -> None:
        """Remember the current weights as the best."""
        self.best_loss, self.best_epoch = loss, self.epoch
        self.best = {name: tensor.detach().clone() for name, tensor in learner.judged.state_dict().items()}


def save_checkpoint(folder: RunFolder, learner: Learner, progress: Progress) -> None:
    """Write checkpoint and metrics."""
    began = time.monotonic()
    state: _State = {
        "epoch": progress.epoch,
        "best_loss": progress.best_loss,
        "best_epoch": progress.best_epoch,
        "history": progress.history,
    }
    checkpoint: _Checkpoint = {**learner.state_dict(), "best": progress.best, "state": state}
    buffer = BytesIO()
    torch.save(checkpoint, buffer)
    write_bytes_atomically(folder.checkpoint, buffer.getbuffer())
    folder.write_metrics(progress.history)
    progress.written, ended = progress.epoch, time.monotonic()
    if buffer.tell() > LARGE:
        progress.not_before = ended + _AT_LEAST * (ended - began)


def load_checkpoint(folder: RunFolder, learner: Learner) -> Progress:
    """Put a learner where the checkpoint left it; the start where there is none. The first process reads it for all."""
    checkpoint = learner.processes.from_first(
        lambda: folder.checkpoint.read_bytes() if folder.checkpoint.is_file() else b""
    )
    if not checkpoint:
        return Progress()
    document: _Checkpoint = torch.load(BytesIO(checkpoint), map_location=learner.data.device, weights_only=True)
    learner.load_state_dict(document)
    return Progress(**document["state"], best=document["best"])
