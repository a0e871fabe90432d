"""Network-free image statistics: a perceptual hash and stain colours."""

import numpy as np
import numpy.typing as npt
from PIL import Image

_HASH_SIDE = 8
_WHITE = 255.0


def difference_hash(image: Image.Image) -> int:
    """64-bit perceptual hash: which of 8 × 8 coarse cells is darker than its right neighbour.

    Images that differ by compression, brightness or a few pixels' shift have hashes a few bits apart. Featureless
    images all hash to 0.

    Args:
        image: decoded image.

    Returns:
        The hash as a signed integer, as databases store it.

    Source: N. Krawetz, "Kind of like that", 2013 (difference hash).
    """
    coarse = np.asarray(image.convert("L").resize((_HASH_SIDE + 1, _HASH_SIDE), Image.Resampling.BOX), dtype=np.int16)
    bits = (coarse[:, 1:] > coarse[:, :-1]).ravel()
    return int.from_bytes(np.packbits(bits).tobytes(), "big", signed=True)


def hash_distance(first: int, other: int) -> int:
    """Number of bits in which two hashes differ.

    >>> hash_distance(0, -1)
    64
    """
    return ((first ^ other) & (2**64 - 1)).bit_count()


def optical_density(pixels: npt.NDArray[np.uint8]) -> tuple[float, float, float]:
    """Mean optical density of red, green and blue, −log10((v + 1) / 256): 0 for white, 2.4 for black.

    Args:
        pixels: (H, W, C) uint8 with C = 3, or 1 for grey, which stands for all three.
    """
    density = -np.log10((pixels.astype(np.float64) + 1) / (_WHITE + 1)).reshape(-1, pixels.shape[-1]).mean(axis=0)
    red, green, blue = np.broadcast_to(density, (3,))
    return float(red), float(green), float(blue)
