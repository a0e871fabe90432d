"""Pictures that benchmarks send; PyTorch is not imported, so that servers which they start do not hold it."""

import io
from functools import cache

import numpy as np
import numpy.typing as npt
from PIL import Image

from tests.support.images import encode
from tests.support.service import cell_png


@cache
def cell_jpeg() -> bytes:
    """A JPEG of 360 × 363 pixels and about 27 KB, as microscopes give them."""
    noise = np.random.default_rng(0).normal(size=(46, 46, 3))
    smooth = Image.fromarray(np.clip(150 + 60 * noise, 0, 255).astype(np.uint8)).resize(
        (360, 363), Image.Resampling.BICUBIC
    )
    grain = np.random.default_rng(1).normal(scale=9, size=(363, 360, 3))
    out = io.BytesIO()
    Image.fromarray(np.clip(np.asarray(smooth) + grain, 0, 255).astype(np.uint8)).save(out, "JPEG", quality=88)
    return out.getvalue()


def numbered_jpeg(number: int) -> bytes:
    """The same JPEG with another colour in a corner."""
    pixels = np.array(Image.open(io.BytesIO(cell_jpeg())))
    pixels[:16, :16] = np.random.default_rng(number).integers(0, 256, 3)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=88)
    return out.getvalue()


@cache
def _cell(side: int) -> npt.NDArray[np.uint8]:
    return np.array(Image.open(io.BytesIO(cell_png(0, side))))


def numbered_png(number: int, side: int) -> bytes:
    """The same cell with a number in a corner: an image that was never sent before."""
    pixels = _cell(side).copy()
    pixels[0, :2] = np.frombuffer(number.to_bytes(6, "big"), np.uint8).reshape(2, 3)
    return encode(pixels, compress_level=1)


def blobs(n: int, side: int, seed: int) -> npt.NDArray[np.uint8]:
    """Images (N, side, side, 3) of soft blobs, to have something to compute on."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, size=(n, side // 16, side // 16, 3), dtype=np.uint8)
    return np.repeat(np.repeat(coarse, 16, axis=1), 16, axis=2)
