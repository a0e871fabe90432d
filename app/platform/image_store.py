"""Content-addressed image store in a local folder.

A file's name is the SHA-256 of its content, so a name never comes from outside and a changed file shows: it is never
served, and the same pixels, uploaded again, take its place.
Written as: temporary file in the same folder, fsync, replace, fsync of the folder; only then the row.
"""

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from app.platform.disk_space import require_space
from app.platform.errors import NotFound, StorageFull, Unavailable
from ml.files import sync_folder

_HEX = frozenset("0123456789abcdef")


class ImageStore:
    """Images by their SHA-256.

    Args:
        root: folder.
        min_free_bytes: free space below which nothing more is stored.
    """

    def __init__(self, root: Path, min_free_bytes: int) -> None:
        self.root = root
        self.min_free_bytes = min_free_bytes
        root.mkdir(parents=True, exist_ok=True)

    def path(self, digest: str) -> Path:
        """Path of an image.

        Raises:
            ValueError: not a SHA-256.
        """
        if len(digest) != 64 or not set(digest) <= _HEX:
            raise ValueError("not a SHA-256")
        return self.root / digest[:2] / digest

    def put(self, data: bytes) -> str:
        """Store bytes durably and return their SHA-256; a damaged file of this name is replaced.

        Raises:
            StorageFull: too little space is left, or the folder cannot be written.
        """
        digest = hashlib.sha256(data).hexdigest()
        target = self.path(digest)
        try:
            if self.intact(digest):
                os.utime(target)  # a sweep of what nobody uses must not take it before its row is there
                return digest
        except OSError:
            pass  # it was swept just now
        require_space(self.root, self.min_free_bytes, len(data))
        temporary = target.with_name(f"{digest}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
        try:
            target.parent.mkdir(exist_ok=True)
            with temporary.open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(target)
            sync_folder(target.parent)
        except OSError as exc:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise StorageFull("the image could not be stored; labels are still accepted") from exc
        return digest

    def get(self, digest: str) -> bytes:
        """Content of an image.

        Raises:
            NotFound: it is not there.
            Unavailable: the file was damaged.
        """
        try:
            data = self.path(digest).read_bytes()
        except FileNotFoundError as exc:
            raise NotFound("the image is not in the store") from exc
        except OSError as exc:
            raise Unavailable("the image cannot be read just now") from exc
        if hashlib.sha256(data).hexdigest() != digest:
            raise Unavailable("the stored image is damaged; the same image, uploaded again, takes its place")
        return data

    def remove(self, digest: str) -> None:
        """Remove an image; one that is not there is removed already."""
        self.path(digest).unlink(missing_ok=True)

    def intact(self, digest: str) -> bool:
        """Whether an image is there and unchanged."""
        try:
            return hashlib.sha256(self.path(digest).read_bytes()).hexdigest() == digest
        except OSError:
            return False

    def sweep(self, used: Callable[[list[str]], set[str]], older_than: float) -> int:
        """Remove files of interrupted writes and images that no row names.

        An image is stored before its row, so only what is older than any request is taken. What is stored again while
        it is looked at stays: it is moved aside first, and back if somebody has touched it.

        Args:
            used: which of some digests a row names.
            older_than: age in seconds.

        Returns:
            Number of files removed.
        """
        removed = 0
        for folder in sorted(path for path in self.root.iterdir() if path.is_dir() and len(path.name) == 2):
            old = [path for path in folder.iterdir() if _age(path) > older_than]
            kept = used([path.name for path in old if len(path.name) == 64])
            for path in old:
                if path.name not in kept:
                    removed += self._remove_unless_touched(path, older_than)
        return removed

    def _remove_unless_touched(self, path: Path, older_than: float) -> bool:
        aside = path.with_name(f"{path.name}.{os.urandom(4).hex()}.tmp")
        try:
            path.rename(aside)
            if _age(aside) <= older_than:
                aside.replace(path)
                return False
            aside.unlink()
        except FileNotFoundError:  # another sweep was faster
            return False
        return True


def _age(path: Path) -> float:
    """Seconds since a file was written or touched; 0 for one that is gone."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
