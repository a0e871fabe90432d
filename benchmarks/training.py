"""One training step of the compact network: plain float32 against channels_last, bf16 and torch.compile.

Ratios are of medians of interleaved rounds in one run; an absolute time says little on a shared machine.
``--save`` keeps the figures in ``results/``.
"""

import json
import platform
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
import torch

from ml.training.losses import count_weighted_nll
from ml.training.networks import build_network

BATCH, SIDE, CLASSES, ROUNDS, STEPS = 128, 48, 8, 7, 4


def make_step(*, channels_last: bool, bf16: bool, compiled: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    network = build_network("compact", 3, CLASSES)
    images, counts = torch.randn(BATCH, 3, SIDE, SIDE), torch.eye(CLASSES)[torch.arange(BATCH) % CLASSES]
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


def main() -> None:
    variants = {
        "plain float32": make_step(channels_last=False, bf16=False, compiled=False),
        "channels_last": make_step(channels_last=True, bf16=False, compiled=False),
        "channels_last, bf16": make_step(channels_last=True, bf16=True, compiled=False),
    }
    if "--quick" not in sys.argv:  # to compile takes a minute
        variants["channels_last, bf16, compiled"] = make_step(channels_last=True, bf16=True, compiled=True)
    times: dict[str, list[float]] = {name: [] for name in variants}
    for step in variants.values():
        step()  # warm-up; compiles where asked
    rounds, steps = (1, 1) if "--quick" in sys.argv else (ROUNDS, STEPS)
    for _ in range(rounds):
        for name, step in variants.items():
            started = time.perf_counter()
            for _ in range(steps):
                step()
            times[name].append((time.perf_counter() - started) / steps)
    base = float(np.median(times["plain float32"]))
    title = f"training step, batch {BATCH} at {SIDE} px, torch {torch.__version__}, {torch.get_num_threads()} threads"
    print(title)
    rows = {name: {"ms": 1000 * float(np.median(v)), "ratio": base / float(np.median(v))} for name, v in times.items()}
    for name, row in rows.items():
        print(f"{name:<32}{row['ms']:8.1f} ms {row['ratio']:6.2f} x")
    if "--save" in sys.argv:
        path = Path(__file__).parent / "results" / f"{date.today().isoformat()}_training.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"what": title, "machine": platform.machine(), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
