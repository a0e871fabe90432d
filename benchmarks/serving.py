"""``POST /v1/predictions`` beside ONNX Runtime alone, plain FastAPI and LitServe, with the same network and image.

    python -m benchmarks.serving --save

Small: the demo's network by one process and by one per core, beside the peers, and what storing a cell takes. VGG16:
random weights, by one process. Servers take turns, each with as many threads of the network as there are cores; the
clients are threads of a process whose processor time is counted apart. «raw» is ONNX Runtime in a loop: nothing that
decodes, checks or answers can be faster. The peers live in ``build/peers``, which the first full run installs; they
store nothing, have no accounts, and answer class probabilities only.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
from rich.progress import Progress

from benchmarks.harness import CORES, DEMO, ROOT, Figures, in_turn, main, medians, processor_seconds, shared_mb
from benchmarks.pictures import cell_jpeg, numbered_jpeg
from ml.release.artifact import read_release
from tests.support.process import Installation, free_port

PEERS = ROOT / "benchmarks" / "peers"
ENVIRONMENT = ROOT / "build" / "peers"
PACKAGES = ("litserve==0.2.19", "fastapi", "uvicorn[standard]", "python-multipart", "onnxruntime", "numpy", "pillow")
CLIENTS = (1, 8, 32)
STORED = 100
#: The names of servers with a process per core end in this.
PER_CORE = ", a process per core"
_CLIENT = """
import http.client, json, sys, threading, time
asked = json.loads(sys.argv[1])
body = open(asked["body"], "rb").read()
seen, lock = [], threading.Lock()
def ask(end):
    connection = http.client.HTTPConnection("127.0.0.1", asked["port"], timeout=60)
    own = []
    while (began := time.perf_counter()) < end:
        connection.request("POST", asked["path"], body, asked["headers"])
        answer = connection.getresponse()
        answer.read()
        own.append((answer.status, time.perf_counter() - began))
    connection.close()
    with lock:
        seen.extend(own)
began = time.perf_counter()
threads = [threading.Thread(target=ask, args=(began + asked["seconds"],)) for _ in range(asked["clients"])]
for thread in threads: thread.start()
for thread in threads: thread.join()
times = time.process_time()
print(json.dumps({"answers": seen, "seconds": time.perf_counter() - began, "processor": times}))
"""
_RAW = """
import json, sys, time
sys.path.insert(0, sys.argv[2])
import numpy as np
from work import Work
work = Work(sys.argv[1])
inputs = work.inputs(open(sys.argv[3], "rb").read())
for line in sys.stdin:
    end, n = time.perf_counter() + float(line), 0
    while time.perf_counter() < end:
        work.session.run(None, {work.name: inputs})
        n += 1
    print(n, flush=True)
"""


@dataclass(frozen=True)
class Server:
    """A server that runs, and how it is asked.

    Attributes:
        pid: of its first process.
        port: where it listens.
        path: that is asked.
        headers: of each request.
        body: file with the body of each request.
    """

    pid: int
    port: int
    path: str
    headers: dict[str, str]
    body: Path


@dataclass(frozen=True)
class Window:
    """Answers of a server per second, processor time of each, and the times of single requests."""

    rate: float
    processor_ms: float
    generator_ms: float
    middle: float
    tail: float


def multipart(data: bytes) -> tuple[str, bytes]:
    """Content type and body of a form with one file."""
    head = b'--cell\r\nContent-Disposition: form-data; name="image"; filename="cell.jpg"\r\n'
    body = head + b"Content-Type: image/jpeg\r\n\r\n" + data + b"\r\n--cell--\r\n"
    return "multipart/form-data; boundary=cell", body


def make_environment() -> Path:
    """Python of the peers' environment, made at the first call.

    Raises:
        SystemExit: packages cannot be installed.
    """
    python = ENVIRONMENT / "bin" / "python"
    stamp = ENVIRONMENT / "installed.txt"
    if not stamp.exists() or stamp.read_text() != " ".join(PACKAGES):
        print("installing the peers into build/peers", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        install += ["-c", str(ROOT / "constraints.txt"), *PACKAGES]
        done = subprocess.run(install, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"the peers cannot be installed: {done.stderr.strip().splitlines()[-1]}")
        stamp.write_text(" ".join(PACKAGES))
    return python


def write_spec(release: Path, path: Path) -> None:
    """Write what peers need of a release."""
    card = read_release(release).card
    preprocessing, codes = card["preprocessing"], [entry["code"] for entry in card["classes"]]
    spec = {name: preprocessing[name] for name in ("size", "mean", "std")}
    spec |= {"network": str((release / "network.onnx").resolve()), "classes": codes, "threads": CORES}
    path.write_text(json.dumps(spec | {"crop": preprocessing.get("crop") or 360}))


def answering(server: Server) -> None:
    """Wait until a server gives an answer to what it will be asked.

    Raises:
        RuntimeError: it does not.
    """
    deadline = time.monotonic() + 120
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}{server.path}", server.body.read_bytes(), server.headers
    )
    why = ""
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(request, timeout=60):
                return
        except urllib.error.HTTPError as exc:
            why = exc.read().decode(errors="replace")[:500]
        except OSError as exc:
            why = str(exc)
        time.sleep(0.2)
    raise RuntimeError(f"no answer from {server.path} on port {server.port}: {why}")


@contextmanager
def peer(python: Path, script: str, spec: Path, body: Path, kind: str) -> Iterator[Server]:
    """A peer that runs until the end of the block."""
    port = free_port()
    command = [str(python), str(PEERS / script), str(spec), str(port)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet, start_new_session=True) as process:
        try:
            server = Server(process.pid, port, "/predict", {"Content-Type": kind}, body)
            answering(server)
            yield server
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # LitServe's workers too


@contextmanager
def installation(release: Path, folder: Path, processes: int = 1) -> Iterator[tuple[Installation, str]]:
    """The server that ``secondread serve`` starts, without a worker, and a key of an administrator."""
    with Installation(folder / f"{processes}" / "home") as made:
        made.environment |= {"SECONDREAD_RATE_LIMIT": "0", "SECONDREAD_WORKER": "false"}
        made.environment |= {"SECONDREAD_PROCESSES": str(processes)}
        key = made.prepare(release, client="admin")["client"]
        made.start()
        yield made, key


def servers_of(made: Installation, key: str, bodies: dict[str, tuple[str, Path]], ending: str) -> dict[str, Server]:
    """The ways in which a server can be asked for a prediction, each by its name."""
    servers = {}
    for name, (kind, body) in bodies.items():
        headers = {"Content-Type": kind, "Authorization": f"Bearer {key}"}
        servers[f"{name}{ending}"] = Server(made.processes[0].pid, made.port, "/v1/predictions", headers, body)
    for server in servers.values():
        answering(server)
    return servers


def ask(server: Server, clients: int, seconds: float) -> Window:
    """Let some clients ask a server, each again as soon as it has its answer.

    Raises:
        RuntimeError: an answer was none.
    """
    asked = {"port": server.port, "path": server.path, "headers": server.headers, "body": str(server.body)}
    command = [sys.executable, "-c", _CLIENT, json.dumps(asked | {"clients": clients, "seconds": seconds})]
    before = processor_seconds(server.pid)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    processor = processor_seconds(server.pid) - before
    report = json.loads(done.stdout)
    answers = report["answers"]
    refused = [status for status, _ in answers if status != 200]
    if refused:
        raise RuntimeError(f"{len(refused)} of {len(answers)} requests were refused, the first with {refused[0]}")
    times = sorted(took for _, took in answers)
    return Window(
        rate=len(answers) / report["seconds"],
        processor_ms=1000 * processor / len(answers),
        generator_ms=1000 * report["processor"] / len(answers),
        middle=1000 * statistics.median(times),
        tail=1000 * times[min(len(times) - 1, int(0.99 * len(times)))],
    )


@contextmanager
def raw_runtime(python: Path, spec: Path, image: Path) -> Iterator[Callable[[float], float]]:
    """Runs per second of ONNX Runtime in a loop, for some seconds."""
    command = [str(python), "-c", _RAW, str(spec), str(PEERS), str(image)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def rate(seconds: float) -> float:
            stdin.write(f"{seconds}\n")
            stdin.flush()
            return int(stdout.readline()) / seconds

        try:
            yield rate
        finally:
            stdin.close()


def measure(release: Path, rounds: int, seconds: float, *, peers: bool, per_core: bool) -> Figures:
    """Medians over rounds of every server and number of clients.

    Args:
        release: what all of them serve.
        rounds: of which each has every server in turn.
        seconds: of each measurement.
        peers: whether others are measured too, in an environment that is made for them.
        per_core: whether a server with a process per core is measured too.
    """
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, python = Path(name), make_environment() if peers else Path(sys.executable)
        image, form, spec = folder / "cell.jpg", folder / "form", folder / "spec.json"
        image.write_bytes(cell_jpeg())
        kind, body = multipart(image.read_bytes())
        form.write_bytes(body)
        write_spec(release, spec)
        raw = stack.enter_context(raw_runtime(python, spec, image))
        bodies = {"raw body": ("image/jpeg", image), "multipart": (kind, form)}
        servers, storing = {}, {}
        for processes, ending in ((1, ""), (CORES, PER_CORE))[: 2 if per_core else 1]:
            made, key = stack.enter_context(installation(release, folder, processes))
            servers |= servers_of(made, key, bodies, ending)
            storing = storing or store_cells(made, key, STORED if rounds > 1 else 5)
        scripts = {"plain FastAPI": "plain_fastapi.py", "LitServe": "lit_serve.py"} if peers else {}
        for peer_name, script in scripts.items():
            servers[peer_name] = stack.enter_context(peer(python, script, spec, form, kind))
        raw_rates, seen = _rounds(servers, raw, rounds, seconds)
        memory = {name: shared_mb(server.pid) for name, server in servers.items()}
    by_name = _summary(seen)
    storing["of predicting it"] = storing["server ms"] / by_name["raw body"]["1"]["server ms"]
    return {"raw": statistics.median(raw_rates), "memory_mb": memory, "servers": by_name, "storing": storing}


Seen = dict[str, dict[int, list[tuple[Window, float]]]]


def _rounds(
    servers: dict[str, Server], raw: Callable[[float], float], rounds: int, seconds: float
) -> tuple[list[float], Seen]:
    """Rates of ONNX Runtime alone, and the windows of each server, each with the rate before it."""
    rates, seen = [], {name: {n: [] for n in CLIENTS} for name in servers}
    for server in servers.values():
        ask(server, 2, min(1.0, seconds))
    with Progress(transient=True) as bar:
        task = bar.add_task("serving", total=rounds * len(CLIENTS) * len(servers))
        for order in in_turn(list(servers), rounds):
            for n in CLIENTS:
                rates.append(raw(seconds))
                for name in order:
                    seen[name][n].append((ask(servers[name], n, seconds), rates[-1]))
                    bar.advance(task)
    return rates, seen


def store_cells(made: Installation, key: str, n: int) -> dict[str, float]:
    """Processor time of storing a JPEG as a case, and the bytes of images that it leaves per byte sent."""
    sent, spent = 0, 0.0
    with httpx2.Client(base_url=made.address, headers={"Authorization": f"Bearer {key}"}, timeout=60) as client:
        for number in range(n):
            jpeg = numbered_jpeg(number)
            fields = {"external_id": f"stored {number}", "patient": f"patient {number}"}
            files = {"image": ("cell.jpg", jpeg)}
            before = processor_seconds(made.processes[0].pid)
            once = {"Idempotency-Key": uuid.uuid4().hex}
            client.post("/v1/cases", files=files, data=fields, headers=once).raise_for_status()
            if number:  # the first one pays for what is loaded
                spent += processor_seconds(made.processes[0].pid) - before
            sent += len(jpeg)
    kept = sum(path.stat().st_size for path in (made.home / "images").rglob("*") if path.is_file())
    return {"server ms": 1000 * spent / (n - 1), "bytes kept per byte sent": kept / sent}


def _summary(seen: Seen) -> Figures:
    """Medians over rounds; ``of raw`` and ``of LitServe`` compare within a round."""
    figures: Figures = {}
    for name, by_clients in seen.items():
        for n, windows in by_clients.items():
            litserve: Sequence[tuple[Window, float]] = seen.get("LitServe", {}).get(n, [])
            rows = [
                {
                    "per second": window.rate,
                    "of raw": window.rate / raw,
                    "p50 ms": window.middle,
                    "p99 ms": window.tail,
                    "p99 of p50": window.tail / window.middle,
                    "server ms": window.processor_ms,
                    "generator ms": window.generator_ms,
                }
                for window, raw in windows
            ]
            for row, (window, _), (other, _) in zip(rows, windows, litserve, strict=False):
                row["of LitServe"] = window.rate / other.rate
            figures.setdefault(name, {})[str(n)] = medians(rows)
    return figures


def small(quick: bool) -> Figures:
    """The demo's network, beside the peers."""
    rounds, seconds = (1, 0.4) if quick else (5, 3.0)
    return measure(DEMO, rounds, seconds, peers=not quick, per_core=True)


def vgg16(quick: bool) -> Figures:
    """VGG16 by one process."""
    from benchmarks.networks import vgg_graph, write_network_release  # PyTorch, which no server should hold

    rounds, seconds = (1, 0.4) if quick else (5, 4.0)
    with tempfile.TemporaryDirectory() as folder:
        release = write_network_release(Path(folder), *vgg_graph(), "vgg16")
        return measure(release.path, rounds, seconds, peers=False, per_core=False)


if __name__ == "__main__":
    main(__doc__, {"serving": small, "serving_vgg16": vgg16})
