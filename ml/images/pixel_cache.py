"""Decoded network inputs of image files, in memory-mapped packs.

A pack is a SHA-256 of what follows, and a record for each image. Its name is
made of the files' bytes, the preprocessing and the versions of the decoders, so
that nothing stale is used. It is written under the lock of its folder, and
renamed when it is on the disk.
"""

import fcntl
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import PIL
from PIL import features

from ml.images.preprocess import (
    DIGEST_BYTES,
    PREPROCESSING_VERSION,
    ImageRejectedError,
    Pixels,
    Preprocessing,
    decode_image,
    pixel_digest,
)
from ml.util.files import cores, replace_file

#: Records (N,) of images, as of ``_record_of``.
Pack = npt.NDArray[np.void]
#: Called with images done and in all, where any have to be decoded.
Observer = Callable[[int, int], None]
_CODECS = ("jpg", "zlib", "libtiff")
_SUFFIX = ".pack"
#: Bytes that packs of a folder may take together.
LIMIT = 16 * 1024**3


def _record_of(preprocessing: Preprocessing) -> "np.dtype[np.void]":
    """SHA-256 of a file, digest of its picture, network pixels."""
    digest, side = (DIGEST_BYTES,), preprocessing.size
    pixels = (side, side, preprocessing.channels)
    return np.dtype([("file", "u1", digest), ("picture", "u1", digest), ("pixels", "u1", pixels)])


def _recipe_of(preprocessing: Preprocessing) -> str:
    """Digest of everything besides a file on which its pixels depend."""
    recipe = {
        "channels": preprocessing.channels,
        "crop": preprocessing.crop,
        "size": preprocessing.size,
        "preprocessing": PREPROCESSING_VERSION,
        "pillow": PIL.__version__,
        "machine": platform.machine(),
        **{name: str(features.version_codec(name)) for name in _CODECS},
    }
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]


class PackStore:
    """The packs of a folder."""

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self.folder, self.limit = folder, limit

    def find_images(self, preprocessing: Preprocessing) -> dict[bytes, tuple[Pack, int]]:
        """Pack and row of each image of a recipe, by its file."""
        places: dict[bytes, tuple[Pack, int]] = {}
        for path in self.folder.glob(f"{_recipe_of(preprocessing)}-*{_SUFFIX}"):
            pack = _read(path, preprocessing)
            if pack is not None:
                places |= {name.tobytes(): (pack, row) for row, name in enumerate(pack["file"])}
        return places

    def find_or_make(
        self, preprocessing: Preprocessing, files: Sequence[bytes], fill: Callable[[Pack], None]
    ) -> Pack | None:
        """The pack of these files in order; None if it cannot be kept."""
        name = hashlib.sha256(b"".join(files)).hexdigest()[:32]
        path = self.folder / f"{_recipe_of(preprocessing)}-{name}{_SUFFIX}"
        pack = _find(path, preprocessing, files)
        if pack is not None:
            return pack
        with suppress(OSError), self._locked():
            # another process may have made it while this one waited
            pack = _find(path, preprocessing, files)
            if pack is None:
                self._make(path, preprocessing, files, fill)
                pack = _find(path, preprocessing, files)
        return pack

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Wait until no other process writes."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in self.folder.glob("*.tmp"):  # of a process that was killed
                left.unlink(missing_ok=True)
            yield

    def _make(
        self, path: Path, preprocessing: Preprocessing, files: Sequence[bytes], fill: Callable[[Pack], None]
    ) -> None:
        """Write a pack if it takes at most half of the free space."""
        record, temporary = _record_of(preprocessing), path.with_suffix(".tmp")
        size = DIGEST_BYTES + len(files) * record.itemsize
        if size > shutil.disk_usage(self.folder).free // 2:
            return
        try:
            with temporary.open("wb") as stream:
                if hasattr(os, "posix_fallocate"):  # a full disk would end the process
                    os.posix_fallocate(stream.fileno(), 0, size)
                stream.truncate(size)
            block = np.memmap(temporary, dtype=np.uint8, mode="r+")
            pack = np.asarray(block[DIGEST_BYTES:]).view(record)
            pack["file"] = np.frombuffer(b"".join(files), dtype=np.uint8).reshape(-1, DIGEST_BYTES)
            fill(pack)
            block[:DIGEST_BYTES] = np.frombuffer(hashlib.sha256(block[DIGEST_BYTES:].data).digest(), dtype=np.uint8)
            block.flush()
            replace_file(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        self._make_room(path)

    def _make_room(self, newest: Path) -> None:
        packs: dict[Path, os.stat_result] = {}
        for path in self.folder.glob(f"*{_SUFFIX}"):
            with suppress(FileNotFoundError):  # copies may be deleted at any time
                packs[path] = path.stat()
        total = sum(stat.st_size for stat in packs.values())
        for path in sorted(packs, key=lambda path: packs[path].st_mtime):
            if total <= self.limit or path == newest:
                return
            path.unlink(missing_ok=True)
            total -= packs[path].st_size


def _find(path: Path, preprocessing: Preprocessing, files: Sequence[bytes]) -> Pack | None:
    """The pack of these files; one that is not whole is deleted."""
    if not path.exists():
        return None
    pack = _read(path, preprocessing)
    whole = pack is not None and pack["file"].tobytes() == b"".join(files)
    with suppress(OSError):
        if whole:
            os.utime(path)  # when it was used last
        else:
            path.unlink()
    return pack if whole else None


def _read(path: Path, preprocessing: Preprocessing) -> Pack | None:
    """A pack mapped into memory; None if it is missing or damaged."""
    try:
        block = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
        if block[:DIGEST_BYTES].tobytes() != hashlib.sha256(block[DIGEST_BYTES:].data).digest():
            return None
        return block[DIGEST_BYTES:].view(_record_of(preprocessing))
    except (OSError, ValueError):
        return None


class UnreadableImageError(ValueError):
    """An image file that cannot be read; the message names it."""


@dataclass(frozen=True)
class DecodedImages:
    """Decoded images."""

    pixels: Pixels  # (N, size, size, C), read-only in a file
    digests: list[bytes]  # of the pictures before crop and resize


def ignore_progress(_done: int, _total: int) -> None:
    """Show nothing."""


def decode_files(
    paths: Sequence[Path],
    preprocessing: Preprocessing,
    store: PackStore | None,
    observer: Observer = ignore_progress,
    threads: int | None = None,
) -> DecodedImages:
    """Decode image files to network pixels, in their order."""
    files, pack = list[bytes](), None
    with ThreadPoolExecutor(threads or cores()) as pool:

        def fill(pack: Pack) -> None:
            places = store.find_images(preprocessing) if store is not None and files else {}
            missing = []
            for row in range(len(paths)):
                if files and files[row] in places:
                    other, place = places[files[row]]
                    pack[row] = other[place]
                else:
                    missing.append(row)

            def decode(row: int) -> None:
                pixels, digest = _decode(paths[row], preprocessing, files[row] if files else None)
                pack["pixels"][row], pack["picture"][row] = pixels, np.frombuffer(digest, dtype=np.uint8)

            for done, _ in enumerate(pool.map(decode, missing)):
                observer(done + 1, len(missing))

        try:
            if store is not None:
                files = list(pool.map(_file_digest, paths))
                pack = store.find_or_make(preprocessing, files, fill)
            if pack is None:
                pack = np.empty(len(paths), dtype=_record_of(preprocessing))
                fill(pack)
        finally:
            pool.shutdown(cancel_futures=True)  # of those that are left after an error
    return DecodedImages(pack["pixels"], [row.tobytes() for row in pack["picture"]])


def _file_digest(path: Path) -> bytes:
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError as exc:
        raise UnreadableImageError(f"{path}: {exc}") from exc


def _decode(path: Path, preprocessing: Preprocessing, expected: bytes | None) -> tuple[Pixels, bytes]:
    try:
        data = path.read_bytes()
        image = decode_image(data)
    except (OSError, ImageRejectedError) as exc:
        raise UnreadableImageError(f"{path}: {exc}") from exc
    if expected is not None and hashlib.sha256(data).digest() != expected:
        raise UnreadableImageError(f"{path}: was changed while it was read")
    return preprocessing.pixels(image), pixel_digest(image)
