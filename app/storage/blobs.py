"""Blob stores, and the images in them."""

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from app.http.errors import NotFound, ServiceUnavailable, StorageFull
from ml.util.files import file_sha256, sync_folder


def require_space(folder: Path, min_free_bytes: int, size: int = 0) -> None:
    """Refuse to store more where too little space is left."""
    if shutil.disk_usage(folder).free < max(min_free_bytes, size):
        raise StorageFull("too little disk space is left for uploads; labels are still accepted")


_KEY = re.compile(r"(?:[a-z0-9-]+/)*([0-9a-f]{64})(?:\.[a-z]+)?")


class DamagedObjectError(ValueError):
    """Stored object whose content does not match its key."""


@dataclass(frozen=True)
class StoredObject:
    """An object of a listing, with its age in seconds and its size in bytes."""

    key: str
    age: float
    size: int


class BlobStore(Protocol):
    """Interface of a store; every method may raise ServiceUnavailable."""

    def put(self, key: str, content: bytes | Path) -> bool:
        """Store bytes, or those of a file, durably; what is there already stays, unless it is damaged."""

    def get(self, key: str) -> bytes:
        """Content of an object; raises NotFound, or Damaged."""

    def fetch(self, key: str, path: Path) -> None:
        """Write an object to a file; raises NotFound, or Damaged, and then leaves no file."""

    def intact(self, key: str) -> bool:
        """Whether an object is there and unchanged."""

    def under(self, prefix: str) -> Iterator[StoredObject]:
        """Objects whose keys begin with whole parts."""

    def remove(self, key: str) -> None:
        """Remove an object; one that is not there is removed already."""

    def sweep(self, prefix: str, used: Callable[[list[str]], set[str]], older_than: float) -> int:
        """Remove old objects that nobody uses, and what interrupted writes left."""

    def check(self) -> None:
        """Raise ServiceUnavailable if the store cannot be reached."""


def digest_from_key(key: str) -> str:
    """SHA-256 in a key."""
    key_match = _KEY.fullmatch(key)
    if key_match is None:
        raise ValueError("not a SHA-256")
    return key_match[1]


def require_digest(key: str, digest: str) -> None:
    """Refuse content of another digest than its key's."""
    if digest != digest_from_key(key):
        raise DamagedObjectError("a stored object is damaged; the same content, stored again, takes its place")


class FolderStore:
    """Objects as files of a folder: temporary file, fsync, replace, fsync of the folder."""

    def __init__(self, root: Path, min_free_bytes: int) -> None:
        self.root = root
        self.min_free_bytes = min_free_bytes
        root.mkdir(parents=True, exist_ok=True)

    def path(self, key: str) -> Path:
        """Path of an object."""
        digest_from_key(key)
        return self.root / key

    def put(self, key: str, content: bytes | Path) -> bool:
        """Store bytes, or those of a file, durably; what is there already stays, unless it is damaged."""
        target = self.path(key)
        try:
            if self.intact(key):
                os.utime(target)  # a sweep of what nobody uses must not take it before its row is there
                return False
        except OSError:
            pass  # it was swept just now
        size = content.stat().st_size if isinstance(content, Path) else len(content)
        require_space(self.root, self.min_free_bytes, size)
        temporary = target.with_name(f"{target.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as stream:
                if isinstance(content, Path):
                    with content.open("rb") as source:
                        shutil.copyfileobj(source, stream, 1 << 20)
                else:
                    stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(target)
            sync_folder(target.parent)
        except OSError as exc:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise StorageFull("the image could not be stored; labels are still accepted") from exc
        return True

    def get(self, key: str) -> bytes:
        """Content of an object."""
        try:
            data = self.path(key).read_bytes()
        except FileNotFoundError as exc:
            raise NotFound("the object is not in the store") from exc
        except OSError as exc:
            raise ServiceUnavailable("the object is temporarily unreadable") from exc
        require_digest(key, hashlib.sha256(data).hexdigest())
        return data

    def fetch(self, key: str, path: Path) -> None:
        """Write an object to a file."""
        try:
            shutil.copyfile(self.path(key), path)
        except FileNotFoundError as exc:
            raise NotFound("the object is not in the store") from exc
        try:
            require_digest(key, file_sha256(path))
        except DamagedObjectError:
            path.unlink()
            raise

    def intact(self, key: str) -> bool:
        """Whether an object is there and unchanged."""
        try:
            return file_sha256(self.path(key)) == digest_from_key(key)
        except OSError:
            return False

    def under(self, prefix: str) -> Iterator[StoredObject]:
        """Objects whose keys begin with whole parts."""
        for path in sorted((self.root / prefix).rglob("*")):
            key = path.relative_to(self.root).as_posix()
            if _KEY.fullmatch(key) and path.is_file():
                with suppress(FileNotFoundError):  # it was removed just now
                    yield StoredObject(key, _file_age_seconds(path), path.stat().st_size)

    def remove(self, key: str) -> None:
        """Remove an object; one that is not there is removed already."""
        self.path(key).unlink(missing_ok=True)

    def sweep(self, prefix: str, used: Callable[[list[str]], set[str]], older_than: float) -> int:
        """Remove files of interrupted writes and objects that nobody uses."""
        # An object is stored before its row, so only what is older than any request is taken. What is stored again
        # while it is looked at stays: it is moved aside first, and back if somebody has touched it.
        removed = 0
        for folder in sorted(path for path in (self.root / prefix).glob("**/") if path.is_dir()):
            old = [path for path in folder.iterdir() if path.is_file() and _file_age_seconds(path) > older_than]
            kept = used([path.name[:64] for path in old if _KEY.fullmatch(path.name)])
            for path in old:
                if not (_KEY.fullmatch(path.name) and path.name[:64] in kept):
                    removed += self._remove_unless_touched(path, older_than)
        return removed

    def _remove_unless_touched(self, path: Path, older_than: float) -> bool:
        aside = path.with_name(f"{path.name}.{os.urandom(4).hex()}.tmp")
        try:
            path.rename(aside)
            if _file_age_seconds(aside) <= older_than:
                aside.replace(path)
                return False
            aside.unlink()
        except FileNotFoundError:  # another sweep was faster
            return False
        return True

    def check(self) -> None:
        """Do nothing: what a folder cannot do now it says when it is asked."""


def _file_age_seconds(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


class ImageStore:
    """Images by their SHA-256."""

    def __init__(self, store: BlobStore, prefix: str = "") -> None:
        self.store, self.prefix = store, prefix

    def key(self, digest: str) -> str:
        """Key of an image."""
        if digest != digest_from_key(digest):
            raise ValueError("not a SHA-256")
        return f"{self.prefix}{digest[:2]}/{digest}"

    def put(self, data: bytes) -> str:
        """Store bytes durably and return their SHA-256; a damaged image of this name is replaced."""
        return self.keep(data)[0]

    def keep(self, data: bytes) -> tuple[str, bool]:
        """The same, and whether they were written; else they were there, of somebody who may be erased."""
        digest = hashlib.sha256(data).hexdigest()
        return digest, self.store.put(self.key(digest), data)

    def get(self, digest: str) -> bytes:
        """Content of an image."""
        try:
            return self.store.get(self.key(digest))
        except NotFound as exc:
            raise NotFound("the image is not in the store") from exc
        except DamagedObjectError as exc:
            raise ServiceUnavailable("the stored image is damaged; upload the same image again to replace it") from exc

    def find(self, digest: str) -> bytes | None:
        """Content of an image; None where it is missing or was damaged, or where it alone cannot be read."""
        try:
            return self.store.get(self.key(digest))
        except (NotFound, DamagedObjectError):
            return None
        except ServiceUnavailable:
            self.store.check()
            return None

    def remove(self, digest: str) -> None:
        """Remove an image; one that is not there is removed already."""
        self.store.remove(self.key(digest))

    def intact(self, digest: str) -> bool:
        """Whether an image is there and unchanged."""
        return self.store.intact(self.key(digest))

    def sweep(self, used: Callable[[list[str]], set[str]], older_than: float) -> int:
        """Remove what interrupted writes left and images that no row names; see ``BlobStore.sweep``."""
        return self.store.sweep(self.prefix, used, older_than)
