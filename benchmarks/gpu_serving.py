"""``POST /v1/predictions`` on a GPU beside ONNX Runtime alone with the same network, options and buffers.

Many clients ask at once, each again as soon as it has its answer; whoever finds the network free takes along what
waits. ONNX Runtime alone runs whole batches through bound buffers, one after another: nothing that decodes, checks or
answers can be faster. Both take turns, and a figure is the median round.
"""

import secrets
import statistics
import urllib.request
from pathlib import Path

from benchmarks.predicting import JPEG_SIDE, Round, figures_of, output_of, requests, served, write_network_release
from ml.datasets.cells import simulate_cell
from ml.release.predictor import BATCH
from tests.support.images import encode

_RAW = """
import json, sys, time
import numpy as np
from ml.release.device import open_session
from ml.release.padded_runs import PaddedRuns
asked = json.loads(sys.argv[1])
run = PaddedRuns(open_session(asked["network"], 0, device=asked["device"]), asked["device"])
inputs = np.zeros((asked["batch"], 3, asked["side"], asked["side"]), dtype=np.float32)
for _ in range(3):
    run(inputs)
times, end = [], time.perf_counter() + asked["seconds"]
while time.perf_counter() < end:
    started = time.perf_counter()
    run(inputs)
    times.append(1000 * (time.perf_counter() - started))
print(json.dumps({"times": times}))
"""

#: What the server is told to take for its statistics; it lives as long as the measurement.
_TOKEN = secrets.token_urlsafe(32)


def measure(
    folder: Path, *, device: str, network: str, clients: int, seconds: float, rounds: int
) -> dict[str, dict[str, float]]:
    """Figures of ONNX Runtime alone and of the service.

    Args:
        folder: to work in.
        device: ``cuda`` or ``cpu``.
        network: its name.
        clients: that ask at once.
        seconds: of each measurement.
        rounds: of which medians are given.
    """
    release = write_network_release(folder, network, checks=False)
    jpeg = encode(simulate_cell(0, seed=5, size=JPEG_SIDE).pixels, "JPEG", quality=90)
    batch = BATCH if device == "cuda" else 1  # as the service does
    found: dict[str, list[dict[str, float]]] = {"ONNX Runtime alone": [], "service": []}
    # one key asks for everybody
    settings = {"device": device, "inference_queue": str(2 * clients), "requests_at_once": str(2 * clients)}
    settings["metrics_token"] = _TOKEN
    with served(folder, release, 0, **settings) as (made, server, key):
        turn = Round(made.port, server.pid, release, seconds, 0)
        request = requests(key, jpeg)["raw body"]
        turn.served(request, clients)
        for _ in range(rounds):
            asked = {"network": str(release / "network.onnx"), "side": turn.side, "device": device, "batch": batch}
            raw = figures_of(output_of(_RAW, {**asked, "seconds": seconds})["times"], seconds)
            raw["images_per_second"] = batch * raw["per_second"]
            figures = turn.served(request, clients)
            figures["of_raw"] = figures["per_second"] / raw["images_per_second"]
            found["ONNX Runtime alone"].append(raw)
            found["service"].append(figures)
        together = _images_per_run(made.address)
    medians = {
        name: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for name, rows in found.items()
    }
    medians["service"]["images_per_run"] = together
    return medians


def _images_per_run(address: str) -> float:
    """How many images went together, on average, since the server started."""
    request = urllib.request.Request(f"{address}/metrics", headers={"Authorization": f"Bearer {_TOKEN}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        lines = [line.split() for line in answer.read().decode().splitlines()]
    values = {line[0]: float(line[1]) for line in lines if line and line[0].startswith("secondread_batch_size_")}
    return values["secondread_batch_size_sum"] / values["secondread_batch_size_count"]
