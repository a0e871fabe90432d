"""Whether training waits for its images: decoding with and without what is kept, input of a step.

    python -m benchmarks.input_pipeline --save

Images are JPEGs of 360 × 363 pixels, about 27 KB each, as microscopes give them. A step is one of the compact network
at 48 px, batch 128, in the precision that this processor is good at; its input is gathering, normalising and
augmenting, what chance decides included. Ratios are of medians of interleaved rounds in one run.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.serving import cell_jpeg
from ml.datasets.base import ImageDataset
from ml.datasets.cells import load_cells
from ml.images.pixel_cache import PackStore, decode_files
from ml.images.preprocess import Preprocessing
from ml.training.data import DeviceData
from ml.training.learner import Learner
from ml.training.run_folder import TrainConfig
from ml.training.train import choose_precision
from ml.util.cores import cores

CPU = torch.device("cpu")
BATCH, SIZE = 128, 96


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def decoding(images: int, rounds: int) -> dict[str, float]:
    """Images per second by one thread and by all cores, for the first time with a copy kept, and with the copy."""
    plain = Preprocessing(3, None, SIZE, (0.5,) * 3, (0.25,) * 3)
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, jpeg = Path(name), cell_jpeg()
        paths = [folder / f"{number}.jpg" for number in range(images)]
        for number, path in enumerate(paths):
            path.write_bytes(
                jpeg + number.to_bytes(4, "big")
            )  # what follows a picture is not read, and makes it another
        for number in range(rounds):
            store = PackStore(folder / str(number))
            ways: dict[str, Callable[[], object]] = {
                "one thread": lambda: decode_files(paths, plain, None, threads=1),
                f"{cores()} threads": lambda: decode_files(paths, plain, None),
                "first time, and kept": lambda: decode_files(paths, plain, store),  # noqa: B023 - called in this round
                "kept": lambda: decode_files(paths, plain, store),  # noqa: B023
            }
            for way, work in ways.items():
                found.setdefault(way, []).append(images / _seconds(work))
    return {way: statistics.median(rates) for way, rates in found.items()}


def _config(augmentation: str) -> TrainConfig:
    precision = choose_precision("auto", CPU)
    return TrainConfig(
        "cells", {}, "compact", 1, BATCH, 2e-3, 0, (), 10, 0, precision, False, None, augmentation=augmentation
    )


class _Timed(Learner):
    """A learner that notes how long the input of each step takes."""

    waited = 0.0

    def _augmented(self, rows: npt.NDArray[np.intp]) -> torch.Tensor:
        started = time.perf_counter()
        images = super()._augmented(rows)
        self.waited += time.perf_counter() - started
        return images


def share_of_steps(dataset: ImageDataset, augmentation: str, epochs: int) -> dict[str, float]:
    """Share of an epoch for which its steps wait for their images, in the first epoch and in later ones."""
    learner, rows = _Timed(DeviceData(dataset, CPU), _config(augmentation)), dataset.rows("train")
    shares, rates = [], []
    for epoch in range(epochs):
        learner.waited = 0.0
        began = time.perf_counter()
        learner.train_epoch(epoch, rows, lambda report: None)
        seconds = time.perf_counter() - began
        shares.append(learner.waited / seconds)
        rates.append(len(rows) / learner.waited)
    return {
        "first epoch": shares[0],
        "later epochs": statistics.median(shares[1:]),
        "input, images per second": statistics.median(rates),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000, help="that are decoded")
    parser.add_argument("--cells", type=int, default=2400, help="of which somewhat more than a half train")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/DATE_input_pipeline.json")
    options = parser.parse_args()
    dataset = load_cells(options.cells, seed=0)
    found = {
        "decoding, images per second": decoding(options.images, options.rounds),
        "share of a step": {way: share_of_steps(dataset, way, options.epochs) for way in ("light", "wide")},
    }
    rates = found["decoding, images per second"]
    found["kept of decoded"] = rates["kept"] / max(rates["one thread"], rates[f"{cores()} threads"])
    print(json.dumps(found, indent=1))
    if options.save:
        machine = {"machine": f"{cores()} cores, {platform.machine()}", "load": os.getloadavg()[1]}
        path = Path(__file__).parent / "results" / f"{date.today().isoformat()}_input_pipeline.json"
        path.write_text(json.dumps(machine | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
