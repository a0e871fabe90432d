"""Simulated stained white cells with a known label distribution: the embedded default and the test bed."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from PIL import Image

from ml.datasets.annotators import AnnotatorPool, count_labels
from ml.datasets.base import ImageDataset
from ml.datasets.cells_morphology import CLASSES, Morphology, draw_morphology, true_class_probs
from ml.datasets.cells_render import draw_stain, render
from ml.images.pixel_digest import pixel_digest
from ml.images.preprocess import Pixels, Preprocessing, fit_normalisation
from ml.util.arrays import FloatArray
from ml.util.cores import cores
from ml.util.splits import split_partitions

CELLS_PER_PATIENT = 10
#: Cells for which it is worth to start a process: it takes about as long as drawing a hundred.
CELLS_PER_PROCESS = 500
RENDER_SIZE = 96
INPUT_SIZE = 48
SHARES = {"train": 0.55, "valid": 0.10, "calibration": 0.15, "test": 0.20}
LABELS_PER_CASE = {"train": 1, "valid": 2, "calibration": 3, "test": 5}


@dataclass(frozen=True)
class SimulatedCell:
    """One simulated cell: its picture, its patient and the label distribution of all experts."""

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
    """Simulate the cell with this number; the same number and seed give the same cell.

    Args:
        index: number of the cell; every ten belong to one patient.
        seed: of the whole set.
        size: side of the picture in px, for a field of 24 µm.
        stain_spread: how far patients' stains lie apart; above 1 is a drift.
    """
    patient = index // CELLS_PER_PATIENT
    cell, rng = _morphology(index, seed)
    stain = draw_stain(np.random.default_rng([seed, 2, patient]), stain_spread)
    pixels = render(cell, stain, size, rng)
    return SimulatedCell(cell_name(index), patient_name(index), pixels, true_class_probs(cell))


def simulate_cells(count: int, seed: int, size: int = RENDER_SIZE) -> list[SimulatedCell]:
    """Simulate the first ``count`` cells; many are drawn by several processes, which changes no pixel."""
    processes = min(cores(), count // CELLS_PER_PROCESS)
    drawn = _drawn_by(processes, count, seed, size) if processes > 1 else None
    if drawn is None:
        return [simulate_cell(index, seed=seed, size=size) for index in range(count)]
    return [
        SimulatedCell(
            cell_name(index), patient_name(index), drawn[index], true_class_probs(_morphology(index, seed)[0])
        )
        for index in range(count)
    ]


def _morphology(index: int, seed: int) -> tuple[Morphology, np.random.Generator]:
    """Draw a cell's morphology; return it with the generator of its image."""
    rng = np.random.default_rng([seed, 1, index])
    return draw_morphology(rng), rng


def _drawn_by(processes: int, count: int, seed: int, size: int) -> Pixels | None:
    """Pictures (count, size, size, 3) of the first cells, drawn by so many processes; None where one of them fails.

    A cell depends on its number and the seed alone, so that it does not matter which process draws it.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ends = [count * k // processes for k in range(processes + 1)]
    with ThreadPoolExecutor(processes) as pool:

        def draw(first: int, last: int) -> bytes:
            command = [sys.executable, "-m", "ml.datasets.cells", *map(str, (first, last, seed, size))]
            done = subprocess.run(command, env=environment, capture_output=True, check=False)  # noqa: S603
            return done.stdout if done.returncode == 0 else b""

        parts = list(pool.map(draw, ends[:-1], ends[1:]))
    data = b"".join(parts)
    if len(data) != count * size * size * 3:
        return None
    return np.frombuffer(data, dtype=np.uint8).reshape(count, size, size, 3)


def load_cells(count: int = 6000, seed: int = 0, annotators: AnnotatorPool | None = None) -> ImageDataset:
    """Simulated cells as a data set: split by patient, one label in training, 2, 3 and 5 elsewhere.

    Args:
        count: number of cells.
        seed: of cells, split and labels.
        annotators: who reads them; independent annotators where left out.

    Raises:
        ValueError: fewer than 200 cells, too few for four partitions of patients.
    """
    if count < 20 * CELLS_PER_PATIENT:
        raise ValueError(f"at least {20 * CELLS_PER_PATIENT} simulated cells are needed, got {count}")
    cells = simulate_cells(count, seed)
    patients = [cell.patient for cell in cells]
    partition = split_partitions(patients, SHARES, seed)
    true_probs = np.stack([cell.true_probs for cell in cells])
    n_labels = np.array([LABELS_PER_CASE[name] for name in partition.tolist()])
    pool = annotators or AnnotatorPool()
    _, labels = pool.read(true_probs, n_labels, np.random.default_rng([seed, 3]))
    plain = Preprocessing(3, None, INPUT_SIZE, (0.0,) * 3, (1.0,) * 3)
    pixels = np.stack([plain.pixels(Image.fromarray(cell.pixels)) for cell in cells])
    mean, std = fit_normalisation(pixels[partition == "train"])
    return ImageDataset(
        name="cells",
        classes=CLASSES,
        pixels=pixels,
        label_counts=count_labels(labels, len(CLASSES)),
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


def main() -> None:
    """Write the pixels of cells from the first to before the last, of a seed and a size, to stdout."""
    first, last, seed, size = map(int, sys.argv[1:])
    for index in range(first, last):
        sys.stdout.buffer.write(simulate_cell(index, seed=seed, size=size).pixels.tobytes())
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
