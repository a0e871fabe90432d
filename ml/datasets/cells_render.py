"""Drawing a simulated white cell: stains absorb light (Beer–Lambert), a microscope blurs, a camera adds noise.

The field of view is 24 µm wide at every image size.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter
from scipy.special import expit

from ml.datasets.cells_morphology import Morphology
from ml.images.preprocess import Pixels
from ml.util.arrays import FloatArray

FIELD_UM = 24.0
# optical density per channel (R, G, B) of a unit of each stain
_EOSIN, _AZURE, _BLUE = (0.10, 0.62, 0.38), (0.66, 0.98, 0.30), (0.62, 0.40, 0.10)
# eosinophil granules are more orange than eosin elsewhere
_ORANGE = (0.06, 0.62, 0.78)


@dataclass(frozen=True)
class Stain:
    """Stain and illumination of one patient's smear.

    Attributes:
        vectors: (4 stains, 3 channels) optical density of eosin, azure, methylene blue and of eosin in granules.
        light: (3,) background brightness.
    """

    vectors: FloatArray
    light: FloatArray


def draw_stain(rng: np.random.Generator, spread: float = 1.0) -> Stain:
    """Draw a patient's stain; ``spread`` scales how far it lies from the mean."""
    strength = np.exp(spread * rng.normal(0, 0.10, (4, 1)))
    colour = 1 + spread * rng.normal(0, 0.05, (4, 3))
    light = np.array([0.93, 0.91, 0.92]) + spread * (rng.normal(0, 0.012) + rng.normal(0, 0.004, 3))
    return Stain(np.array([_EOSIN, _AZURE, _BLUE, _ORANGE]) * strength * colour, np.clip(light, 0.85, 0.98))


@lru_cache(maxsize=4)
def _noise_tile(scale: int) -> FloatArray:
    """Smooth noise of unit variance, 512 × 512, that wraps around."""
    noise = np.random.default_rng(7_000 + scale).normal(size=(512, 512))
    smooth = gaussian_filter(noise, scale / 4, mode="wrap")
    return np.asarray((smooth - smooth.mean()) / smooth.std())


class _Canvas:
    """Pixel grid in µm with the random helpers that the parts of a cell share."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self.size, self.rng = size, rng
        axis = (np.arange(size) + 0.5) / size * FIELD_UM - FIELD_UM / 2
        self.x, self.y = np.meshgrid(axis, axis)
        self.pixel = FIELD_UM / size

    def soft(self, signed: FloatArray, width: float = 0.12) -> FloatArray:
        """Coverage of a shape from its signed distance in µm, positive inside."""
        return np.asarray(expit(signed / max(width, 0.5 * self.pixel)))

    def texture(self, grain: float) -> FloatArray:
        """Noise of unit variance with the given grain in µm."""
        tile = _noise_tile(max(2, round(4 * grain / 0.25)))
        step = 4 * self.pixel / 0.25
        shift = self.rng.integers(0, 512, 2)
        index = (np.arange(self.size) * step).astype(int)
        return tile[np.ix_((index + shift[0]) % 512, (index + shift[1]) % 512)]

    def near(self, x: float, y: float, reach: float) -> tuple[slice, slice]:
        """Rows and columns within ``reach`` µm of a point."""
        rows, columns = np.abs(self.y[:, 0] - y) < reach, np.abs(self.x[0] - x) < reach
        return slice(*_ends(rows)), slice(*_ends(columns))

    def blob(self, x: float, y: float, radius: float, wobble: float, where: Any = ...) -> FloatArray:
        """Signed distance to a roundish outline, on part of the grid."""
        dx, dy = self.x[where] - x, self.y[where] - y
        angle, distance = np.arctan2(dy, dx), np.sqrt(dx**2 + dy**2)
        outline = np.full_like(distance, radius)
        for wave in (2, 3, 4, 5):
            size = self.rng.normal(0, wobble * radius / wave)
            outline += size * np.cos(wave * angle + self.rng.uniform(0, 2 * np.pi))
        return np.asarray(outline - distance)

    def dots(self, allowed: FloatArray, count: int, radius: float) -> FloatArray:
        """Granules scattered where ``allowed`` (0 to 1) says so, as coverage."""
        result = np.zeros_like(allowed)
        places = np.flatnonzero(allowed > 0.5)
        if count == 0 or places.size == 0:
            return result
        reach = int(np.ceil(2.2 * radius / self.pixel))
        offsets = np.arange(-reach, reach + 1)
        row, column = np.divmod(self.rng.choice(places, count), self.size)
        sizes = radius * self.rng.uniform(0.75, 1.25, count)
        squared = (offsets[:, None] ** 2 + offsets[None, :] ** 2) * self.pixel**2
        stamps = np.exp(-((squared / sizes[:, None, None] ** 2) ** 2)) * self.rng.uniform(0.7, 1, (count, 1, 1))
        rows = np.clip(row[:, None] + offsets, 0, self.size - 1)[:, :, None]
        columns = np.clip(column[:, None] + offsets, 0, self.size - 1)[:, None, :]
        np.maximum.at(result.ravel(), (rows * self.size + columns).ravel(), stamps.ravel())
        return result * np.clip(2 * allowed, 0, 1)


def _ends(inside: npt.NDArray[np.bool_]) -> tuple[int, int]:
    rows = np.flatnonzero(inside)
    return (int(rows[0]), int(rows[-1]) + 1) if rows.size else (0, 0)


def _red_cells(canvas: _Canvas, white_radius: float) -> FloatArray:
    """Eosin density of the red cells around the white cell."""
    density = np.zeros_like(canvas.x)
    placed: list[tuple[float, float]] = []
    for _ in range(int(canvas.rng.integers(14, 30))):
        x, y = canvas.rng.uniform(-15, 15, 2)
        near = any((x - a) ** 2 + (y - b) ** 2 < 6.0**2 for a, b in placed)
        if np.hypot(x, y) < white_radius + 2.6 or near:
            continue
        placed.append((x, y))
        radius = canvas.rng.normal(3.5, 0.22)
        where = canvas.near(x, y, 4.8)
        signed = canvas.blob(x, y, radius, 0.05, where)
        pallor = 0.24 + 0.52 * np.clip(1 - signed / radius, 0, 1) ** 1.5
        density[where] = np.maximum(density[where], canvas.soft(signed) * pallor * canvas.rng.uniform(0.9, 1.1))
    return density


def _nucleus(canvas: _Canvas, cell: Morphology) -> FloatArray:
    """Signed distance to the nucleus: discs along a spine that bends, thins and is tied off into lobes."""
    rng, radius = canvas.rng, cell.radius
    if cell.granulocyte:
        bend = np.clip((cell.maturity - 0.08) / 0.5, 0, 1)
        ties = float(np.clip((cell.maturity - 0.50) / 0.26, 0, 1))
        width = radius * (0.62 - 0.36 * bend - 0.01 * ties)
        span, arc = (4.3 + 0.5 * ties) * bend, radius * (0.10 + 0.40 * bend + 0.06 * ties)
    else:
        bend = float(np.clip((cell.monocytic - 0.35) / 0.6, 0, 1)) * (1 - 0.7 * cell.blastic)
        ties = 0.0
        fill = 0.84 - 0.22 * cell.monocytic + 0.10 * cell.blastic * cell.monocytic
        width = radius * (fill - 0.22 * bend)
        span, arc = 2.6 * bend, radius * (0.04 + 0.34 * bend)
    turn = rng.uniform(0, 2 * np.pi)
    position = np.linspace(0, 1, 26)
    angle = turn + span * (position - 0.5) + rng.normal(0, 0.03, position.size).cumsum() * bend
    wander = arc * (1 + 0.12 * np.sin(2 * np.pi * (position + rng.random())) * bend)
    shift = -arc * (0.55 if span > 0 else 0.0) * np.array([np.cos(turn), np.sin(turn)]) * min(1.0, span / 3)
    xs, ys = wander * np.cos(angle) + shift[0], wander * np.sin(angle) + shift[1]
    profile = np.abs(np.sin(np.pi * cell.lobes * position)) ** 1.7
    ends = 0.75 + 0.25 * np.sin(np.pi * position)
    widths = (
        width
        * ((1 - ties) * ends + ties * (0.13 + (1.16 - 0.09 * (cell.lobes - 2)) * profile))
        * rng.normal(1, 0.04, position.size)
    )
    signed = np.full_like(canvas.x, -np.inf)
    for x, y, half in zip(xs, ys, widths, strict=True):
        np.maximum(signed, half - np.sqrt((canvas.x - x) ** 2 + (canvas.y - y) ** 2), out=signed)
    return np.asarray(signed + 0.10 * canvas.texture(2.5), dtype=np.float64)


def _granules(
    canvas: _Canvas, cell: Morphology, cytoplasm: FloatArray, body: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Density of azure and of orange eosin in granules."""
    eosin, azure = np.zeros_like(body), np.zeros_like(body)
    if cell.granulocyte:
        fine = max(0.0, 1 - cell.orange - cell.dark)
        azure += 0.22 * canvas.dots(cytoplasm, int(150 * fine), 0.17)
        early = float(np.clip(1 - cell.maturity / 0.4, 0, 1)) * fine
        azure += 0.55 * canvas.dots(body, int(45 * early), 0.20)
        orange = canvas.dots(cytoplasm, int(210 * cell.orange), 0.36)
        eosin += (0.55 + 0.75 * cell.orange) * orange
        dark = canvas.dots(body, int(95 * cell.dark), 0.40)
        azure += (0.5 + 0.9 * cell.dark) * dark
    elif cell.monocytic > 0.3:
        azure += 0.14 * canvas.dots(cytoplasm, int(80 * cell.monocytic), 0.13)
    return azure, eosin


def _chromatin(canvas: _Canvas, cell: Morphology, nucleus: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Azure and blue density of the nucleus: clumped when mature, fine and with nucleoli when blastic."""
    openness = cell.blastic if not cell.granulocyte else 0.5 * float(np.clip(1 - 2 * cell.maturity, 0, 1))
    loose = max(openness, 0.45 * cell.monocytic)
    clumps = canvas.texture(0.9) * (1 - loose) + canvas.texture(0.35) * loose
    azure = (1.22 - 0.42 * loose) * (1 + (0.17 - 0.07 * loose) * clumps)
    nucleoli = np.zeros_like(nucleus)
    if openness > 0.3 and not cell.granulocyte:
        nucleoli = canvas.dots(nucleus * (nucleus > 0.95), int(canvas.rng.integers(1, 4)), 0.55) * openness
    return nucleus * azure * (1 - 0.38 * nucleoli), nucleus * 0.25 * nucleoli


def _cytoplasm_colour(cell: Morphology) -> tuple[float, float]:
    """Eosin and methylene-blue density of the cytoplasm."""
    if cell.granulocyte:
        young = float(np.clip(1 - cell.maturity / 0.45, 0, 1))
        return 0.20 + 0.05 * cell.orange - 0.06 * young, 0.05 + 0.24 * young
    blue = 0.30 - 0.08 * cell.monocytic + 0.45 * cell.blastic
    return 0.03 + 0.11 * cell.monocytic * (1 - cell.blastic), blue


def render(cell: Morphology, stain: Stain, size: int, rng: np.random.Generator) -> Pixels:
    """Draw one cell as uint8 RGB (size, size, 3)."""
    canvas = _Canvas(size, rng)
    offset = rng.normal(0, 0.35, 2)
    canvas.x, canvas.y = canvas.x - offset[0], canvas.y - offset[1]
    body = canvas.soft(canvas.blob(0, 0, cell.radius, 0.05 + 0.05 * cell.monocytic), 0.15)
    nucleus = canvas.soft(_nucleus(canvas, cell), 0.14) * body
    cytoplasm = body * (1 - nucleus)
    eosin_level, blue_level = _cytoplasm_colour(cell)
    mottle = 1 + 0.14 * canvas.texture(0.8)
    if not cell.granulocyte and cell.monocytic > 0.55:
        mottle *= 1 - 0.75 * canvas.dots(cytoplasm, int(rng.integers(0, 9)), 0.42)
    azure, blue = _chromatin(canvas, cell, nucleus)
    eosin = _red_cells(canvas, cell.radius) * (1 - body) + cytoplasm * eosin_level * mottle
    granules_azure, granules_orange = _granules(canvas, cell, cytoplasm, body)
    layers = np.stack([eosin, azure + granules_azure, blue + cytoplasm * blue_level * mottle, granules_orange])
    density = np.tensordot(stain.vectors.T, layers, axes=1)
    tilt = 1 + 0.02 * (rng.normal() * canvas.x + rng.normal() * canvas.y) / FIELD_UM
    picture = stain.light[:, None, None] * tilt * np.exp(-density)
    sigma = cell.blur / canvas.pixel
    picture = np.stack([gaussian_filter(channel, sigma) for channel in picture], axis=-1)
    picture += rng.normal(0, 0.008, picture.shape)
    return np.asarray(np.clip(picture * 255 + 0.5, 0, 255), dtype=np.uint8)
