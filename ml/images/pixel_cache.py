"""Decoded network inputs of image files, in packs on disk that are named by their content and memory-mapped.

The key is made of the bytes of the files, the preprocessing and the versions of what decodes: a file that has changed,
another size or another decoder has another key, so that nothing stale is ever used. Files that another pack of the same
recipe has are not decoded again.

A pack is a header, names of what it was made of with a digest each, and pixels. It is written under the lock of its
folder, next to its place, and renamed when it is on the disk; readers need no lock. A
reader deletes a damaged pack, and it is made again. The folder is bounded: what was used longest ago goes first.
"""

import hashlib
import json
import math
import os
import platform
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, TypeVar

import numpy as np
import numpy.typing as npt
import PIL
from PIL import features

from ml.images.pixel_digest import DIGEST_BYTES, pixel_digest
from ml.images.preprocess import PREPROCESSING_VERSION, ImageRejectedError, Pixels, Preprocessing, decode_image
from ml.util.cores import cores

try:
    import fcntl
except ImportError:  # there are no locks of this kind: nothing is kept
    fcntl = None  # type: ignore[assignment]

#: Everything besides the source on which pixels depend.
Recipe = Mapping[str, str | int | None]
Names = npt.NDArray[np.uint8]
#: Called with images done and in all, where any have to be decoded.
Observer = Callable[[int, int], None]
T = TypeVar("T")
R = TypeVar("R")
#: Files that a thread takes at a time, and how many such parts may be ahead of what is asked for.
_TOGETHER, _AHEAD = 32, 64
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

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Wait until no other process writes; false if the folder cannot be written to or locked, and keeps nothing."""
        with ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                handle = stack.enter_context((self.folder / "lock").open("w"))
                if fcntl is not None:
                    fcntl.flock(handle, fcntl.LOCK_EX)
                for left in self.folder.glob("*.tmp"):  # of a process that was killed
                    left.unlink(missing_ok=True)
                mine = fcntl is not None
            except OSError:
                mine = False
            yield mine

    @contextmanager
    def new(self, recipe: Recipe, names: Sequence[bytes], shape: tuple[int, ...]) -> Iterator[Pack | None]:
        """A pack to be filled; it is there when the block ends without an error. Only under the lock."""
        size = _HEADER + len(names) * 2 * DIGEST_BYTES + math.prod(shape)
        if size > shutil.disk_usage(self.folder).free // 2:
            yield None
            return
        path = self._path(recipe, names)
        temporary = path.with_suffix(".tmp")
        try:
            if not _reserved(temporary, size):
                yield None
                return
            block = np.memmap(temporary, dtype=np.uint8, mode="r+")
            pack = _pack(block, len(names), shape)
            pack.names[...] = np.frombuffer(b"".join(names), dtype=np.uint8).reshape(-1, DIGEST_BYTES)
            yield pack
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
    """Decode image files to network pixels, in their order."""
    with ThreadPoolExecutor(threads or cores()) as pool:
        decoder = _Decoder(pool, preprocessing, observer)
        pack = None if store is None else decoder.kept(paths, store)
        if pack is not None:
            return DecodedImages(pack.pixels, [row.tobytes() for row in pack.digests])
        side = preprocessing.size
        pixels = np.empty((len(paths), side, side, preprocessing.channels), dtype=np.uint8)
        digests = np.empty((len(paths), 32), dtype=np.uint8)
        decoder.fill(pixels, digests, range(len(paths)), paths)
        return DecodedImages(pixels, [row.tobytes() for row in digests])


@dataclass(frozen=True)
class _Decoder:
    """Thread pool that decodes with one preprocessing."""

    pool: ThreadPoolExecutor
    preprocessing: Preprocessing
    observer: Observer

    def kept(self, paths: Sequence[Path], store: PackStore) -> Pack | None:
        """The pack of these files, made where there is none; None if it cannot be kept."""
        recipe, names = recipe_of(self.preprocessing), list(_in_order(self.pool, _name, paths))
        pack = store.find(recipe, names)
        if pack is not None:
            return pack
        with store.locked() as mine:
            # another process may have made it while this one waited
            if mine and store.find(recipe, names) is None:
                self._make(recipe, names, paths, store)
        return store.find(recipe, names)

    def _make(self, recipe: Recipe, names: list[bytes], paths: Sequence[Path], store: PackStore) -> None:
        side, digests_by_name = self.preprocessing.size, store.find_images(recipe)
        with store.new(recipe, names, (len(paths), side, side, self.preprocessing.channels)) as pack:
            if pack is None:
                return
            missing = [row for row, name in enumerate(names) if name not in digests_by_name]
            for row in set(range(len(names))).difference(missing):
                other, place = digests_by_name[names[row]]
                pack.pixels[row], pack.digests[row] = other.pixels[place], other.digests[place]
            self.fill(pack.pixels, pack.digests, missing, paths, names)

    def fill(
        self,
        pixels: Pixels,
        digests: Pixels,
        rows: Sequence[int],
        paths: Sequence[Path],
        names: Sequence[bytes] | None = None,
    ) -> None:
        """Decode some rows of a set."""

        def decode(row: int) -> None:
            image, digest = _decode(paths[row], self.preprocessing, None if names is None else names[row])
            pixels[row], digests[row] = image, np.frombuffer(digest, dtype=np.uint8)

        for done, _ in enumerate(_in_order(self.pool, decode, rows)):
            self.observer(done + 1, len(rows))


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


def _in_order(pool: ThreadPoolExecutor, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Results in the order of the items; the first error in that order is raised, and the rest is left."""

    def several(part: Sequence[T]) -> list[R]:
        return [work(item) for item in part]

    waiting: deque[Future[list[R]]] = deque()
    try:
        for start in range(0, len(items), _TOGETHER):
            waiting.append(pool.submit(several, items[start : start + _TOGETHER]))
            if len(waiting) > _AHEAD:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        for part in waiting:
            part.cancel()
