"""Storage of import archives: in HOME, or in the bucket for all workers."""

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from app.context import ServiceContext
from app.http.errors import NotFound, ServiceUnavailable
from app.imports.zip_contents import ArchiveError, ImportArchive, open_archive
from app.storage.blobs import BlobStore, DamagedObjectError, require_space

_IMPORTS = "imports"


@dataclass(frozen=True)
class ReceivedArchive:
    """An archive that can be imported."""

    # where it lies until the import takes it; removed when nothing does
    path: Path
    sha256: str
    n_rows: int
    # identifier that the job with it gets
    job_id: uuid.UUID
    # whether there are files of labels in it
    has_labels: bool = False

    @property
    def key(self) -> str:
        """Key in the bucket."""
        return f"{_IMPORTS}/{self.job_id}/{self.sha256}.zip"


@dataclass(frozen=True)
class StoredArchive:
    """An archive that a job has, or had."""

    # job that it was sent for
    job_id: uuid.UUID
    age: float
    remove: Callable[[], None]


def archive_path(home: Path, job_id: uuid.UUID) -> Path:
    """Return the path of an import's archive in HOME."""
    return home / _IMPORTS / f"{job_id}.zip"


def new_partial_path(home: Path) -> Path:
    """Return a new path in HOME for an incomplete file."""
    return home / _IMPORTS / f".{uuid.uuid4().hex}.part"


def store_in_bucket(bucket: BlobStore | None, archive: ReceivedArchive) -> None:
    """Store an archive in the bucket, if there is one."""
    if bucket is not None:
        bucket.put(archive.key, archive.path)


def remove_unclaimed(bucket: BlobStore | None, archive: ReceivedArchive) -> None:
    """Remove an archive from the bucket unless a job has taken it; the worker removes leftovers."""
    if bucket is not None and archive.path.exists():
        with suppress(ServiceUnavailable):
            bucket.remove(archive.key)


def move_to_job(context: ServiceContext, archive: ReceivedArchive) -> None:
    """Move an archive to its job, in the transaction that creates the job."""
    if context.bucket is not None:
        archive.path.unlink()
        return
    os.utime(archive.path)  # nobody knows the job before the commit: until then the archive's age protects it
    archive.path.replace(archive_path(context.settings.home, archive.job_id))


def pass_to_import(context: ServiceContext, check_id: uuid.UUID, job_id: uuid.UUID) -> None:
    """Give the archive of a check to the import that follows; in the bucket it stays where it is."""
    if context.bucket is None:
        path = archive_path(context.settings.home, check_id)
        os.utime(path)
        path.replace(archive_path(context.settings.home, job_id))


def is_kept(context: ServiceContext, job_id: uuid.UUID) -> bool:
    """Whether the archive of a job is still there."""
    if context.bucket is None:
        return archive_path(context.settings.home, job_id).exists()
    return any(True for _ in context.bucket.under(f"{_IMPORTS}/{job_id}"))


@contextmanager
def open_job_archive(context: ServiceContext, job_id: uuid.UUID, check_id: str | None) -> Iterator[ImportArchive]:
    """The archive of a job; of a bucket's there is a copy in HOME, which goes as soon as it is open."""
    if context.bucket is None:
        with open_archive(archive_path(context.settings.home, job_id)) as archive:
            yield archive
        return
    folder = new_partial_path(context.settings.home)
    try:
        path = folder / f"{job_id}.zip"
        _fetch_from_bucket(context, context.bucket, f"{_IMPORTS}/{check_id or job_id}", path)
        with open_archive(path) as archive:
            shutil.rmtree(folder)  # a killed worker leaves no image of a patient
            yield archive
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fetch_from_bucket(context: ServiceContext, bucket: BlobStore, name: str, path: Path) -> None:
    path.parent.mkdir(parents=True)
    for blob in bucket.under(name):
        require_space(path.parent, context.settings.min_free_bytes, blob.size)
        try:
            bucket.fetch(blob.key, path)
        except NotFound:
            break
        except DamagedObjectError as exc:
            raise ArchiveError("the archive was damaged after the upload; send it again") from exc
        return
    raise FileNotFoundError(path)


def stored_archives(context: ServiceContext) -> Iterator[StoredArchive]:
    """Archives that jobs have, or had."""
    for path in (context.settings.home / _IMPORTS).glob("*.zip"):
        yield StoredArchive(uuid.UUID(path.stem), _get_file_age(path), partial(path.unlink, missing_ok=True))
    if context.bucket is None:
        return
    for blob in context.bucket.under(_IMPORTS):
        yield StoredArchive(uuid.UUID(blob.key.split("/")[1]), blob.age, partial(context.bucket.remove, blob.key))


def bytes_of_archives(bucket: BlobStore | None) -> int:
    """Bytes of all archives in the bucket."""
    return 0 if bucket is None else sum(blob.size for blob in bucket.under(_IMPORTS))


def _get_file_age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
