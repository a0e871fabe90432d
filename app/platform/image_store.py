"""Content-addressed image store in a local folder.

A file's name is the SHA-256 of its content, so a name never comes from outside and a changed file shows.
Written as: temporary file in the same folder, fsync, replace, fsync of the folder; only then the row.
"""

import hashlib
import os
from pathlib import Path

from app.platform.disk_space import require_space
from app.platform.errors import NotFound, StorageFull

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
        """Store bytes durably and return their SHA-256; storing the same again is free.

        Raises:
            StorageFull: too little space is left.
        """
        digest = hashlib.sha256(data).hexdigest()
        target = self.path(digest)
        if target.is_file():
            return digest
        require_space(self.root, self.min_free_bytes, len(data))
        target.parent.mkdir(exist_ok=True)
        temporary = target.with_name(f"{digest}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
        try:
            with temporary.open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(target)
        except OSError as exc:
            temporary.unlink(missing_ok=True)
            raise StorageFull("the image could not be stored; labels are still accepted") from exc
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return digest

    def get(self, digest: str) -> bytes:
        """Content of an image.

        Raises:
            NotFound: it is not there.
        """
        try:
            return self.path(digest).read_bytes()
        except OSError as exc:
            raise NotFound("the image is not in the store") from exc

    def remove(self, digest: str) -> None:
        """Remove an image; one that is not there is removed already."""
        self.path(digest).unlink(missing_ok=True)

    def intact(self, digest: str) -> bool:
        """Whether an image is there and unchanged."""
        try:
            return hashlib.sha256(self.path(digest).read_bytes()).hexdigest() == digest
        except OSError:
            return False
