"""Training and scoring on a CUDA device beside the CPU: `make gpu` runs it.

    python -m benchmarks.gpu

Steps: train a small network on the device, export it, score images with ONNX Runtime on the device and on the CPU,
compare the logits, and print the times. Simulated cells are the data: nothing is fetched or kept. The exit status is 1
if no CUDA device can be used or the logits differ. ``--device cpu`` shows on any machine that the steps run.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from ml.datasets.cells import load_cells
from ml.release.device import cuda_fault, open_session
from ml.training.export import to_onnx
from ml.training.release_checks import LOGIT_TOLERANCE
from ml.training.run_folder import RunFolder, TrainConfig
from ml.training.train import choose_precision, load_trained, train

EPOCHS, CELLS, IMAGES, BATCH = 3, 2400, 2048, 64


def cuda_problem() -> str | None:
    """Why PyTorch or ONNX Runtime cannot use a CUDA device, and what to do; None if both can."""
    if not torch.backends.cuda.is_built():
        return (
            f"this PyTorch ({torch.__version__}) was built for CPUs: install the one for CUDA, or name a Python that "
            "has it with `make gpu GPU_PYTHON=python3`"
        )
    if not torch.cuda.is_available():
        return "PyTorch finds no CUDA device: check `nvidia-smi`, the driver and CUDA_VISIBLE_DEVICES"
    fault = cuda_fault()
    return None if fault is None else f"ONNX Runtime: {fault}"


def train_on(device: str, cells: int, folder: RunFolder) -> tuple[float, float]:
    """Train for a few epochs; seconds per epoch after the first one, and the last training loss."""
    target = torch.device(device)
    precision = choose_precision("auto", target)
    config = TrainConfig("cells", {}, "compact", EPOCHS, 128, 2e-3, 0, (), EPOCHS, 0, precision, False, None)
    train(load_cells(cells, seed=0), config, folder, device=target)
    rows = folder.read_metrics()
    return min(row["seconds"] for row in rows[1:]), rows[-1]["train_loss"]


def scoring(network: bytes, images: np.ndarray, device: str) -> tuple[np.ndarray, float]:
    """Logits of images by ONNX Runtime, and images per second."""
    session = open_session(network, device="cuda" if device == "cuda" else "cpu")
    session.run(["logits"], {"image": images[:BATCH]})  # the first run allocates
    started = time.perf_counter()
    batches = [images[start : start + BATCH] for start in range(0, len(images), BATCH)]
    logits = np.concatenate([session.run(["logits"], {"image": batch})[0] for batch in batches])
    return logits, len(images) / (time.perf_counter() - started)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--cells", type=int, default=CELLS, help="simulated cells to train on")
    parser.add_argument("--images", type=int, default=IMAGES, help="images to score")
    options = parser.parse_args(arguments)
    problem = cuda_problem() if options.device == "cuda" else None
    if problem is not None:
        print(f"no CUDA device can be used: {problem}", file=sys.stderr)
        return 1
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    with tempfile.TemporaryDirectory() as place:
        folders = {device: RunFolder(Path(place) / device) for device in sorted({options.device, "cpu"})}
        for device, folder in folders.items():
            seconds, loss = train_on(device, options.cells, folder)
            print(f"train on {device:<5} {seconds:8.2f} s per epoch, training loss {loss:.3f}")
        network = load_trained(folders[options.device])
        _, side, _, channels = folders[options.device].read_examples().shape
    images = np.random.default_rng(0).standard_normal((options.images, channels, side, side)).astype(np.float32)
    exported = to_onnx(network, torch.from_numpy(images[:2]), ["logits", "features"])
    expected, slow = scoring(exported, images, "cpu")
    scored, fast = scoring(exported, images, options.device)
    difference = float(np.abs(scored - expected).max() / np.abs(expected).max())
    print(f"score on {name}: {fast:.0f} images per second, on the CPU {slow:.0f}")
    print(f"largest difference of logits: {difference:.1e} of the largest (at most {LOGIT_TOLERANCE:g})")
    return int(not difference <= LOGIT_TOLERANCE)


if __name__ == "__main__":
    raise SystemExit(main())
