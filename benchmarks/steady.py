"""Memory of a server through ten thousand uploads and as many predictions.

    python -m benchmarks.steady --save

One server on SQLite without a worker; some clients store a cell and predict it, again and again, each a picture that
was never sent before. Memory is resident size, looked at a hundred times. What counts is its median in the last tenth
next to that after the first tenth, when everything has been loaded and each thread has its buffers.
"""

import itertools
import statistics
import tempfile
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
from rich.progress import Progress

from benchmarks.harness import DEMO, Figures, main
from benchmarks.pictures import numbered_png
from tests.support.process import Installation

SIDE, CLIENTS, LOOKS = 96, 4, 100


def resident_mb(pid: int) -> float:
    """Resident megabytes of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def measure(quick: bool) -> Figures:
    """Memory through so many uploads and as many predictions.

    Raises:
        httpx2.HTTPStatusError: one of them was refused.
    """
    n = 60 if quick else 10_000
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
                    image = {"image": ("cell.png", numbered_png(number, SIDE))}
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
    return figures | {"uploads and predictions, each": n, "resident (MB)": [round(mb, 1) for mb in seen]}


if __name__ == "__main__":
    main(__doc__, {"steady": measure})
