"""Simulated stained white cells with a known label distribution.

Cells lie on continua of nucleus, size and granules. Experts' label distribution
q is a softmax of distances along them; poor focus flattens it. Stains absorb
light (Beer–Lambert); the field of view is 24 µm wide at every image size.
"""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy.ndimage import gaussian_filter
from scipy.special import expit, softmax

from ml.annotations import Annotations
from ml.datasets.base import ClassInfo, ImageDataset
from ml.images.preprocess import Pixels, Preprocessing, fit_normalisation, pixel_digest
from ml.util.arrays import FloatArray, IntArray
from ml.util.files import cores
from ml.util.splits import split_partitions

CELLS_PER_PATIENT = 10
#: Cells that are worth a process.
CELLS_PER_PROCESS = 500
RENDER_SIZE = 96
INPUT_SIZE = 48
SHARES = {"train": 0.55, "valid": 0.10, "calibration": 0.15, "test": 0.20}
LABELS_PER_CASE = {"train": 1, "valid": 2, "calibration": 3, "test": 5}
FIELD_UM = 24.0
# optical density per channel (R, G, B) of a unit of each stain
_EOSIN, _AZURE, _BLUE = (0.10, 0.62, 0.38), (0.66, 0.98, 0.30), (0.62, 0.40, 0.10)
# eosinophil granules are more orange than eosin elsewhere
_ORANGE = (0.06, 0.62, 0.78)

CLASSES = (
    ClassInfo("blast", "Blast", "b", "Immature"),
    ClassInfo("lymphocyte", "Lymphocyte", "l", "Mononuclear"),
    ClassInfo("monocyte", "Monocyte", "m", "Mononuclear"),
    ClassInfo("immature_granulocyte", "Immature granulocyte", "i", "Immature"),
    ClassInfo("band_neutrophil", "Band neutrophil", "n", "Granulocytes"),
    ClassInfo("segmented_neutrophil", "Segmented neutrophil", "g", "Granulocytes"),
    ClassInfo("eosinophil", "Eosinophil", "e", "Granulocytes"),
    ClassInfo("basophil", "Basophil", "o", "Granulocytes"),
)


@dataclass(frozen=True)
class Morphology:
    """Morphology of a simulated cell; radius and defocus in µm."""

    granulocyte: bool
    maturity: float
    monocytic: float
    blastic: float
    orange: float
    dark: float
    lobes: int
    radius: float
    blur: float


def draw_morphology(rng: np.random.Generator) -> Morphology:
    """Draw one cell: about 60 % granulocytes."""
    granulocyte = bool(rng.random() < 0.62)
    maturity = float(rng.beta(1.1, 0.9)) if granulocyte else 0.0
    orange = dark = monocytic = blastic = 0.0
    if granulocyte:
        kind = rng.random()
        if kind < 0.17:
            orange, maturity = float(rng.beta(2.5, 0.8)), 0.45 + 0.5 * maturity
        elif kind < 0.30:
            dark, maturity = float(rng.beta(2.5, 0.8)), 0.35 + 0.5 * maturity
        radius = 6.6 - 0.7 * maturity + rng.normal(0, 0.3)
    else:
        monocytic = float(rng.beta(0.7, 0.9))
        blastic = float(rng.beta(0.55, 1.3))
        radius = 4.6 + 3.2 * monocytic * (1 - 0.4 * blastic) + 1.7 * blastic * (1 - monocytic) + rng.normal(0, 0.25)
    blur = float(0.07 + 0.14 * rng.beta(1.2, 3.0))
    lobes = int(rng.choice([2, 3, 4, 5], p=[0.2, 0.45, 0.28, 0.07]))
    if orange > 0.4:
        lobes = 2
    return Morphology(granulocyte, maturity, monocytic, blastic, orange, dark, lobes, float(radius), blur)


def true_class_probs(cell: Morphology) -> FloatArray:
    """Label distribution q (K,) of an infinite pool of experts for this cell."""
    scores = np.full(len(CLASSES), -9.0)
    if cell.granulocyte:
        scores[3] = 14 * (0.36 - cell.maturity)
        scores[4] = 14 * min(cell.maturity - 0.36, 0.64 - cell.maturity)
        scores[5] = 14 * (cell.maturity - 0.64)
        scores[3:6] = np.maximum(scores[3:6], -9.0)
        scores[6] = 8 * (cell.orange - 0.42) + scores[3:6].max() + 0.5
        scores[7] = 8 * (cell.dark - 0.40) + scores[3:6].max() + 0.5
        scores[2] = max(-9.0, -2.2 - 9 * abs(cell.maturity - 0.25))
    else:
        scores[0] = 6.5 * (cell.blastic - 0.46)
        scores[1] = 6.5 * (0.46 - cell.monocytic) * (1 - 0.6 * cell.blastic)
        scores[2] = 6.5 * (cell.monocytic - 0.46) * (1 - 0.5 * cell.blastic)
        scores[3] = -3.5 - 4 * abs(cell.monocytic - 0.6)
    temperature = 0.8 + 4.0 * (cell.blur - 0.07)
    return np.asarray(softmax(scores / temperature))


@dataclass(frozen=True)
class Stain:
    """Stain of a smear: optical densities (4, 3) and light (3,)."""

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
    """Smooth periodic noise (512, 512) of unit variance."""
    noise = np.random.default_rng(7_000 + scale).normal(size=(512, 512))
    smooth = gaussian_filter(noise, scale / 4, mode="wrap")
    return np.asarray((smooth - smooth.mean()) / smooth.std())


class _Canvas:
    """Pixel grid in µm with random helpers."""

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
        inside = (np.flatnonzero(np.abs(axis - at) < reach) for axis, at in ((self.y[:, 0], y), (self.x[0], x)))
        rows, columns = (slice(some[0], some[-1] + 1) if some.size else slice(0) for some in inside)
        return rows, columns

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


def _red_cells(canvas: _Canvas, white_radius: float) -> FloatArray:
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
    """Signed distance to the nucleus, a chain of discs."""
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
    """Azure and blue density of the nucleus."""
    openness = cell.blastic if not cell.granulocyte else 0.5 * float(np.clip(1 - 2 * cell.maturity, 0, 1))
    loose = max(openness, 0.45 * cell.monocytic)
    clumps = canvas.texture(0.9) * (1 - loose) + canvas.texture(0.35) * loose
    azure = (1.22 - 0.42 * loose) * (1 + (0.17 - 0.07 * loose) * clumps)
    nucleoli = np.zeros_like(nucleus)
    if openness > 0.3 and not cell.granulocyte:
        nucleoli = canvas.dots(nucleus * (nucleus > 0.95), int(canvas.rng.integers(1, 4)), 0.55) * openness
    return nucleus * azure * (1 - 0.38 * nucleoli), nucleus * 0.25 * nucleoli


def _cytoplasm_colour(cell: Morphology) -> tuple[float, float]:
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


@dataclass(frozen=True)
class SimulatedCell:
    """Simulated cell: picture, patient, label distribution."""

    case_id: str
    patient: str
    pixels: Pixels
    true_probs: FloatArray


def cell_name(index: int) -> str:
    """Identifier of the cell with this number."""
    return f"cell-{index:06d}"


def patient_name(index: int) -> str:
    """Patient of the cell with this number; every ten belong to one."""
    return f"patient-{index // CELLS_PER_PATIENT:04d}"


def simulate_cell(index: int, *, seed: int, size: int = RENDER_SIZE, stain_spread: float = 1.0) -> SimulatedCell:
    """Simulate the cell with this number, the same for the same seed."""
    patient = index // CELLS_PER_PATIENT
    rng = np.random.default_rng([seed, 1, index])
    cell = draw_morphology(rng)
    stain = draw_stain(np.random.default_rng([seed, 2, patient]), stain_spread)
    pixels = render(cell, stain, size, rng)
    return SimulatedCell(cell_name(index), patient_name(index), pixels, true_class_probs(cell))


def simulate_cells(count: int, seed: int, size: int = RENDER_SIZE) -> list[SimulatedCell]:
    """Simulate the first ``count`` cells, in parallel if many."""
    draw = partial(simulate_cell, seed=seed, size=size)
    processes = min(cores(), count // CELLS_PER_PROCESS)
    if processes < 2:
        return [draw(index) for index in range(count)]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        return list(pool.map(draw, range(count), chunksize=50))


@dataclass(frozen=True)
class AnnotatorPool:
    """Pool of simulated annotators, independent or copying."""

    size: int = 6
    copying: float = 0.0  # chance of repeating a case's first label

    def read(
        self, true_probs: FloatArray, n_labels: npt.ArrayLike, rng: np.random.Generator
    ) -> tuple[IntArray, IntArray]:
        """Annotators and labels (N, max n_labels) of N cases, −1 for none."""
        labels_per_case = np.broadcast_to(np.asarray(n_labels, dtype=np.int64), len(true_probs))
        if labels_per_case.max(initial=0) > self.size:
            raise ValueError(f"{labels_per_case.max()} labels per case need as many annotators, there are {self.size}")
        width = int(labels_per_case.max(initial=0))
        people = rng.permuted(np.tile(np.arange(self.size), (len(true_probs), 1)), axis=1)[:, :width]
        labels = np.empty((len(true_probs), width), dtype=np.int64)
        steps = true_probs.cumsum(axis=1) / true_probs.sum(axis=1, keepdims=True)
        for column in range(width):
            labels[:, column] = (rng.random((len(steps), 1)) > steps).sum(axis=1)
            if column > 0:
                copies = rng.random(len(steps)) < self.copying
                labels[copies, column] = labels[copies, 0]
        absent = np.arange(width) >= labels_per_case[:, None]
        return np.where(absent, -1, people), np.where(absent, -1, labels)


def load_cells(count: int = 6000, seed: int = 0) -> ImageDataset:
    """Load simulated cells, split by patient."""
    if count < 20 * CELLS_PER_PATIENT:
        raise ValueError(f"at least {20 * CELLS_PER_PATIENT} simulated cells are needed, got {count}")
    cells = simulate_cells(count, seed)
    patients = [cell.patient for cell in cells]
    partition = split_partitions(patients, SHARES, seed)
    true_probs = np.stack([cell.true_probs for cell in cells])
    n_labels = np.array([LABELS_PER_CASE[name] for name in partition.tolist()])
    _, labels = AnnotatorPool().read(true_probs, n_labels, np.random.default_rng([seed, 3]))
    plain = Preprocessing(3, None, INPUT_SIZE, (0.0,) * 3, (1.0,) * 3)
    pixels = np.stack([plain.pixels(Image.fromarray(cell.pixels)) for cell in cells])
    mean, std = fit_normalisation(pixels[partition == "train"])
    return ImageDataset(
        name="cells",
        classes=CLASSES,
        pixels=pixels,
        label_counts=Annotations.of_matrix(labels, len(CLASSES)).counts(),
        partition=partition,
        case_ids=[cell.case_id for cell in cells],
        patients=patients,
        preprocessing=Preprocessing(3, None, INPUT_SIZE, mean, std),
        orientation="any",
        source=f"{count} simulated stained white cells with simulated annotators (seed {seed})",
        licence="Apache-2.0, simulated by this project",
        true_probs=true_probs,
        pixel_digests=[pixel_digest(cell.pixels) for cell in cells],
    )
