"""Share of raw ONNX Runtime that `POST /v1/predictions` reaches, JPEG in, JSON out, and what a request costs.

    python -m benchmarks.predicting --network cnn3 --seconds 4 --save

A server on SQLite with one generator in a process of its own, and ONNX Runtime alone with the same network, take turns
round by round on the same cores; a figure is the median round. Weights are random: they change no figure here.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.unit_costs import processor_seconds
from ml.calibration.calibrators import Calibration
from ml.calibration.concentration import ConcentrationHead
from ml.calibration.scaling import Scaling
from ml.datasets.cells import CLASSES, simulate_cell
from ml.images.image_quality_features import compute_quality_features, feature_columns
from ml.images.preprocess import Preprocessing
from ml.release.artifact import FAMILIARITY_FILE, read_release, write_release
from ml.release.ood_detector import DetectorInputs, fit_ood_detector
from ml.release.predictor import Predictor
from ml.training.export import to_onnx
from ml.training.networks import build_network
from tests.support.images import encode
from tests.support.process import Installation
from tests.support.tiny_release import write_tiny_release
from tests.support.waiting import wait_until

SIDES = {"cnn3": 28, "compact": 48, "vgg16": 224}
CELLS, CELL_SIDE, JPEG_SIDE = 96, 96, 360
#: Asks again and again over kept connections, by as little work as Python can; prints milliseconds, its own processor
#: time and what else than 200 it was answered.
_GENERATOR = """
import asyncio, json, resource, sys, time
asked = json.loads(sys.argv[1])
request = sys.stdin.buffer.read()
times, others = [], {}
async def client(end):
    reader, writer = await asyncio.open_connection("127.0.0.1", asked["port"])
    while time.perf_counter() < end:
        started = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\\r\\n\\r\\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\\r\\n")[0])
        await reader.readexactly(length)
        times.append(1000 * (time.perf_counter() - started))
        status = head[9:12].decode()
        if status != "200":
            others[status] = others.get(status, 0) + 1
    writer.close()
began = time.perf_counter()
async def main():
    await asyncio.gather(*(client(began + asked["seconds"]) for _ in range(asked["clients"])))
try:
    import uvloop
    uvloop.run(main())
except ImportError:
    asyncio.run(main())
used = resource.getrusage(resource.RUSAGE_SELF)
took = time.perf_counter() - began  # until the last answer, which counts too
print(json.dumps({"times": times, "others": others, "took": took, "seconds": used.ru_utime + used.ru_stime}))
"""
_RAW = """
import json, sys, time
import numpy as np
from ml.release.device import open_session
asked = json.loads(sys.argv[1])
session = open_session(asked["network"], asked["threads"], device="cpu")
inputs = np.zeros((1, 3, asked["side"], asked["side"]), dtype=np.float32)
for _ in range(3):
    session.run(None, {"image": inputs})
times, end = [], time.perf_counter() + asked["seconds"]
while time.perf_counter() < end:
    started = time.perf_counter()
    session.run(None, {"image": inputs})
    times.append(1000 * (time.perf_counter() - started))
print(json.dumps({"times": times}))
"""


def write_network_release(folder: Path, name: str, *, checks: bool) -> Path:
    """A release of an untrained network.

    Args:
        folder: to work in.
        name: of the network.
        checks: whether it judges what images look like, as those that `secondread export` makes do.
    """
    card = read_release(write_tiny_release(folder / "tiny")).card
    side = SIDES[name]
    torch.manual_seed(0)
    network = build_network(name, 3, len(CLASSES)).eval()
    preprocessing = Preprocessing(3, None, side, (0.5,) * 3, (0.25,) * 3)
    calibration = Calibration(Scaling(), ConcentrationHead(np.zeros(network.head.in_features), 1.0))
    files = {"network.onnx": to_onnx(network, torch.randn(2, 3, side, side), ["logits", "features"])}
    card = {**card, "preprocessing": preprocessing.to_dict(), "network": name}
    plain = write_release(folder / "plain", files, calibration, card, "for benchmarks")
    if not checks:
        return plain.path
    predictor = Predictor(plain, 1, device="cpu")
    cells = [Image.fromarray(simulate_cell(number, seed=5, size=CELL_SIDE).pixels) for number in range(CELLS)]
    pixels = predictor.pixels(cells)
    logits, features = predictor.outputs(pixels)
    looks = compute_quality_features(np.stack(pixels))
    known, held_out = (
        DetectorInputs(features[rows], logits[rows], looks[rows]) for rows in (slice(0, None, 2), slice(1, None, 2))
    )
    found = fit_ood_detector(known, held_out, feature_columns(side, 3))
    assert found is not None
    files[FAMILIARITY_FILE] = found.to_bytes()
    return write_release(folder / "release", files, calibration, card, "for benchmarks").path


def request_of(key: str, body: bytes, kind: str) -> bytes:
    """A whole HTTP request."""
    head = f"POST /v1/predictions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n"
    return f"{head}Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def requests(key: str, jpeg: bytes) -> dict[str, bytes]:
    """The same picture as raw body, and as a part of a form."""
    named = b'Content-Disposition: form-data; name="image"; filename="cell.jpg"'
    form = b"--edge\r\n" + named + b"\r\nContent-Type: image/jpeg\r\n\r\n"
    form += jpeg + b"\r\n--edge--\r\n"
    return {
        "raw body": request_of(key, jpeg, "image/jpeg"),
        "multipart": request_of(key, form, "multipart/form-data; boundary=edge"),
    }


def output_of(code: str, asked: dict[str, object], sent: bytes = b"") -> dict[str, object]:
    """What a program of this file prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(asked)], input=sent, stdout=subprocess.PIPE, check=True
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def figures_of(times: list[float], seconds: float) -> dict[str, float]:
    """Requests per second, and milliseconds of one."""
    half, most = np.percentile(times, [50, 99])
    return {"per_second": len(times) / seconds, "p50_ms": float(half), "p99_ms": float(most)}


class Round:
    """One server, measured in turn with ONNX Runtime alone.

    Args:
        port: of the server.
        server: its process.
        release: that it serves.
        seconds: of each measurement.
        threads: of one run of the network, for both.
    """

    def __init__(self, port: int, server: int, release: Path, seconds: float, threads: int) -> None:
        self.port, self.server, self.release, self.seconds, self.threads = port, server, release, seconds, threads
        self.side = read_release(release).preprocessing.size

    def raw(self) -> dict[str, float]:
        """ONNX Runtime alone, one image per run."""
        asked = {"network": str(self.release / "network.onnx"), "side": self.side}
        found = output_of(_RAW, {**asked, "seconds": self.seconds, "threads": self.threads})
        return figures_of(found["times"], self.seconds)  # type: ignore[arg-type]

    def served(self, request: bytes, clients: int) -> dict[str, float]:
        """The service, by so many clients at once."""
        before = processor_seconds(self.server)
        found = output_of(_GENERATOR, {"port": self.port, "clients": clients, "seconds": self.seconds}, request)
        used = processor_seconds(self.server) - before
        times, others, own, took = (found[name] for name in ("times", "others", "seconds", "took"))
        assert isinstance(times, list)
        assert isinstance(others, dict)
        assert isinstance(own, float)
        assert isinstance(took, float)
        figures = figures_of(times, took)
        figures |= {"server_cpu_us": 1e6 * used / len(times), "generator_cpu_us": 1e6 * own / len(times)}
        return figures | {f"answered_{status}": float(number) for status, number in others.items()}

    def memory(self) -> float:
        """Resident megabytes of the server."""
        status = Path(f"/proc/{self.server}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@contextmanager
def served(
    folder: Path, release: Path, threads: int, **settings: str
) -> Iterator[tuple[Installation, "subprocess.Popen[bytes]", str]]:
    """A server that was started as anybody starts it, and a key to ask it.

    Args:
        folder: to work in.
        release: that it serves.
        threads: of one run of the network.
        settings: further settings, by their names in lower case.
    """
    with Installation(folder / "home") as made:
        made.environment |= {
            "SECONDREAD_WORKER": "false",
            "SECONDREAD_RATE_LIMIT": "0",
            "SECONDREAD_INFERENCE_THREADS": str(threads),
            **{f"SECONDREAD_{name.upper()}": value for name, value in settings.items()},
        }
        keys = made.prepare(release, viewer="viewer")
        command = [sys.executable, "-c", "from app.cli.main import main; main()", "serve"]
        server = subprocess.Popen(command, env=made.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: is_ready(made), 60, "the server is ready")
            yield made, server, keys["viewer"]
        finally:
            server.terminate()
            server.wait()


def is_ready(made: Installation) -> bool:
    """Whether the server answers."""
    try:
        with urllib.request.urlopen(f"{made.address}/readyz", timeout=5):
            return True
    except OSError:
        return False


def median_of(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Each figure's median."""
    names = dict.fromkeys(name for figures in rounds for name in figures)
    return {name: statistics.median(figures.get(name, 0.0) for figures in rounds) for name in names}


def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Figures by what was measured."""
    release = write_network_release(folder, arguments.network, checks=arguments.checks)
    jpeg = encode(simulate_cell(0, seed=5, size=JPEG_SIDE).pixels, "JPEG", quality=90)
    found: dict[str, list[dict[str, float]]] = {}
    with served(folder, release, arguments.threads) as (made, server, key):
        turn = Round(made.port, server.pid, release, arguments.seconds, arguments.threads)
        for request in requests(key, jpeg).values():
            turn.served(request, 8)
        for _ in range(arguments.rounds):
            raw = turn.raw()
            found.setdefault("ONNX Runtime alone", []).append(raw)
            for kind, request in requests(key, jpeg).items():
                for clients in arguments.clients:
                    figures = turn.served(request, clients)
                    figures["of_raw"] = figures["per_second"] / raw["per_second"]
                    figures["p99_of_p50"] = figures["p99_ms"] / figures["p50_ms"]
                    figures["p50_of_raw"] = figures["p50_ms"] / raw["p50_ms"]
                    found.setdefault(f"{kind}, {clients} clients", []).append(figures | {"memory_mb": turn.memory()})
    return {name: median_of(rounds) for name, rounds in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=sorted(SIDES), default="cnn3")
    parser.add_argument("--checks", action="store_true", help="a release that judges what images look like")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="of one run of the network, 0 for all cores")
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), arguments)
    for name, figures in found.items():
        print(f"{name}: " + ", ".join(f"{key} {value:.3g}" for key, value in figures.items()))
    if arguments.save:
        name = f"{arguments.network}{'-checks' if arguments.checks else ''}"
        path = Path(__file__).parent / "results" / f"{date.today().isoformat()}_predicting_{name}.json"
        path.write_text(json.dumps({"machine": f"2 cores, {platform.machine()}", "figures": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
