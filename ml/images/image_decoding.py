"""Decoded network inputs of image files, cached on disk by content.

The key is made of the bytes of the files, the preprocessing and the versions of what decodes: a file that has changed,
another size or another decoder has another key, so that nothing stale is ever used, whatever names and clocks say.
Files that are known from another set of the same recipe are not decoded again.
"""

import hashlib
import platform
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import PIL
from PIL import features

from ml.images.pixel_cache import Pack, PackStore, Recipe
from ml.images.pixel_digest import pixel_digest
from ml.images.preprocess import PREPROCESSING_VERSION, ImageRejectedError, Pixels, Preprocessing, decode_image
from ml.util.cores import cores

#: Called with images done and in all, where any have to be decoded.
Observer = Callable[[int, int], None]
T = TypeVar("T")
R = TypeVar("R")
#: Files that a thread takes at a time, and how many such parts may be ahead of what is asked for.
_TOGETHER, _AHEAD = 32, 64
_CODECS = ("jpg", "zlib", "libtiff")


class UnreadableImageError(ValueError):
    """An image file that cannot be read; the message names it."""


@dataclass(frozen=True)
class DecodedImages:
    """Decoded images.

    Attributes:
        pixels: (N, size, size, C) uint8; they may lie in a file, and cannot be written to then.
        digests: N digests of the pictures before crop and resize (``pixel_digest``).
    """

    pixels: Pixels
    digests: list[bytes]


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
    """Decode image files to network pixels, in their order.

    Args:
        paths: of N files.
        preprocessing: crop and resize.
        store: where they are kept; None: they are decoded and not kept.
        observer: shows progress; not called where nothing has to be decoded.
        threads: that read and decode; None: one per core.

    Raises:
        UnreadableImageError: a file is missing, or no image that can be read safely: the first one of them.
    """
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
        """The pack of these files, made where there is none; None where it cannot be kept."""
        recipe, names = recipe_of(self.preprocessing), list(_in_order(self.pool, _name, paths))
        pack = store.find(recipe, names)
        if pack is not None:
            return pack
        with store.locked() as mine:
            # somebody else may have made it while this process waited
            if mine and store.find(recipe, names) is None:
                self._make(recipe, names, paths, store)
        return store.find(recipe, names)

    def _make(self, recipe: Recipe, names: list[bytes], paths: Sequence[Path], store: PackStore) -> None:
        side, digests_by_name = self.preprocessing.size, store.known(recipe)
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
