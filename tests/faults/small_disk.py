"""A file system of a few megabytes that a test fills, empties and makes read-only."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

_STEP = 64 * 1024


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


def _unmount(path: Path) -> None:
    subprocess.run(["umount", "--lazy", str(path)], check=True, capture_output=True)


@contextmanager
def read_only(*folders: Path) -> Iterator[None]:
    """Folders in which nothing can be written while the block runs."""
    with ExitStack() as undo:
        for folder in folders:
            _mount("--bind", str(folder), str(folder))
            undo.callback(_unmount, folder)
            _mount("-o", "remount,bind,ro", str(folder))
        yield


class SmallDisk:
    """A tmpfs of its own; as a context manager it is unmounted at the end."""

    def __init__(self, path: Path, megabytes: int) -> None:
        self.path, self._ballast = path, path / "ballast"
        path.mkdir()
        try:
            _mount("-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "tmpfs", str(path))
        except (OSError, subprocess.CalledProcessError) as error:
            path.rmdir()
            raise PermissionError("no small file system can be mounted") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _unmount(self.path)

    def fill(self, leave: int = 0) -> None:
        """Take all space but some bytes."""
        with self._ballast.open("ab", buffering=0) as stream:
            while (free := shutil.disk_usage(self.path).free) > leave:
                os.posix_fallocate(stream.fileno(), stream.tell(), min(_STEP, free - leave))
                stream.seek(0, os.SEEK_END)

    def empty(self) -> None:
        self._ballast.unlink()
