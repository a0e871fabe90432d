"""Where archives of imports lie: in HOME by the names of their jobs, or in the bucket, where every worker finds them.

In the bucket an archive is stored under the identifier of its job before that job is asked for, since no transaction
should wait for an upload. The file that was received stands for "nobody has taken it yet": whoever asks for the job
removes it, and an archive whose file is still there at the end of the request is taken back.
"""

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from app.context import Context
from app.http.errors import NotFound, Unavailable
from app.imports.zip_contents import Archive, ArchiveError, open_archive
from app.storage.blobs import BlobStore, Damaged
from app.storage.disk_space import require_space

_IMPORTS = "imports"


@dataclass(frozen=True)
class ReceivedArchive:
    """An archive that can be imported.

    Attributes:
        path: where it lies until the import takes it; removed when nothing does.
        sha256: of its bytes.
        n_rows: cases to import.
        job_id: identifier that the job with it gets.
    """

    path: Path
    sha256: str
    n_rows: int
    job_id: uuid.UUID

    @property
    def key(self) -> str:
        """Key in the bucket."""
        return f"{_IMPORTS}/{self.job_id}/{self.sha256}.zip"


@dataclass(frozen=True)
class StoredArchive:
    """An archive that a job has, or had.

    Attributes:
        job_id: job that it was sent for.
        age: in seconds.
        remove: removes it.
    """

    job_id: uuid.UUID
    age: float
    remove: Callable[[], None]


def archive_of(home: Path, job_id: uuid.UUID) -> Path:
    """Where the archive of an import lies in HOME."""
    return home / _IMPORTS / f"{job_id}.zip"


def part_of(home: Path) -> Path:
    """A new place in HOME for what is not whole yet."""
    return home / _IMPORTS / f".{uuid.uuid4().hex}.part"


def put_into(bucket: BlobStore | None, archive: ReceivedArchive) -> None:
    """Store an archive where every worker finds it, if there is such a place."""
    if bucket is not None:
        bucket.put(archive.key, archive.path)


def take_back(bucket: BlobStore | None, archive: ReceivedArchive) -> None:
    """Remove an archive from the bucket if no job has taken it; what cannot be removed now the worker removes."""
    if bucket is not None and archive.path.exists():
        with suppress(Unavailable):
            bucket.remove(archive.key)


def hand_over(context: Context, archive: ReceivedArchive) -> None:
    """Give an archive to its job, in the transaction that asks for the job."""
    if context.bucket is not None:
        archive.path.unlink()
        return
    os.utime(archive.path)  # nobody knows the job before the commit: until then the archive's age protects it
    archive.path.replace(archive_of(context.settings.home, archive.job_id))


def hand_on(context: Context, check_id: uuid.UUID, job_id: uuid.UUID) -> None:
    """Give the archive of a check to the import that follows; in the bucket it stays where it is."""
    if context.bucket is None:
        path = archive_of(context.settings.home, check_id)
        os.utime(path)
        path.replace(archive_of(context.settings.home, job_id))


def is_kept(context: Context, job_id: uuid.UUID) -> bool:
    """Whether the archive of a job is still there."""
    if context.bucket is None:
        return archive_of(context.settings.home, job_id).exists()
    return any(True for _ in context.bucket.under(f"{_IMPORTS}/{job_id}"))


@contextmanager
def opened(context: Context, job_id: uuid.UUID, check_id: str | None) -> Iterator[Archive]:
    """The archive of a job; of a bucket's there is a copy in HOME, which goes as soon as it is open.

    Args:
        context: parts of the service.
        job_id: an import or a check.
        check_id: the check that an import followed; None for any other job.

    Raises:
        FileNotFoundError: it was deleted.
        ArchiveError: it cannot be imported at all.
    """
    if context.bucket is None:
        with open_archive(archive_of(context.settings.home, job_id)) as archive:
            yield archive
        return
    folder = part_of(context.settings.home)
    try:
        path = folder / f"{job_id}.zip"
        _fetch(context, context.bucket, f"{_IMPORTS}/{check_id or job_id}", path)
        with open_archive(path) as archive:
            shutil.rmtree(folder)  # a killed worker leaves no image of a patient
            yield archive
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fetch(context: Context, bucket: BlobStore, name: str, path: Path) -> None:
    """Copy an archive of the bucket into a folder to be made.

    Raises:
        FileNotFoundError: it was deleted.
        ArchiveError: it is damaged.
    """
    path.parent.mkdir(parents=True)
    for found in bucket.under(name):
        require_space(path.parent, context.settings.min_free_bytes, found.size)
        try:
            bucket.fetch(found.key, path)
        except NotFound:
            break
        except Damaged as exc:
            raise ArchiveError("the archive was damaged after it had been sent; send it again") from exc
        return
    raise FileNotFoundError(path)


def stored_archives(context: Context) -> Iterator[StoredArchive]:
    """Archives that jobs have, or had."""
    for path in (context.settings.home / _IMPORTS).glob("*.zip"):
        yield StoredArchive(uuid.UUID(path.stem), _age(path), partial(path.unlink, missing_ok=True))
    if context.bucket is None:
        return
    for found in context.bucket.under(_IMPORTS):
        yield StoredArchive(uuid.UUID(found.key.split("/")[1]), found.age, partial(context.bucket.remove, found.key))


def bytes_of_archives(bucket: BlobStore | None) -> int:
    """Bytes of all archives in the bucket."""
    return 0 if bucket is None else sum(found.size for found in bucket.under(_IMPORTS))


def _age(path: Path) -> float:
    """Seconds since a file was written; 0 for one that is gone."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
