"""Files to which lines are only ever added, by one process at a time."""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path


@contextmanager
def open_locked(path: Path) -> Iterator[TextIOWrapper]:
    """The file, at its beginning and for this process alone; it is made where it is missing, with its folder.

    What is written goes to its end.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        yield stream


def add_lines(stream: TextIOWrapper, lines: Iterable[str]) -> None:
    """Add lines to an open file; they are on the disk when this returns."""
    stream.writelines(line + "\n" for line in lines)
    stream.flush()
    os.fsync(stream.fileno())
