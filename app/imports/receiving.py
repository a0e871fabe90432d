"""Receive an archive: write it durably, hash and check it, or refuse and remove it."""

import hashlib
import os
import zipfile
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from io import BufferedWriter
from pathlib import Path
from typing import IO, cast

from starlette.concurrency import run_in_threadpool

from app.context import ServiceContext
from app.database.tables import new_id
from app.http.errors import InvalidValue, StorageFull, TooLarge
from app.http.limiter import MAX_ARCHIVE
from app.imports.archive_storage import (
    ReceivedArchive,
    bytes_of_archives,
    new_partial_path,
    remove_unclaimed,
    store_in_bucket,
)
from app.imports.zip_contents import ArchiveError, open_archive
from app.storage.blobs import BlobStore, require_space

_NAME = "the archive"
# how many bytes are written before the free space is looked at again
_SPACE_EVERY = 16 * 1024**2
# how many archives of the largest size may lie in HOME/imports: arriving, waiting, failed
_LARGEST_AT_ONCE = 4


class ArchiveReceiver:
    """Takes the bytes of one archive, as a stream that can be written to."""

    def __init__(
        self,
        stream: BufferedWriter,
        path: Path,
        min_free_bytes: int,
        limit: int | None,
        name: str,
        elsewhere: int = 0,
    ) -> None:
        self._stream, self._path, self._limit, self._name, self._elsewhere = stream, path, limit, name, elsewhere
        self._min_free_bytes, self._digest, self._size, self._checked = min_free_bytes, hashlib.sha256(), 0, 0
        self._require_room()

    def _require_room(self) -> None:
        """Refuse more where labels would lack the space, or archives together take more than their quota."""
        require_space(self._path.parent, self._min_free_bytes)
        if self._limit is None:
            return
        quota = _LARGEST_AT_ONCE * self._limit
        if _size_of(self._path.parent) + self._elsewhere > quota:
            raise StorageFull(
                "other archives use all {quota:,} MiB of archive space; try again when an import has "
                "ended, or cancel one",
                quota=quota // 1024**2,
            )

    def write(self, chunk: bytes) -> int:
        """Take some bytes."""
        self._size += len(chunk)
        if self._size - self._checked >= _SPACE_EVERY:
            self._require_room()
            self._checked = self._size
        if self._limit is not None and self._size > self._limit:
            raise TooLarge("{name} is larger than {limit} MiB", name=self._name, limit=self._limit // 1024**2)
        self._digest.update(chunk)
        with _map_storage_errors():
            return self._stream.write(chunk)

    def flush(self) -> None:
        """Do nothing: ``finish`` writes everything through to the disk."""

    def finish(self) -> ReceivedArchive:
        """Write everything through to the disk and make sure that the archive can be imported."""
        with _map_storage_errors():
            self._stream.flush()
            os.fsync(self._stream.fileno())
        try:
            with open_archive(self._path, self._name) as archive:
                has_labels, n_rows = bool(archive.label_files), len(archive.rows)
                return ReceivedArchive(self._path, self._digest.hexdigest(), n_rows, new_id(), has_labels)
        except ArchiveError as exc:
            raise InvalidValue(str(exc)) from exc


def _size_of(folder: Path) -> int:
    total = 0
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # its import has just ended
            total += path.stat().st_size
    return total


@contextmanager
def _map_storage_errors() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise StorageFull("the archive could not be stored; is the disk full?") from exc


@contextmanager
def receive_archive(
    home: Path,
    min_free_bytes: int,
    *,
    limit: int | None = MAX_ARCHIVE,
    name: str = _NAME,
    bucket: BlobStore | None = None,
) -> Iterator[ArchiveReceiver]:
    """A receiver on a file of its own in HOME/imports, which is removed at the end unless an import has taken it."""
    path, elsewhere = new_partial_path(home), bytes_of_archives(bucket)
    try:
        with _map_storage_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            stream = path.open("wb")
        with stream:
            yield ArchiveReceiver(stream, path, min_free_bytes, limit, name, elsewhere)
    finally:
        with suppress(OSError):  # a folder that takes no writes
            path.unlink(missing_ok=True)


@asynccontextmanager
async def receive_body(chunks: AsyncIterable[bytes], context: ServiceContext) -> AsyncIterator[ReceivedArchive]:
    """Receive an archive as it arrives; no thread waits for a slow sender."""
    settings, bucket = context.settings, context.bucket
    async with AsyncExitStack() as stack:
        opening = receive_archive(settings.home, settings.min_free_bytes, bucket=bucket)
        receiver = await run_in_threadpool(stack.enter_context, opening)
        async for chunk in chunks:
            await run_in_threadpool(receiver.write, chunk)
        archive = await run_in_threadpool(receiver.finish)
        try:
            await run_in_threadpool(store_in_bucket, bucket, archive)
            yield archive
        finally:
            await run_in_threadpool(remove_unclaimed, bucket, archive)


@contextmanager
def pack_files(files: Iterable[tuple[str, bytes]], context: ServiceContext) -> Iterator[ReceivedArchive]:
    """Pack what was received otherwise as an archive, not compressed."""
    settings, bucket = context.settings, context.bucket
    with receive_archive(settings.home, settings.min_free_bytes, bucket=bucket) as receiver:
        with zipfile.ZipFile(cast(IO[bytes], receiver), "w") as packed:
            for name, data in files:
                packed.writestr(name, data)
        archive = receiver.finish()
        try:
            store_in_bucket(bucket, archive)
            yield archive
        finally:
            remove_unclaimed(bucket, archive)
