"""One process with one thread against two that share each batch: time of an epoch, and what sharing costs.

``--save`` keeps the figures in ``results/``. Rounds of one and of two processes take turns. Where other programs take
turns with them as well, time on the clock says little; time of the processor says what sharing costs.
"""

import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ml.datasets.cells import load_cells
from ml.training.data import DeviceData
from ml.training.learner import Learner
from ml.training.processes import started_processes
from ml.training.run_folder import TrainConfig

CELLS, BATCH, ROUNDS, EPOCHS = 1000, 128, 3, 2


@dataclass(frozen=True)
class Job:
    """What is trained.

    Attributes:
        device: ``cpu``, by gloo, or ``cuda``, a device for each process by NCCL.
        cells: simulated cells, of which somewhat more than a half train.
        batch: images of all processes per step.
        network: its name.
    """

    device: str = "cpu"
    cells: int = CELLS
    batch: int = BATCH
    network: str = "compact"


def worker(job: Job) -> None:
    """Train a warm-up epoch and a few more, and print seconds on the clock and of the processor of each."""
    torch.set_num_threads(1)
    with started_processes() as processes:
        device = processes.device(torch.device(job.device))
        dataset = load_cells(job.cells, seed=0)
        config = TrainConfig("cells", {}, job.network, 1, job.batch, 2e-3, 0, (), 10, 0, "float32", False, None)
        learner = Learner(DeviceData(dataset, device), config, processes)
        rows, times, losses = dataset.rows("train"), [], []
        for epoch in range(1 + EPOCHS):
            started, used = time.perf_counter(), time.process_time()
            losses.append(learner.train_epoch(epoch, rows, lambda report: None))
            own = torch.tensor([time.process_time() - used], dtype=torch.float64, device=device)
            times.append([time.perf_counter() - started, float(processes.total(own))])
        if processes.first:
            print(json.dumps({"images": len(rows), "times": times[1:], "losses": losses}))
        del learner  # what averages gradients must not outlive the processes


def trained(count: int, job: Job) -> dict[str, Any]:
    """Images of an epoch, seconds on the clock and of all processors of each, and losses, by so many processes.

    Raises:
        RuntimeError: a process failed; the message ends with what was said last.
    """
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count)]
    command = [*launcher, "-m", "benchmarks.several_processes", "--worker", json.dumps(asdict(job))]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"{count} processes failed: {done.stderr.strip()[-300:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(count: int) -> list[list[float]]:
    """Seconds on the clock and of all processors of each epoch, by so many processes."""
    times: list[list[float]] = trained(count, Job())["times"]
    return times


def main() -> None:
    times: dict[int, list[list[float]]] = {1: [], 2: []}
    for _ in range(ROUNDS):
        for count, rows in times.items():
            rows += measure(count)
    clock, processor = ({n: float(np.median([row[k] for row in rows])) for n, rows in times.items()} for k in (0, 1))
    load = os.getloadavg()[1]
    title = f"an epoch of the compact network, batch {BATCH} at 48 px, one thread each, torch {torch.__version__}, gloo"
    print(f"{title}; {os.cpu_count()} cores, load of five minutes {load:.1f}")
    for count in times:
        print(f"{count} processes: {clock[count]:6.2f} s on the clock, {processor[count]:6.2f} s of processors")
    ratios = {"speed": clock[1] / clock[2], "processor": processor[2] / processor[1]}
    print(f"two processes: {ratios['speed']:.2f} times as fast, {ratios['processor']:.2f} times the time of processors")
    if "--save" in sys.argv:
        path = Path(__file__).parent / "results" / f"{date.today().isoformat()}_several_processes.json"
        rows_saved = {str(n): {"seconds": clock[n], "processor_seconds": processor[n]} for n in times}
        document = {"what": title, "machine": platform.machine(), "cores": os.cpu_count(), "load": load}
        path.write_text(json.dumps(document | {"rows": rows_saved, "ratios": ratios}, indent=2) + "\n")


if __name__ == "__main__":
    worker(Job(**json.loads(sys.argv[2]))) if "--worker" in sys.argv else main()
