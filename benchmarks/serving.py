"""``POST /v1/predictions`` beside ONNX Runtime alone, plain FastAPI and LitServe, with the same network and image.

    python -m benchmarks.serving app/demo/cells/release --save

Every server has as many threads of the network as there are cores and answers 1, 8 and 32 clients in turn, all of them
in each round, each round beginning with another one. Clients are threads of a process of their own, whose processor
time is counted apart; the image is a JPEG of 360 × 363 pixels. «raw» is ONNX Runtime in a loop: nothing that decodes,
checks or answers can be faster. The peers live in an environment that the benchmark makes (``build/peers``); they store
nothing, ask nobody who they are, and say class probabilities only.
"""

import argparse
import io
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.progress import Progress

from benchmarks.unit_costs import processor_seconds
from ml.release.artifact import read_release
from tests.support.process import Installation, free_port

ROOT = Path(__file__).parents[1]
PEERS = ROOT / "benchmarks" / "peers"
ENVIRONMENT = ROOT / "build" / "peers"
PACKAGES = ("litserve==0.2.19", "fastapi", "uvicorn[standard]", "python-multipart", "onnxruntime", "numpy", "pillow")
CORES = len(os.sched_getaffinity(0))
CLIENTS = (1, 8, 32)
#: What the names of servers end in that have a process per core.
PER_CORE = ", a process per core"
GOALS = {"raw body": 0.34, "multipart": 0.28}
GOAL_LITSERVE, GOAL_TAIL = 1.6, 3.0
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
    """What a server did in a while: answers, its processor time, and the times of single requests."""

    rate: float
    processor_ms: float
    generator_ms: float
    middle: float
    tail: float


def cell_jpeg() -> bytes:
    """A JPEG of about 27 KB, as microscopes give them."""
    noise = np.random.default_rng(0).normal(size=(46, 46, 3))
    smooth = Image.fromarray(np.clip(150 + 60 * noise, 0, 255).astype(np.uint8)).resize(
        (360, 363), Image.Resampling.BICUBIC
    )
    grain = np.random.default_rng(1).normal(scale=9, size=(363, 360, 3))
    out = io.BytesIO()
    Image.fromarray(np.clip(np.asarray(smooth) + grain, 0, 255).astype(np.uint8)).save(out, "JPEG", quality=88)
    return out.getvalue()


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
    """What peers need to know of a release."""
    found = read_release(release)
    preprocessing = found.card["preprocessing"]
    codes = [entry["code"] for entry in found.card["classes"]]
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
def secondread(
    release: Path, folder: Path, bodies: dict[str, tuple[str, Path]], processes: int = 1
) -> Iterator[dict[str, Server]]:
    """The server that ``secondread serve`` starts, with a key that may predict and no worker beside it."""
    with Installation(folder / f"{processes}" / "home") as made:
        made.environment |= {"SECONDREAD_RATE_LIMIT": "0", "SECONDREAD_WORKER": "false"}
        made.environment |= {"SECONDREAD_PROCESSES": str(processes)}
        key = made.prepare(release, client="service")["client"]
        made.start()
        servers = {
            name: Server(
                made.processes[0].pid,
                made.port,
                "/v1/predictions",
                {"Content-Type": kind, "Authorization": f"Bearer {key}"},
                body,
            )
            for name, (kind, body) in bodies.items()
        }
        for server in servers.values():
            answering(server)
        yield servers


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
    told = json.loads(done.stdout)
    answers = told["answers"]
    refused = [status for status, _ in answers if status != 200]
    if refused:
        raise RuntimeError(f"{len(refused)} of {len(answers)} requests were refused, the first with {refused[0]}")
    times = sorted(took for _, took in answers)
    return Window(
        rate=len(answers) / told["seconds"],
        processor_ms=1000 * processor / len(answers),
        generator_ms=1000 * told["processor"] / len(answers),
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


def measure(release: Path, rounds: int, seconds: float, *, peers: bool = True) -> dict[str, Any]:
    """Medians over rounds of every server and number of clients.

    Args:
        release: what all of them serve.
        rounds: of which each has every server in turn.
        seconds: of each measurement.
        peers: whether others are measured too, in an environment that is made for them.
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
        servers = stack.enter_context(secondread(release, folder, bodies))
        per_core = {f"{name}{PER_CORE}": body for name, body in bodies.items()}
        servers |= stack.enter_context(secondread(release, folder, per_core, CORES))
        scripts = {"plain FastAPI": "plain_fastapi.py", "LitServe": "lit_serve.py"} if peers else {}
        for peer_name, script in scripts.items():
            servers[peer_name] = stack.enter_context(peer(python, script, spec, form, kind))
        raw_rates, seen = [], {name: {n: [] for n in CLIENTS} for name in servers}
        names = list(servers)
        for server in servers.values():
            ask(server, 2, min(1.0, seconds))
        with Progress(transient=True) as bar:
            task = bar.add_task("serving", total=rounds * len(CLIENTS) * (len(names) + 1))
            for number in range(rounds):
                for n in CLIENTS:
                    raw_rates.append(raw(seconds))
                    bar.advance(task)
                    at = number % len(names)
                    for name in [*names[at:], *names[:at]]:
                        seen[name][n].append((ask(servers[name], n, seconds), raw_rates[-1]))
                        bar.advance(task)
        memory = {name: memory_mb(server.pid) for name, server in servers.items()}
    return {"raw": statistics.median(raw_rates), "memory_mb": memory, "servers": _summary(seen)}


def memory_mb(pid: int) -> float:
    """Proportional share of memory of a process and its children, MB."""
    own = next(line for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = {int(child) for task in tasks for child in task.read_text().split()}
    return int(own.split()[1]) / 1000 + sum(map(memory_mb, children))


def _summary(seen: dict[str, dict[int, list[tuple[Window, float]]]]) -> dict[str, Any]:
    """Medians over rounds; ``of raw`` and ``of LitServe`` compare within a round."""
    found: dict[str, Any] = {}
    for name, by_clients in seen.items():
        for n, windows in by_clients.items():
            litserve = seen.get("LitServe", {n: []})[n]  # not there without peers
            figures = {
                "per second": [window.rate for window, _ in windows],
                "of raw": [window.rate / raw for window, raw in windows],
                "of LitServe": [one.rate / other.rate for (one, _), (other, _) in zip(windows, litserve, strict=False)],
                "p50 ms": [window.middle for window, _ in windows],
                "p99 ms": [window.tail for window, _ in windows],
                "p99 of p50": [window.tail / window.middle for window, _ in windows],
                "server ms": [window.processor_ms for window, _ in windows],
                "generator ms": [window.generator_ms for window, _ in windows],
            }
            medians = {what: statistics.median(values) for what, values in figures.items() if values}
            found.setdefault(name, {})[str(n)] = medians
    return found


def show(figures: dict[str, Any]) -> None:
    """Print the table."""
    print(f"ONNX Runtime alone: {figures['raw']:.0f} runs per second on {CORES} cores\n")
    heads = ("per second", "of raw", "of LitServe", "p50 ms", "p99 ms", "p99 of p50", "server ms", "generator ms")
    print(f"{'server':32}{'clients':>8}" + "".join(f"{head:>13}" for head in heads))
    for name, by_clients in figures["servers"].items():
        for n, row in by_clients.items():
            print(f"{name:32}{n:>8}" + "".join(f"{row.get(head, math.nan):>13.2f}" for head in heads))
    print("\nmemory, MB: " + ", ".join(f"{name} {mb:.0f}" for name, mb in figures["memory_mb"].items()))
    goals = ", ".join(f"{name} {goal} of raw" for name, goal in GOALS.items())
    print(f"goals: {goals}; {GOAL_LITSERVE} of LitServe; p99 at most {GOAL_TAIL:.0f} of p50")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", type=Path, nargs="?", default=ROOT / "app/demo/cells/release")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--no-peers", action="store_true", help="secondread and ONNX Runtime alone, nothing installed")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/DATE_serving.json")
    options = parser.parse_args()
    if options.save and options.no_peers:
        parser.error("results are kept with their peers: leave --no-peers out")
    figures = measure(options.release, options.rounds, options.seconds, peers=not options.no_peers)
    show(figures)
    if options.save:
        machine = f"{CORES} cores, {platform.machine()}"
        document = {"machine": machine, "rounds": options.rounds, "seconds": options.seconds} | figures
        out = ROOT / "benchmarks" / "results" / f"{date.today()}_serving.json"
        out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
