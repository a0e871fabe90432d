"""Progress bars on stderr, of what takes longer than a second."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ml.cli.shared import say

if TYPE_CHECKING:
    from ml.images.decoded import Observer
    from ml.training.learner import StepReport

#: Between two lines that say how a training goes.
_LINE_SECONDS = 0.5


class TrainingBar:
    """Progress on stderr: epoch, loss, images a second, time left; a line an epoch where it is no terminal.

    Args:
        epochs: at most.
    """

    def __init__(self, epochs: int) -> None:
        self.epochs, self.next_line = epochs, 0.0
        self.console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=self.console, disable=not self.console.is_terminal)
        self.task = self.bar.add_task("starting", total=None)

    def __enter__(self) -> "TrainingBar":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def update(self, report: "StepReport") -> None:
        """Show where training stands."""
        done, last = report.epoch * report.steps + report.step, report.step == report.steps
        self.bar.update(self.task, total=self.epochs * report.steps, completed=done)
        if not last and time.monotonic() < self.next_line:  # to read the loss is to wait for a GPU
            return
        self.next_line = time.monotonic() + _LINE_SECONDS
        line = (
            f"epoch {report.epoch + 1}/{self.epochs}  loss {report.loss:.4f}  {report.images_per_second:,.0f} images/s"
        )
        self.bar.update(self.task, description=line)
        if not self.console.is_terminal and last:
            say(line)


@contextmanager
def reading_bar(*, shown: bool) -> "Iterator[Observer]":
    """How many images have been decoded of how many; nothing where none has to be.

    Args:
        shown: whether this process shows anything.
    """
    console = Console(stderr=True)
    columns = (TextColumn("decoding images"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not (shown and console.is_terminal)) as bar:
        task = bar.add_task("", total=None, visible=False)

        def observe(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, visible=True)

        yield observe
