"""Digest of decoded pixels; equal for every PNG, TIFF or JPEG of the same image."""

import hashlib

import numpy as np
from PIL import Image

from ml.images.preprocess import Pixels

DIGEST_BYTES = 32
#: Pixels that are looked at first lie so far apart: a picture in colour nearly always shows in them.
_APART = 16


def pixel_digest(image: Image.Image | Pixels) -> bytes:
    """SHA-256 of a decoded picture: of its size and its pixels, row by row."""
    pixels = np.asarray(image, dtype=np.uint8)
    if pixels.ndim == 3 and _is_grey(pixels[::_APART, ::_APART]) and _is_grey(pixels):
        pixels = pixels[..., 0]
    height, width = pixels.shape[:2]
    digest = hashlib.sha256(f"secondread pixels {width} {height} {pixels.ndim}\n".encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.digest()


def _is_grey(pixels: Pixels) -> bool:
    return bool((pixels == pixels[..., :1]).all())
