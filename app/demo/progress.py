"""A bar on stderr with the time that is left, where there is a terminal; nothing elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class Bar:
    """One task of a bar.

    Args:
        progress: bar that is shown.
        task: of it.
    """

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def update(self, done: int, total: int | None = None) -> None:
        """How much is done, and of how much where that became known."""
        self._progress.update(self._task, completed=done, total=total)


@contextmanager
def progress_bar(what: str, total: int | None) -> Iterator[Bar]:
    """Show how far something is, and how long it will take.

    Args:
        what: a word for it.
        total: number of steps; None: known later.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield Bar(bar, bar.add_task(what, total=total))
