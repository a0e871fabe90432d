"""Bundles: folders that are written once as a whole, such as releases and snapshots."""

import shutil
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from app.http.errors import ServiceUnavailable, StorageFull
from app.storage.blobs import BlobStore, DamagedObjectError
from ml.util.files import file_sha256, read_json, write_json

_PACKAGE = ".package.tar"


class SharedFolders:
    """Folders by their names, such as ``releases/<id>``."""

    def __init__(self, home: Path, bucket: BlobStore | None) -> None:
        self.home, self.bucket = home, bucket
        self._seen: dict[str, tuple[object, ...]] = {}

    def path(self, name: str) -> Path:
        """A folder in HOME, brought from the bucket unless it is here and whole; it may not be there at all."""
        try:
            self.bring(name)
        except DamagedObjectError as exc:
            raise ServiceUnavailable("the files in the bucket are damaged") from exc
        return self.home / name

    def bring(self, name: str) -> None:
        """Bring a folder from the bucket unless it is here and whole, or not there at all."""
        if self.bucket is None or self._is_whole(name):
            return
        packages = sorted(self.bucket.under(name), key=lambda found: found.age)
        if not packages:
            return
        folder = self.home / name
        unfinished = self.home / f".{uuid.uuid4().hex}.part"
        try:
            unfinished.mkdir(parents=True)
            self.bucket.fetch(packages[0].key, unfinished / _PACKAGE)
            digests = _unpack_folder(unfinished)
            folder.parent.mkdir(parents=True, exist_ok=True)
            if not self._is_whole(name):
                shutil.rmtree(folder, ignore_errors=True)
                unfinished.rename(folder)
                self._digests(name).parent.mkdir(parents=True, exist_ok=True)
                write_json(self._digests(name), digests)
        except OSError as exc:
            if not self._is_whole(name):  # else another process was faster
                raise StorageFull("the files could not be copied; is the disk full?") from exc
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def _digests(self, name: str) -> Path:
        """Where the digests of a copy's files are written, last: a release must not contain another file."""
        return self.home / "copies" / f"{name}.json"

    def _is_whole(self, name: str) -> bool:
        """Whether a copy is as it came; read once in a process, and again when a file has changed since."""
        folder = self.home / name
        try:
            digests = read_json(self._digests(name))
            stamps = tuple((file, (folder / file).stat().st_mtime_ns) for file in digests)
            if self._seen.get(name) != stamps:
                if any(file_sha256(folder / file) != digest for file, digest in digests.items()):
                    return False
                self._seen[name] = stamps
        except (OSError, ValueError):
            return False
        return True

    def publish(self, name: str, folder: Path) -> None:
        """Store a folder where every process finds it; without a bucket it is where it should be."""
        if self.bucket is None:
            return
        package = self.home / f".{uuid.uuid4().hex}.part"
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            with tarfile.open(package, "w") as archive:
                for path in _list_folder_files(folder):
                    about = tarfile.TarInfo(path.name)
                    about.size = path.stat().st_size
                    with path.open("rb") as stream:
                        archive.addfile(about, stream)
            self.bucket.put(f"{name}/{file_sha256(package)}.tar", package)
        except OSError as exc:
            raise StorageFull("the files could not be copied; is the disk full?") from exc
        finally:
            package.unlink(missing_ok=True)

    def is_stored(self, name: str) -> bool:
        """Whether the bucket has a folder, undamaged; where there is none, nothing can be missing in it."""
        if self.bucket is None:
            return True
        return any(self.bucket.intact(blob.key) for blob in self.bucket.under(name))

    def shared(self, prefix: str) -> dict[str, float]:
        """Names of the folders in the bucket, each with the age of its newest package in seconds."""
        ages: dict[str, float] = {}
        for blob in () if self.bucket is None else self.bucket.under(prefix):
            name = blob.key.rpartition("/")[0]
            ages[name] = min(blob.age, ages.get(name, blob.age))
        return ages

    def remove(self, name: str) -> None:
        """Remove a folder everywhere but from other processes' HOMEs."""
        if self.bucket is not None:
            for blob in list(self.bucket.under(name)):
                self.bucket.remove(blob.key)
        self.discard_copy(name)

    def discard_copy(self, name: str) -> None:
        """Remove a folder from HOME alone."""
        shutil.rmtree(self.home / name, ignore_errors=True)
        self._digests(name).unlink(missing_ok=True)


def _list_folder_files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith("."))


def _unpack_folder(folder: Path) -> dict[str, str]:
    """Take the files out of the package in a folder; gives their digests."""
    with tarfile.open(folder / _PACKAGE) as archive:
        for about in archive:
            stream = archive.extractfile(about)
            if stream is None or "/" in about.name or about.name.startswith("."):
                continue
            with (folder / about.name).open("wb") as out:
                shutil.copyfileobj(stream, out, 1 << 20)
    (folder / _PACKAGE).unlink()
    return {path.name: file_sha256(path) for path in _list_folder_files(folder)}
