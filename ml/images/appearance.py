"""What pixels tell about how an image was taken: size and place of the object, focus and grain, stain.

All are smooth functions of the pixels that the network sees, none depends on which way up a cell lies, and none needs
a network: they notice what a network learns not to see.
"""

from collections.abc import Mapping
from functools import cache

import numpy as np
import numpy.typing as npt

from ml.arrays import FloatArray
from ml.images.preprocess import Pixels

_WHITE, _TINY = 256.0, 1e-4
#: Rings of equal width around the centre, out to the side's middle.
_RINGS = 6
#: Darkness of an image's ground: this quantile of its optical densities.
_GROUND = 0.1
_OCTAVES = 3
# the finest octave tells how a file was stored: averages of photographs that were kept as JPEG and those made when an
# image arrives differ there in every image, and a network reads both alike
_HALVED_FROM = 8
# images at once, to bound memory
_CHUNK = 256


def _weights(density: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Share of the stain in each pixel (N, H, W, C), dark ones above all, and distance from the middle (H, W)."""
    n, height, width, channels = density.shape
    ground = np.quantile(density.reshape(n, -1, channels), _GROUND, axis=1)[:, None, None]
    weight = np.square(np.maximum(density - ground, 0)) + _TINY**2
    y, x = _axes(height, width)
    return weight / weight.sum(axis=(1, 2), keepdims=True), np.hypot(y, x)


def _axes(height: int, width: int) -> FloatArray:
    """Rows and columns (2, H, W) from the middle, in sides."""
    middle = np.array([height - 1, width - 1])[:, None, None] / 2
    return np.asarray((np.mgrid[:height, :width] - middle) / min(height, width))


def place(density: FloatArray) -> FloatArray:
    """How far the stain's centre lies from the middle (N, C), in sides, channel by channel.

    Args:
        density: (N, H, W, C) optical densities.
    """
    weight, _ = _weights(density)
    centre = np.einsum("nhwc,ahw->anc", weight, _axes(*density.shape[1:3]))
    return np.asarray(np.hypot(centre[0], centre[1]))


def size(density: FloatArray) -> FloatArray:
    """How widely the stain spreads (N, F): root mean square radius of each channel, and profile by rings.

    Args:
        density: (N, H, W, C) optical densities.
    """
    weight, radius = _weights(density)
    spread = np.sqrt(np.einsum("nhwc,hw->nc", weight, radius**2))
    ring = np.eye(_RINGS + 1)[np.minimum((radius * 2 * _RINGS).astype(int), _RINGS)]
    profile = np.einsum("nhwc,hwr->ncr", weight, ring / np.maximum(ring.mean(axis=(0, 1)), _TINY))
    return np.concatenate([spread, np.log(profile + 0.01).reshape(len(density), -1)], axis=1)


def _halved(grey: FloatArray) -> FloatArray:
    """Means of blocks of 2 × 2; a last odd row or column is left out."""
    even = grey[:, : grey.shape[1] // 2 * 2, : grey.shape[2] // 2 * 2]
    return np.asarray((even[:, ::2, ::2] + even[:, 1::2, ::2] + even[:, ::2, 1::2] + even[:, 1::2, 1::2]) / 4)


def _second_difference(planes: FloatArray, axis: int) -> FloatArray:
    return np.asarray(np.diff(planes, n=2, axis=axis))


def focus(density: FloatArray) -> FloatArray:
    """Energy of second differences by octave, along and across (N, F): focus, grain, compression, magnification.

    Args:
        density: (N, H, W, C) optical densities.
    """
    columns = []
    level = np.moveaxis(density, -1, 1).reshape(-1, *density.shape[1:3])
    if min(level.shape[1:]) >= _HALVED_FROM:
        level = _halved(level)
    for _ in range(_OCTAVES):
        if min(level.shape[1:]) < 4:
            break
        across, down = (_second_difference(level, axis) for axis in (2, 1))
        energy = (np.square(across).mean(axis=(1, 2)) + np.square(down).mean(axis=(1, 2))) / 2
        both = np.abs(_second_difference(across, 1)).mean(axis=(1, 2))
        columns += [np.log(energy + _TINY**2), np.log(both + _TINY)]
        level = _halved(level)
    stacked = np.stack(columns, axis=1)
    return np.asarray(stacked.reshape(len(density), -1))


def stain(density: FloatArray) -> FloatArray:
    """Mean, spread, ground and darkest tenth of each channel's optical density, and how channels go together (N, F).

    Args:
        density: (N, H, W, C) optical densities.
    """
    n, _, _, channels = density.shape
    flat = density.reshape(n, -1, channels)
    mean, spread = flat.mean(axis=1), flat.std(axis=1)
    low, high = np.quantile(flat, [_GROUND, 1 - _GROUND], axis=1)
    columns = [mean, np.log(spread + _TINY), low, high]
    if channels > 1:
        centred = (flat - mean[:, None]) / (spread[:, None] + _TINY)
        upper = np.triu_indices(channels, 1)
        columns.append((np.einsum("nic,nid->ncd", centred, centred) / flat.shape[1])[:, *upper])
    return np.concatenate(columns, axis=1)


#: What pixels are checked for.
CHECKS = {"place": place, "size": size, "focus": focus, "stain": stain}


def appearance(pixels: Pixels) -> npt.NDArray[np.float32]:
    """Statistics (N, F) of images (N, H, W, C), uint8: those of each check, one after the other."""
    parts = []
    for start in range(0, max(len(pixels), 1), _CHUNK):
        density = -np.log10((pixels[start : start + _CHUNK].astype(np.float64) + 1) / _WHITE)
        parts.append(np.concatenate([check(density) for check in CHECKS.values()], axis=1).astype(np.float32))
    return np.concatenate(parts)


@cache
def columns_of(side: int, channels: int) -> Mapping[str, slice]:
    """Where the statistics of each check stand among those of images of a side and number of channels."""
    blank = np.zeros((1, side, side, channels))
    lengths = [check(blank).shape[1] for check in CHECKS.values()]
    ends = np.cumsum(lengths)
    return {name: slice(int(end - n), int(end)) for name, n, end in zip(CHECKS, lengths, ends, strict=True)}
