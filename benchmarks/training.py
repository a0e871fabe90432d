"""Training on a CPU: a step, the input of a step, images decoded before, and two processes that share each batch.

    python -m benchmarks.training --save

A step of the compact network at 48 px, batch 128: plain float32 against channels_last, bf16 and torch.compile. Its
input is gathering, normalising and augmenting. Images are JPEGs of 360 × 363 pixels. Two processes on two cores that
other programs use as well are compared by processor time, which shows what sharing costs.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.harness import CORES, Figures, interleaved, main, medians, spend
from benchmarks.pictures import cell_jpeg
from ml.datasets.base import ImageDataset
from ml.datasets.cells import load_cells
from ml.images.pixel_cache import PackStore, decode_files
from ml.images.preprocess import Preprocessing
from ml.training.data import DeviceData
from ml.training.learner import Learner, count_weighted_nll
from ml.training.networks import build_network
from ml.training.processes import started_processes
from ml.training.run_folder import TrainConfig
from ml.training.train import choose_precision

BATCH, SIDE, CLASSES = 128, 48, 8
CPU = torch.device("cpu")


def make_step(batch: int, *, channels_last: bool, bf16: bool, compiled: bool = False) -> Callable[[], None]:
    torch.manual_seed(0)
    network = build_network("compact", 3, CLASSES)
    images, counts = torch.randn(batch, 3, SIDE, SIDE), torch.eye(CLASSES)[torch.arange(batch) % CLASSES]
    if channels_last:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        images = images.contiguous(memory_format=torch.channels_last)
    forward = torch.compile(network) if compiled else network
    optimiser = torch.optim.Adam(network.parameters())

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = count_weighted_nll(forward(images)[0].float(), counts)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()

    return step


def steps(quick: bool) -> Figures:
    """Milliseconds of a step, and how many times as fast it is as in plain float32."""
    batch = 8 if quick else BATCH
    works = {
        "plain float32": make_step(batch, channels_last=False, bf16=False),
        "channels_last": make_step(batch, channels_last=True, bf16=False),
        "channels_last, bf16": make_step(batch, channels_last=True, bf16=True),
    }
    if not quick:  # to compile takes a minute
        works["channels_last, bf16, compiled"] = make_step(batch, channels_last=True, bf16=True, compiled=True)
    for step in works.values():
        step()  # what only the first one costs
    seconds = interleaved(works, 1 if quick else 28)
    return {name: {"ms": 1000 * value, "ratio": seconds["plain float32"] / value} for name, value in seconds.items()}


def decoding(images: int, rounds: int) -> dict[str, float]:
    """Images per second by one thread and by all cores, for the first time with a copy kept, and with the copy."""
    plain = Preprocessing(3, None, 96, (0.5,) * 3, (0.25,) * 3)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder, jpeg = Path(name), cell_jpeg()
        paths = [folder / f"{number}.jpg" for number in range(images)]
        for number, path in enumerate(paths):
            path.write_bytes(
                jpeg + number.to_bytes(4, "big")
            )  # bytes after a picture are not read, and make it another
        for number in range(rounds):
            store = PackStore(folder / str(number))
            ways = {
                "one thread": (None, 1),
                f"{CORES} threads": (None, None),
                "first time, and kept": (store, None),
                "kept": (store, None),
            }
            rows.append(
                {
                    way: images / spend(lambda kept=kept, n=n: decode_files(paths, plain, kept, threads=n)).clock
                    for way, (kept, n) in ways.items()
                }
            )
    return medians(rows)


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


def input_pipeline(quick: bool) -> Figures:
    """Decoding, and the share of a step for which it waits for its images."""
    images, cells, epochs, rounds = (20, 200, 2, 1) if quick else (2000, 2400, 4, 3)
    dataset, rates = load_cells(cells, seed=0), decoding(images, rounds)
    return {
        "decoding, images per second": rates,
        "share of a step": {way: share_of_steps(dataset, way, epochs) for way in ("light", "wide")},
        "kept of decoded": rates["kept"] / max(rates["one thread"], rates[f"{CORES} threads"]),
    }


def worker(cells: int) -> None:
    """Train a warm-up epoch and two more, and print seconds on the clock and of the processors of each."""
    torch.set_num_threads(1)
    with started_processes() as processes:
        dataset = load_cells(cells, seed=0)
        config = TrainConfig("cells", {}, "compact", 1, BATCH, 2e-3, 0, (), 10, 0, "float32", False, None)
        learner = Learner(DeviceData(dataset, CPU), config, processes)
        rows, times = dataset.rows("train"), []
        for epoch in range(3):
            started, used = time.perf_counter(), time.process_time()
            learner.train_epoch(epoch, rows, lambda report: None)
            own = torch.tensor([time.process_time() - used], dtype=torch.float64)
            times.append((time.perf_counter() - started, float(processes.total(own))))
        if processes.first:
            print(json.dumps([{"seconds": clock, "processor_seconds": used} for clock, used in times[1:]]))
        del learner  # what averages gradients must not outlive the processes


def several_processes(quick: bool) -> Figures:
    """Seconds of an epoch by one process with one thread and by two that share each batch.

    Raises:
        RuntimeError: a process failed; the message has its last lines.
    """
    epochs: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    for _ in range(1 if quick else 3):
        for count, rows in epochs.items():
            launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count)]
            command = [*launcher, "-m", "benchmarks.training", "--worker", "200" if quick else "1000"]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
            if done.returncode:
                raise RuntimeError(f"{count} processes failed: {done.stderr.strip()[-300:]}")
            rows += json.loads(done.stdout.splitlines()[-1])
    one, two = (medians(rows) for rows in epochs.values())
    ratios = {
        "speed": one["seconds"] / two["seconds"],
        "processor": two["processor_seconds"] / one["processor_seconds"],
    }
    return {"1": one, "2": two, "ratios": ratios}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(int(sys.argv[2]))
    else:
        measurements = {"training": steps, "input_pipeline": input_pipeline}
        main(__doc__, measurements | {"several_processes": several_processes})
