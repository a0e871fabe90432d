"""Standard image shifts that imitate another microscope, stain or camera.

Strength 0 changes nothing, 1 is the standard shift of release cards. Margins
are folded from the rim of the image.
"""

from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import numpy.typing as npt
from PIL import Image

from ml.images.preprocess import Pixels
from ml.util.arrays import FloatArray

Rng = np.random.Generator
#: Standard shifts: offset and σ of defocus (shares of the side), turn of the
#: hue, changes of density and brightness, σ of noise in grey levels.
OFF_CENTRE, DEFOCUS, HUE, DENSITY, BRIGHTNESS, NOISE = 0.25, 1 / 24, 0.08, 0.25, 0.25, 20.0
#: Quality of JPEG at strength 0 (which compresses nothing) and 1.
_QUALITY = (95, 15)
_RIM = 8


@dataclass(frozen=True)
class StandardShift:
    """One kind of shift."""

    name: str  # as cards and tables have it
    standard: str  # effect of strength 1 in words, as cards have it
    apply: Callable[[Pixels, float, Rng], Pixels]
    colour: bool = False  # whether it needs an RGB image

    def __call__(self, pixels: Pixels, strength: float, seed: int | tuple[int, ...]) -> Pixels:
        """Shift one image."""
        if not strength >= 0:
            raise ValueError(f"the strength of a shift must not be negative, got {strength}")
        if strength == 0:
            return pixels.copy()
        return self.apply(pixels, strength, np.random.default_rng(seed))


def _rim_index(length: int, before: int, after: int) -> npt.NDArray[np.intp]:
    """Indices of an axis with reflected margins."""
    rim = max(length // _RIM, 1)
    wave = np.concatenate([np.arange(rim), np.arange(rim)[::-1]])
    left = wave[np.arange(before) % (2 * rim)][::-1]
    right = length - 1 - wave[np.arange(after) % (2 * rim)]
    return np.concatenate([left, np.arange(length), right])


def _magnified(pixels: Pixels, factor: float) -> Pixels:
    """Image magnified or reduced about its centre, size unchanged."""
    height, width = pixels.shape[:2]
    margin = int(np.ceil(max(0.0, 1 / factor - 1) * max(height, width) / 2))
    wide = pixels[np.ix_(_rim_index(height, margin, margin), _rim_index(width, margin, margin))]
    y, x = wide.shape[0] / 2, wide.shape[1] / 2
    box = (x - width / factor / 2, y - height / factor / 2, x + width / factor / 2, y + height / factor / 2)
    planes = [
        np.asarray(Image.fromarray(wide[..., c]).resize((width, height), Image.Resampling.BICUBIC, box=box))
        for c in range(wide.shape[2])
    ]
    return np.stack(planes, axis=-1)


def _off_centre(pixels: Pixels, strength: float, rng: Rng) -> Pixels:
    height, width = pixels.shape[:2]
    angle, way = rng.uniform(0, 2 * np.pi), OFF_CENTRE * strength
    down, right = round(way * height * np.sin(angle)), round(way * width * np.cos(angle))
    rows = _rim_index(height, max(down, 0), max(-down, 0))[max(-down, 0) :][:height]
    columns = _rim_index(width, max(right, 0), max(-right, 0))[max(-right, 0) :][:width]
    return np.asarray(pixels[np.ix_(rows, columns)])


def _to_pixels(values: FloatArray) -> Pixels:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def _defocused(pixels: Pixels, strength: float, _rng: Rng) -> Pixels:
    from scipy.ndimage import gaussian_filter  # slow to load

    sigma = DEFOCUS * strength * min(pixels.shape[:2])
    return _to_pixels(gaussian_filter(pixels.astype(np.float64), (sigma, sigma, 0), mode="nearest"))


def _sign(rng: Rng) -> float:
    return float(rng.choice([-1.0, 1.0]))


def turned_hue(pixels: Pixels, turn: float) -> Pixels:
    """Colours with another hue (HSV; Smith, SIGGRAPH 1978)."""
    rgb = pixels.astype(np.float64)
    value, chroma = rgb.max(axis=-1), np.ptp(rgb, axis=-1)
    leading, safe = rgb.argmax(axis=-1), np.maximum(chroma, 1e-9)
    red, green, blue = np.moveaxis(rgb, -1, 0)
    sector = np.choose(leading, [(green - blue) / safe, (blue - red) / safe + 2, (red - green) / safe + 4])
    sixth = sector + 6 * turn
    steps = (np.array([5.0, 3.0, 1.0]) + sixth[..., None]) % 6
    fall = np.clip(np.minimum(steps, 4 - steps), 0, 1)
    return _to_pixels(value[..., None] - chroma[..., None] * fall)


def _compressed(pixels: Pixels, strength: float, _rng: Rng) -> Pixels:
    best, standard = _QUALITY
    quality = max(1, round(best + (standard - best) * strength))
    buffer = BytesIO()
    Image.fromarray(pixels if pixels.shape[-1] == 3 else pixels[..., 0]).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer), dtype=np.uint8).reshape(pixels.shape)


STANDARD_SHIFTS = (
    StandardShift("half magnification", "half as large", lambda pixels, s, _: _magnified(pixels, 2**-s)),
    StandardShift("double magnification", "twice as large", lambda pixels, s, _: _magnified(pixels, 2**s)),
    StandardShift("off centre", "moved by a quarter of the side", _off_centre),
    StandardShift("defocus", "blurred, σ of a 24th of the side", _defocused),
    StandardShift("hue", "hue turned by .08", lambda pixels, s, rng: turned_hue(pixels, _sign(rng) * HUE * s), True),
    StandardShift(
        "stain density",
        "optical density × or ÷ 1.25",
        lambda pixels, s, rng: _to_pixels(255 * ((pixels + 1.0) / 256) ** ((1 + DENSITY * s) ** _sign(rng))),
    ),
    StandardShift(
        "brightness", "× or ÷ 1.25", lambda pixels, s, rng: _to_pixels(pixels * (1 + BRIGHTNESS * s) ** _sign(rng))
    ),
    StandardShift("compression", "JPEG of quality 15", _compressed),
    StandardShift(
        "noise",
        "σ of 20 grey levels",
        lambda pixels, s, rng: _to_pixels(pixels + NOISE * s * rng.standard_normal(pixels.shape)),
    ),
)


def shifts_for(channels: int) -> tuple[StandardShift, ...]:
    """Kinds of shift that images of 1 or 3 channels can have."""
    return tuple(shift for shift in STANDARD_SHIFTS if channels == 3 or not shift.colour)


def shifted(
    pixels: Pixels, shift: StandardShift, strengths: tuple[float, float], seed: int
) -> tuple[Pixels, FloatArray]:
    """Shift images (N, H, W, C), each by a strength drawn between two."""
    low, high = strengths
    drawn = np.array([np.random.default_rng((seed, row)).uniform(low, high) for row in range(len(pixels))])
    images = [shift(image, float(drawn[row]), (seed, row, 1)) for row, image in enumerate(pixels)]
    return (np.stack(images) if images else pixels.copy()), drawn
