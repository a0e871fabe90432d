"""Blob store in S3, Google Cloud Storage or Azure, with a local cache."""

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import structlog
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.http.errors import NotFound, ServiceUnavailable
from app.storage.blobs import DamagedObjectError, StoredObject, digest_from_key, require_digest
from ml.util.files import file_sha256

#: Addresses of buckets, by how they begin.
SCHEMES = ("s3://", "gs://", "az://")
_PROVIDERS = {"s3": "aws_", "gs": "google_", "az": "azure_"}
# of any request, from the connection to the last byte, and of those together that repeat one
_SECONDS = 10
# larger files go in parts, which only a whole upload makes visible; parts cannot be made conditional
_IN_ONE_PIECE = 16 * 1024**2
# what one request for a part of an object reads
_PIECE = 8 * 1024**2
# parts of an upload that share the connection
_PARTS_AT_ONCE = 4
# where the sweep puts what nobody uses, until the next day's sweep removes it
_SWEPT = "swept/"
_log = structlog.get_logger("secondread")


class _Endpoints(BaseSettings):
    """obstore's own variables with the address of a service other than the provider's."""

    model_config = SettingsConfigDict(extra="ignore")

    aws_endpoint: str = ""
    aws_endpoint_url: str = ""
    aws_endpoint_url_s3: str = ""
    google_base_url: str = ""
    azure_endpoint: str = ""
    azure_storage_endpoint: str = ""


def find_endpoints(url: str) -> dict[str, str]:
    """Addresses of the service that has a bucket, by the variable that sets them; none of the provider's own."""
    provider = _PROVIDERS[url.partition("://")[0]]
    variables = _Endpoints().model_dump().items()
    return {name.upper(): address for name, address in variables if address and name.startswith(provider)}


class BucketStore:
    """Blob store in a bucket, or under a prefix of one."""

    def __init__(self, url: str) -> None:
        try:
            import obstore
            from obstore.store import from_url
        except ImportError as exc:
            raise ValueError("a bucket needs the extra s3: pip install 'secondread-cells[s3]'") from exc
        self._api: Any = obstore
        # an endpoint without TLS is one that the settings have allowed
        plain = any(address.startswith("http://") for address in find_endpoints(url).values())
        patient = {"timeout": f"{_SECONDS}s", "connect_timeout": "3s", "allow_http": plain}
        hasty = {"timeout": "2s", "connect_timeout": "1s", "allow_http": plain}
        none = {"max_retries": 0, "retry_timeout": timedelta(seconds=2)}
        retries = {"max_retries": 4, "retry_timeout": timedelta(seconds=_SECONDS)}
        try:
            opened: Any = from_url
            self._store = opened(url, client_options=patient, retry_config=retries)
            self._probe = opened(url, client_options=hasty, retry_config=none)
        except self._api.exceptions.BaseError as exc:
            raise ValueError(f"SECONDREAD_STORAGE_URL: {str(exc).splitlines()[0]}") from exc

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, self._api.exceptions.NotFoundError) as exc:
            raise NotFound("the object is not in the store") from exc
        except self._api.exceptions.AlreadyExistsError:
            raise
        except (OSError, self._api.exceptions.BaseError) as exc:
            _log.warning("the object store does not answer, or refuses", reason=str(exc).splitlines()[0])
            raise ServiceUnavailable("the object store is unavailable; try again shortly") from exc

    def put(self, key: str, content: bytes | Path) -> bool:
        """Store bytes, or those of a file; what is there already stays, unless it is damaged."""
        digest_from_key(key)
        if isinstance(content, Path) and content.stat().st_size > _IN_ONE_PIECE:
            if self.intact(key):
                return False
            with self._asking():
                self._api.put(self._store, key, content, max_concurrency=_PARTS_AT_ONCE)
            return True
        data = content.read_bytes() if isinstance(content, Path) else content
        try:
            with self._asking():
                self._api.put(self._store, key, data, mode="create")
        except self._api.exceptions.AlreadyExistsError:
            if self.intact(key):
                return False
            with self._asking():
                self._api.put(self._store, key, data)
        return True

    def get(self, key: str) -> bytes:
        """Content of an object, also of one that a sweep has just taken for unused."""
        try:
            data = self._read(key)
        except NotFound:
            data = self._read(_SWEPT + key)
            self.put(key, data)
        return data

    def _read(self, key: str) -> bytes:
        data = b"".join(self._pieces(key))
        require_digest(key, hashlib.sha256(data).hexdigest())
        return data

    def _pieces(self, key: str) -> Iterator[bytes]:
        """Content of an object, a large one by several requests, each of which has its time."""
        with self._asking():
            whole = self._api.get(self._store, key)
            size = int(whole.meta["size"])
            if size <= _PIECE:
                yield bytes(whole.bytes())
                return
            for start in range(0, size, _PIECE):
                yield bytes(self._api.get_range(self._store, key, start=start, end=min(start + _PIECE, size)))

    def fetch(self, key: str, path: Path) -> None:
        """Write an object to a file, piece by piece."""
        try:
            with path.open("wb") as stream:
                for piece in self._pieces(key):
                    stream.write(piece)
            require_digest(key, file_sha256(path))
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def intact(self, key: str) -> bool:
        """Whether an object is there and unchanged."""
        digest = hashlib.sha256()
        try:
            for piece in self._pieces(key):
                digest.update(piece)
            require_digest(key, digest.hexdigest())
        except (NotFound, DamagedObjectError):
            return False
        return True

    def under(self, prefix: str) -> Iterator[StoredObject]:
        """Objects whose keys begin with whole parts."""
        moment = datetime.now(UTC)
        with self._asking():
            for chunk in self._api.list(self._store, prefix.rstrip("/")):
                for entry in chunk:
                    with suppress(ValueError):
                        digest_from_key(entry["path"])
                        yield StoredObject(
                            entry["path"], (moment - entry["last_modified"]).total_seconds(), entry["size"]
                        )

    def remove(self, key: str) -> None:
        """Remove an object, wherever a sweep has put it; one that is not there is removed already."""
        with suppress(NotFound), self._asking():
            self._api.delete(self._store, [key, _SWEPT + key])

    def sweep(self, prefix: str, used: Callable[[list[str]], set[str]], older_than: float) -> int:
        """Move aside what nobody uses, and remove what was moved aside before and is still unused."""
        # A bucket cannot remove an object on the condition that nobody stores it again meanwhile. What is moved aside
        # is still found by ``get``, so a row that comes late loses nothing.
        removed = 0
        for aside in self._unused(_SWEPT + prefix, used, older_than):
            with suppress(NotFound), self._asking():
                self._api.delete(self._store, aside)
                removed += 1
        for key in self._unused(prefix, used, older_than):
            with suppress(NotFound), self._asking():
                self._api.copy(self._store, key, _SWEPT + key)
                self._api.delete(self._store, key)
        return removed

    def _unused(self, prefix: str, used: Callable[[list[str]], set[str]], older_than: float) -> Iterator[str]:
        old = [blob.key for blob in self.under(prefix) if blob.age > older_than]
        for start in range(0, len(old), 500):
            batch = old[start : start + 500]
            kept = used([digest_from_key(key) for key in batch])
            yield from (key for key in batch if digest_from_key(key) not in kept)

    def check(self) -> None:
        """Ask for an object that is not there, without patience."""
        with suppress(NotFound), self._asking():
            self._api.head(self._probe, "0" * 64)


class CachedBucket(BucketStore):
    """A bucket with copies on this disk of what was read; they may be deleted at any time."""

    # A copy is checked by its digest whenever it is read, and leaves after a day: what is erased on one machine is not
    # kept on another.

    def __init__(self, url: str, folder: Path, limit: int, keep: float = 86_400.0) -> None:
        super().__init__(url)
        self._folder, self._limit, self._keep = folder, limit, keep
        self._added, self._trimmed = 0, 0.0

    def get(self, key: str) -> bytes:
        """Content of an object, from its copy where that is whole."""
        path = self._folder / key
        try:
            data = path.read_bytes()
            require_digest(key, hashlib.sha256(data).hexdigest())
            return data
        except (OSError, DamagedObjectError):
            data = super().get(key)
        self._copy(path, data)
        return data

    def remove(self, key: str) -> None:
        """Remove an object and its copy here."""
        super().remove(key)
        with suppress(OSError):
            (self._folder / key).unlink(missing_ok=True)

    def _copy(self, path: Path, data: bytes) -> None:
        """Keep a copy; where the disk takes none, the bucket is asked again."""
        unfinished = path.with_name(f"{path.name}.{os.urandom(4).hex()}.tmp")
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(data)
            unfinished.replace(path)
        self._added += len(data)
        if self._added > self._limit // 10 or time.monotonic() - self._trimmed > 60:
            self.trim()

    def trim(self, erased: float = 0.0) -> None:
        """Delete copies that are old, and the oldest ones where there are too many."""
        self._added, self._trimmed, total = 0, time.monotonic(), 0
        for written, size, path in sorted(_list_cached_files(self._folder), reverse=True):
            total += size
            if total > self._limit * 0.9 or written < max(erased, time.time() - self._keep):
                with suppress(OSError):
                    path.unlink()


def _list_cached_files(folder: Path) -> Iterator[tuple[float, int, Path]]:
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file():
                status = path.stat()
                yield status.st_mtime, status.st_size, path
