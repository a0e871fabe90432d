"""Cache of decoded data set images between runs."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from ml.images.pixel_cache import PackStore, Recipe
from ml.images.preprocess import Pixels

#: In the folder of somebody's own images: whoever deletes or moves the folder takes the copies along.
_NAMED = "secondread-decoded"
_INSIDE = ".decoded"


def store_for(folder: Path | None) -> PackStore | None:
    """Where images are kept; None where ``SECONDREAD_CACHE`` is ``off``.

    Args:
        folder: of somebody's own images; None for a data set that many may read, whose copies lie in the user's folder
            for what can be made again.
    """
    named = os.environ.get("SECONDREAD_CACHE")
    if named == "off":
        return None
    if named:
        return PackStore(Path(named) / _NAMED)  # what else lies in a folder that somebody names is none of ours
    if folder is not None:
        return PackStore(folder / _INSIDE)
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        caches = Path(home) if home else Path.home() / ".cache"
    except RuntimeError:  # a user without a home
        return None
    return PackStore(caches / "secondread" / "decoded")


def unpack_pixels(source: Path, what: Recipe, unpack: Callable[[bytes], Pixels]) -> Pixels:
    """Unpack the pixels (N, H, W, C) of one file once.

    Args:
        source: the file.
        what: of it, and anything besides its bytes on which the pixels depend.
        unpack: makes them of its bytes.
    """
    data, store = source.read_bytes(), store_for(None)
    if store is None:
        return unpack(data)
    names = [hashlib.sha256(data).digest()]
    pack = store.find(what, names)
    if pack is not None:
        return pack.pixels
    with store.locked() as mine:
        pack = store.find(what, names) if mine else None
        if pack is not None:
            return pack.pixels
        pixels = unpack(data)
        if mine:
            with store.new(what, names, pixels.shape) as new_pack:
                if new_pack is not None:
                    new_pack.pixels[...] = pixels
    return pixels
