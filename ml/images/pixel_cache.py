"""Decoded network inputs of image files, in packs on disk that are named by their content and memory-mapped.

The key is made of the bytes of the files, the preprocessing and the versions of what decodes: a file that has changed,
another size or another decoder has another key, so that nothing stale is ever used. Files that another pack of the same
recipe has are not decoded again.

A pack is a header, names of what it was made of with a digest each, and pixels. It is written under the lock of its
folder, next to its place, and renamed when it is on the disk; readers need no lock. A
reader deletes a damaged pack, and it is made again. The folder is bounded: what was used longest ago goes first.
"""

import fcntl
import hashlib
import json
import math
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
import numpy.typing as npt
import PIL
from PIL import features

from ml.images.pixel_digest import DIGEST_BYTES, pixel_digest
from ml.images.preprocess import PREPROCESSING_VERSION, ImageRejectedError, Pixels, Preprocessing, decode_image
from ml.util.cores import cores

#: Everything besides the source on which pixels depend.
Recipe = Mapping[str, str | int | None]
Names = npt.NDArray[np.uint8]
#: Called with images done and in all, where any have to be decoded.
Observer = Callable[[int, int], None]
_CODECS = ("jpg", "zlib", "libtiff")
_SUFFIX = ".pack"
#: Bytes that packs of a folder may take together.
LIMIT = 16 * 1024**3
_HEADER = 4096


class _Header(TypedDict):
    """First block of a pack, with its digest."""

    recipe: dict[str, str | int | None]
    names: int
    shape: list[int]


@dataclass(frozen=True)
class Pack:
    """Pixels of N images of M sources: of as many files, or of one archive."""

    names: Names  # (M, 32) digests of the sources
    digests: Names  # (M, 32) of what was decoded, zeros if not set
    pixels: Pixels  # (N, H, W, C) uint8


def _reserved(path: Path, size: int) -> bool:
    """Make a file of a size, with its room on the disk: writing to a hole that cannot be filled ends the process."""
    try:
        with path.open("wb") as stream:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(stream.fileno(), 0, size)
            else:
                stream.truncate(size)
    except OSError:
        return False
    return True


class PackStore:
    """The packs of a folder."""

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self.folder, self.limit = folder, limit

    def find(self, recipe: Recipe, names: Sequence[bytes]) -> Pack | None:
        """The pack of exactly these sources in this order; None if there is none that is whole."""
        path = self._path(recipe, names)
        if not path.exists():
            return None
        pack = _read(path)
        if pack is None or pack.names.tobytes() != b"".join(names):
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):  # when it was used last
            os.utime(path)
        return pack

    def find_images(self, recipe: Recipe) -> dict[bytes, tuple[Pack, int]]:
        """Where images of a recipe lie already, by the name of their file: in which pack and which row of it."""
        places: dict[bytes, tuple[Pack, int]] = {}
        for path in self.folder.glob(f"{_digest(recipe)}-*{_SUFFIX}"):
            pack = _read(path)
            if pack is not None and len(pack.pixels) == len(pack.names):
                places |= {name.tobytes(): (pack, row) for row, name in enumerate(pack.names)}
        return places

    def find_or_make(
        self, recipe: Recipe, names: Sequence[bytes], shape: tuple[int, ...], fill: Callable[[Pack], None]
    ) -> Pack | None:
        """The pack of these sources, filled if there is none yet; None if it cannot be kept."""
        pack = self.find(recipe, names)
        if pack is not None:
            return pack
        with self._locked() as mine:
            # another process may have made it while this one waited
            if mine and self.find(recipe, names) is None:
                self._make(recipe, names, shape, fill)
        return self.find(recipe, names)

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Wait until no other process writes; false if the folder cannot be written to, and keeps nothing."""
        with ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                fcntl.flock(stack.enter_context((self.folder / "lock").open("w")), fcntl.LOCK_EX)
                for left in self.folder.glob("*.tmp"):  # of a process that was killed
                    left.unlink(missing_ok=True)
                mine = True
            except OSError:
                mine = False
            yield mine

    def _make(
        self, recipe: Recipe, names: Sequence[bytes], shape: tuple[int, ...], fill: Callable[[Pack], None]
    ) -> None:
        """Write a pack under the lock, unless it would take more than half of what is free on the disk."""
        size = _HEADER + len(names) * 2 * DIGEST_BYTES + math.prod(shape)
        path = self._path(recipe, names)
        temporary = path.with_suffix(".tmp")
        if size > shutil.disk_usage(self.folder).free // 2:
            return
        try:
            if not _reserved(temporary, size):
                return
            block = np.memmap(temporary, dtype=np.uint8, mode="r+")
            pack = _pack(block, len(names), shape)
            pack.names[...] = np.frombuffer(b"".join(names), dtype=np.uint8).reshape(-1, DIGEST_BYTES)
            fill(pack)
            header: _Header = {"recipe": dict(recipe), "names": len(names), "shape": list(shape)}
            text = json.dumps({**header, "sha256": _sha256(header, block)}).encode().ljust(_HEADER)
            block[:_HEADER] = np.frombuffer(text, dtype=np.uint8)
            block.flush()
            with temporary.open("rb+") as stream:
                os.fsync(stream.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        self._make_room(path)

    def _make_room(self, newest: Path) -> None:
        """Delete what was used longest ago, beyond the limit."""
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

    def _path(self, recipe: Recipe, names: Sequence[bytes]) -> Path:
        return self.folder / f"{_digest(recipe)}-{hashlib.sha256(b''.join(names)).hexdigest()[:32]}{_SUFFIX}"


def _digest(recipe: Recipe) -> str:
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]


def _pack(block: Names, count: int, shape: tuple[int, ...]) -> Pack:
    """The parts of a file."""
    ends = np.cumsum([_HEADER, count * DIGEST_BYTES, count * DIGEST_BYTES])
    names, digests = (block[ends[k] : ends[k + 1]].reshape(count, DIGEST_BYTES) for k in (0, 1))
    return Pack(names, digests, block[ends[2] :].reshape(shape))


def _read(path: Path) -> Pack | None:
    """A pack that is mapped into memory; None if there is none, or it is not what was written."""
    try:
        block = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
        header = json.loads(block[:_HEADER].tobytes())
        if header.pop("sha256", None) != _sha256(header, block):
            return None
        return _pack(block, header["names"], tuple(header["shape"]))
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None


def _sha256(header: _Header, block: Names) -> str:
    """Digest of a header and of everything behind it."""
    digest = hashlib.sha256(json.dumps(header).encode())
    digest.update(block[_HEADER:].data)
    return digest.hexdigest()


class UnreadableImageError(ValueError):
    """An image file that cannot be read; the message names it."""


@dataclass(frozen=True)
class DecodedImages:
    """Decoded images."""

    pixels: Pixels  # (N, size, size, C) uint8; they may lie in a file, and cannot be written to then
    digests: list[bytes]  # N digests of the pictures before crop and resize (``pixel_digest``)


def ignore_progress(_done: int, _total: int) -> None:
    """Show nothing."""


def recipe_of(preprocessing: Preprocessing) -> Recipe:
    """Everything besides the bytes of a file on which its pixels depend; mean and spread come later."""
    return {
        "channels": preprocessing.channels,
        "crop": preprocessing.crop,
        "size": preprocessing.size,
        "preprocessing": PREPROCESSING_VERSION,
        "pillow": PIL.__version__,
        "machine": platform.machine(),
        **{name: str(features.version_codec(name)) for name in _CODECS},
    }


def decode_files(
    paths: Sequence[Path],
    preprocessing: Preprocessing,
    store: PackStore | None,
    observer: Observer = ignore_progress,
    threads: int | None = None,
) -> DecodedImages:
    """Decode image files to network pixels, in their order; the first that cannot be read is named."""
    shape = (len(paths), preprocessing.size, preprocessing.size, preprocessing.channels)
    recipe, names, pack = recipe_of(preprocessing), list[bytes](), None
    with ThreadPoolExecutor(threads or cores()) as pool:

        def fill(pack: Pack) -> None:
            places = store.find_images(recipe) if store is not None and names else {}
            missing = []
            for row in range(len(paths)):
                if names and names[row] in places:
                    other, place = places[names[row]]
                    pack.pixels[row], pack.digests[row] = other.pixels[place], other.digests[place]
                else:
                    missing.append(row)

            def decode(row: int) -> None:
                pixels, digest = _decode(paths[row], preprocessing, names[row] if names else None)
                pack.pixels[row], pack.digests[row] = pixels, np.frombuffer(digest, dtype=np.uint8)

            for done, _ in enumerate(pool.map(decode, missing)):
                observer(done + 1, len(missing))

        try:
            if store is not None:
                names = list(pool.map(_name, paths))
                pack = store.find_or_make(recipe, names, shape, fill)
            if pack is None:
                digests = np.empty((len(paths), DIGEST_BYTES), dtype=np.uint8)
                pack = Pack(np.empty_like(digests), digests, np.empty(shape, dtype=np.uint8))
                fill(pack)
        finally:
            pool.shutdown(cancel_futures=True)  # of those that are left after an error
    return DecodedImages(pack.pixels, [row.tobytes() for row in pack.digests])


def _name(path: Path) -> bytes:
    """SHA-256 of a file."""
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError as exc:
        raise UnreadableImageError(f"{path}: {exc}") from exc


def _decode(path: Path, preprocessing: Preprocessing, name: bytes | None) -> tuple[Pixels, bytes]:
    """Network pixels of a file, with the digest of its picture."""
    try:
        data = path.read_bytes()
        image = decode_image(data)
    except (OSError, ImageRejectedError) as exc:
        raise UnreadableImageError(f"{path}: {exc}") from exc
    if name is not None and hashlib.sha256(data).digest() != name:
        raise UnreadableImageError(f"{path}: was changed while it was read")
    return preprocessing.pixels(image), pixel_digest(image)
