"""Memory of a server through ten thousand uploads and as many predictions.

    python -m benchmarks.steady --save

One server on SQLite without a worker; some clients store a cell and predict it, again and again, each a picture that
nobody has seen. Memory is resident size, looked at a hundred times. What counts is its median in the last tenth next to
that after the first tenth, when everything has been loaded and each thread has its buffers.
"""

import argparse
import io
import itertools
import json
import os
import platform
import statistics
import tempfile
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import httpx2
import numpy as np
from PIL import Image
from rich.progress import Progress

from tests.support.images import encode
from tests.support.process import Installation
from tests.support.service import cell_png

DEMO = Path(__file__).parents[1] / "app" / "demo" / "cells" / "release"
SIDE, CLIENTS, LOOKS = 96, 4, 100
GOAL = 1.05


def resident_mb(pid: int) -> float:
    """Resident megabytes of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def measure(n: int) -> dict[str, object]:
    """Memory through n uploads and n predictions.

    Raises:
        httpx2.HTTPStatusError: one of them was refused.
    """
    cell = np.array(Image.open(io.BytesIO(cell_png(0, SIDE))))
    numbers, every, lock = itertools.count(), max(1, n // LOOKS), threading.Lock()
    seen: list[float] = []
    with tempfile.TemporaryDirectory() as folder, Installation(Path(folder) / "home") as made, Progress() as bar:
        made.environment |= {"SECONDREAD_RATE_LIMIT": "0", "SECONDREAD_WORKER": "false"}
        key = made.prepare(DEMO, admin="admin")["admin"]
        made.start()
        pid, task = made.processes[0].pid, bar.add_task("uploads and predictions", total=n)

        def work(_: int) -> None:
            with httpx2.Client(timeout=60, headers={"Authorization": f"Bearer {key}"}) as client:
                while (number := next(numbers)) < n:
                    pixels = cell.copy()
                    pixels[0, :2] = np.frombuffer(number.to_bytes(6, "big"), np.uint8).reshape(2, 3)
                    image = {"image": ("cell.png", encode(pixels, compress_level=1))}
                    fields = {"external_id": f"cell {number}", "patient": f"patient {number // 4}"}
                    once = {"Idempotency-Key": uuid.uuid4().hex}
                    client.post(f"{made.address}/v1/cases", files=image, data=fields, headers=once).raise_for_status()
                    client.post(f"{made.address}/v1/predictions", files=image).raise_for_status()
                    with lock:
                        bar.advance(task)
                        if number % every == every - 1:
                            seen.append(resident_mb(pid))

        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(work, range(CLIENTS)))
    tenth = max(1, len(seen) // 10)
    first, last = statistics.median(seen[tenth : 2 * tenth]), statistics.median(seen[-tenth:])
    figures = {"after the first tenth (MB)": first, "in the last tenth (MB)": last, "ratio": last / first}
    return {"uploads and predictions, each": n, "figures": figures, "resident (MB)": [round(mb, 1) for mb in seen]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=10_000, help="uploads, and as many predictions")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/DATE_steady.json")
    options = parser.parse_args()
    found = measure(options.n)
    print(found["figures"], f"goal: ratio at most {GOAL}")
    if options.save:
        machine = f"{os.cpu_count()} cores, {platform.machine()}"
        path = Path(__file__).parent / "results" / f"{date.today()}_steady.json"
        path.write_text(json.dumps({"machine": machine} | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
