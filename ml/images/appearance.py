"""What pixels tell about how an image was taken: size and place of the object, focus and grain, stain.

All are smooth functions of the pixels that the network sees, none depends on which way up a cell lies, and none needs
a network: they notice what a network learns not to see.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property

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


@cache
def _axes(height: int, width: int) -> FloatArray:
    """Rows and columns (2, H, W) from the middle, in sides."""
    middle = np.array([height - 1, width - 1])[:, None, None] / 2
    return np.asarray((np.mgrid[:height, :width] - middle) / min(height, width))


@cache
def _radius(height: int, width: int) -> FloatArray:
    """Distance (H, W) from the middle, in sides."""
    y, x = _axes(height, width)
    return np.asarray(np.hypot(y, x))


@cache
def _rings(height: int, width: int) -> FloatArray:
    """Each ring (H, W, R), as a share of its area."""
    ring = np.eye(_RINGS + 1)[np.minimum((_radius(height, width) * 2 * _RINGS).astype(int), _RINGS)]
    return np.asarray(ring / np.maximum(ring.mean(axis=(0, 1)), _TINY))


@dataclass(frozen=True)
class Densities:
    """Optical densities (N, H, W, C) of images, and what several checks ask of them, computed once."""

    values: FloatArray

    @cached_property
    def ends(self) -> FloatArray:
        """Ground and darkest tenth (2, N, C)."""
        n, _, _, channels = self.values.shape
        return np.asarray(np.quantile(self.values.reshape(n, -1, channels), [_GROUND, 1 - _GROUND], axis=1))

    @cached_property
    def weight(self) -> FloatArray:
        """Share of the stain in each pixel (N, H, W, C), dark ones above all."""
        weight = np.square(np.maximum(self.values - self.ends[0][:, None, None], 0)) + _TINY**2
        return np.asarray(weight / weight.sum(axis=(1, 2), keepdims=True))


def place(density: Densities) -> FloatArray:
    """How far the stain's centre lies from the middle (N, C), in sides, channel by channel."""
    centre = np.einsum("nhwc,ahw->anc", density.weight, _axes(*density.values.shape[1:3]))
    return np.asarray(np.hypot(centre[0], centre[1]))


def size(density: Densities) -> FloatArray:
    """How widely the stain spreads (N, F): root mean square radius of each channel, and profile by rings."""
    weight, sides = density.weight, density.values.shape[1:3]
    spread = np.sqrt(np.einsum("nhwc,hw->nc", weight, _radius(*sides) ** 2))
    profile = np.einsum("nhwc,hwr->ncr", weight, _rings(*sides))
    return np.concatenate([spread, np.log(profile + 0.01).reshape(len(weight), -1)], axis=1)


def _halved(grey: FloatArray) -> FloatArray:
    """Means of blocks of 2 × 2; a last odd row or column is left out."""
    even = grey[:, : grey.shape[1] // 2 * 2, : grey.shape[2] // 2 * 2]
    return np.asarray((even[:, ::2, ::2] + even[:, 1::2, ::2] + even[:, ::2, 1::2] + even[:, 1::2, 1::2]) / 4)


def _second_difference(planes: FloatArray, axis: int) -> FloatArray:
    return np.asarray(np.diff(planes, n=2, axis=axis))


def focus(density: Densities) -> FloatArray:
    """Energy of second differences by octave, along and across (N, F): focus, grain, compression, magnification."""
    columns = []
    level = np.moveaxis(density.values, -1, 1).reshape(-1, *density.values.shape[1:3])
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
    return np.asarray(stacked.reshape(len(density.values), -1))


def stain(density: Densities) -> FloatArray:
    """Mean, spread, ground and darkest tenth of each channel's optical density, and how channels go together (N, F)."""
    n, _, _, channels = density.values.shape
    flat = density.values.reshape(n, -1, channels)
    mean, spread = flat.mean(axis=1), flat.std(axis=1)
    columns = [mean, np.log(spread + _TINY), *density.ends]
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
        density = Densities(-np.log10((pixels[start : start + _CHUNK].astype(np.float64) + 1) / _WHITE))
        parts.append(np.concatenate([check(density) for check in CHECKS.values()], axis=1).astype(np.float32))
    return np.concatenate(parts)


@cache
def columns_of(side: int, channels: int) -> Mapping[str, slice]:
    """Where the statistics of each check stand among those of images of a side and number of channels."""
    blank = Densities(np.zeros((1, side, side, channels)))
    lengths = [check(blank).shape[1] for check in CHECKS.values()]
    ends = np.cumsum(lengths)
    return {name: slice(int(end - n), int(end)) for name, n, end in zip(CHECKS, lengths, ends, strict=True)}
