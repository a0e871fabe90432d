"""Image quality features: position and size of the object, focus, grain, stain.

They are smooth functions of the network's pixels and ignore orientation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from ml.images.preprocess import Pixels
from ml.util.arrays import FloatArray, IntArray

_WHITE, _TINY = 256.0, 1e-4
#: Rings of equal width around the centre, out to the side's middle.
_RINGS = 6
#: Darkness of an image's ground: this quantile of its optical densities.
_GROUND = 0.1
_OCTAVES = 3
# the finest octave shows only how a file was stored
_HALVED_FROM = 8
# images at once, to bound memory
_CHUNK = 256


#: Optical density of each pixel value.
_DENSITY = -np.log10((np.arange(256, dtype=np.float64) + 1) / _WHITE)


@cache
def _moments(height: int, width: int) -> FloatArray:
    # Row, column, squared radius (in sides), and rings per area.
    middle = np.array([height - 1, width - 1])[:, None, None] / 2
    y, x = (np.mgrid[:height, :width] - middle) / min(height, width)
    radius = np.hypot(y, x)
    ring = np.eye(_RINGS + 1)[np.minimum((radius * 2 * _RINGS).astype(int), _RINGS)]
    ring /= np.maximum(ring.mean(axis=(0, 1)), _TINY)
    return np.concatenate([np.stack([y, x, radius**2], axis=-1), ring], axis=-1).reshape(height * width, -1)


@cache
def _places(n_pixels: int) -> tuple[IntArray, IntArray, FloatArray, IntArray]:
    """Positions of the quantiles of ``Densities.ends`` in sorted pixels."""
    at = np.array([_GROUND, 1 - _GROUND]) * (n_pixels - 1)
    below = np.floor(at).astype(int)
    above = np.minimum(below + 1, n_pixels - 1)
    return below, above, at - below, np.unique([below, above])


@cache
def _pairs(channels: int) -> tuple[IntArray, IntArray]:
    first, second = np.triu_indices(channels, 1)
    return first, second


@dataclass(frozen=True)
class Densities:
    """Optical densities (N, C, H, W), with cached statistics."""

    planes: FloatArray

    @cached_property
    def flat(self) -> FloatArray:
        """The same, pixel after pixel (N, C, H · W)."""
        return self.planes.reshape(*self.planes.shape[:2], -1)

    @cached_property
    def ends(self) -> tuple[FloatArray, FloatArray]:
        """Ground and darkest tenth, (N, C) each."""
        below, above, share, neighbours = _places(self.flat.shape[-1])
        # pixels in a row are ordered only as far as these four need it
        ordered = np.partition(self.flat, neighbours, axis=-1)
        lower, upper = ordered[..., below], ordered[..., above]
        quantiles = lower + (upper - lower) * share
        return quantiles[..., 0], quantiles[..., 1]

    @cached_property
    def moments(self) -> FloatArray:
        """Means of ``_moments`` (N, C, 3 + R), weighted by stain."""
        weight = self.flat - self.ends[0][..., None]
        np.maximum(weight, 0, out=weight)
        weight *= weight
        weight += _TINY**2
        total = weight.sum(axis=-1, keepdims=True)
        return np.asarray(weight @ _moments(*self.planes.shape[2:]) / total)


def stain_position(density: Densities) -> FloatArray:
    """Distance (N, C) of the stain from the middle, in sides."""
    return np.asarray(np.hypot(density.moments[..., 0], density.moments[..., 1]))


def stain_extent(density: Densities) -> FloatArray:
    """Spread of the stain (N, F): radius by channel, profile by rings."""
    spread, profile = np.sqrt(density.moments[..., 2]), np.log(density.moments[..., 3:] + 0.01)
    return np.concatenate([spread, profile.reshape(len(profile), -1)], axis=1)


def _halved(planes: FloatArray) -> FloatArray:
    """Means of blocks of 2 × 2, without a last odd row or column."""
    even = planes[..., : planes.shape[-2] // 2 * 2, : planes.shape[-1] // 2 * 2]
    rows = even[..., ::2, :] + even[..., 1::2, :]
    return np.asarray((rows[..., ::2] + rows[..., 1::2]) / 4)


def _differences(planes: FloatArray) -> FloatArray:
    first = planes[..., 1:] - planes[..., :-1]
    return np.asarray(first[..., 1:] - first[..., :-1])


def _mean_square(planes: FloatArray) -> FloatArray:
    return np.asarray(np.einsum("nchw,nchw->nc", planes, planes) / (planes.shape[2] * planes.shape[3]))


def focus_energies(density: Densities) -> FloatArray:
    """Energy of second differences by octave, along and across (N, F)."""
    energies, edges = [], []
    level = density.planes
    if min(level.shape[2:]) >= _HALVED_FROM:
        level = _halved(level)
    for _ in range(_OCTAVES):
        if min(level.shape[2:]) < 4:
            break
        across, down = _differences(level), _differences(level.swapaxes(-1, -2))
        energies.append((_mean_square(across) + _mean_square(down)) / 2)
        both = _differences(across.swapaxes(-1, -2))
        edges.append(np.add.reduce(np.abs(both, out=both), axis=(-2, -1)) / (both.shape[-2] * both.shape[-1]))
        level = _halved(level)
    logs = np.array([np.log(np.array(energies) + _TINY**2), np.log(np.array(edges) + _TINY)])  # (2, O, N, C)
    return logs.transpose(2, 3, 1, 0).reshape(len(level), -1)


def stain_statistics(density: Densities) -> FloatArray:
    """Moments and channel correlations of optical density (N, F)."""
    _, channels, n_pixels = density.flat.shape
    mean = density.flat.mean(axis=-1)
    centred = density.flat - mean[..., None]
    together = centred @ centred.swapaxes(-1, -2) / n_pixels
    spread = np.sqrt(np.diagonal(together, axis1=-2, axis2=-1))
    columns = [mean, np.log(spread + _TINY), *density.ends]
    if channels > 1:
        first, second = _pairs(channels)
        scale = spread + _TINY
        columns.append((together / (scale[:, :, None] * scale[:, None]))[:, first, second])
    return np.concatenate(columns, axis=1)


#: What pixels are checked for.
CHECKS = {"place": stain_position, "size": stain_extent, "focus": focus_energies, "stain": stain_statistics}


def compute_quality_features(pixels: Pixels) -> npt.NDArray[np.float32]:
    """Quality features (N, F) of images (N, H, W, C), uint8."""
    parts = []
    for start in range(0, max(len(pixels), 1), _CHUNK):
        planes = np.ascontiguousarray(np.moveaxis(pixels[start : start + _CHUNK], -1, 1))
        density = Densities(_DENSITY.take(planes))
        parts.append(np.concatenate([check(density) for check in CHECKS.values()], axis=1).astype(np.float32))
    return np.concatenate(parts)


@cache
def feature_columns(side: int, channels: int) -> Mapping[str, slice]:
    """Columns of each check among the features."""
    blank = Densities(np.zeros((1, channels, side, side)))
    lengths = [check(blank).shape[1] for check in CHECKS.values()]
    ends = np.cumsum(lengths)
    return {name: slice(int(end - n), int(end)) for name, n, end in zip(CHECKS, lengths, ends, strict=True)}


def optical_density(pixels: Pixels) -> tuple[float, float, float]:
    """Mean optical density by channel, −log10((v + 1) / 256)."""
    density = _DENSITY.take(pixels).reshape(-1, pixels.shape[-1]).mean(axis=0)
    red, green, blue = np.broadcast_to(density, (3,))
    return float(red), float(green), float(blue)
