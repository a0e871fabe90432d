"""The next case and its label by one annotator, beside Label Studio: each on SQLite, as it starts by itself.

    python -m benchmarks.label_studio --save

Label Studio is installed into an environment of its own (``build/label_studio``, a gigabyte) and serves 900 images with
a choice of classes; its annotator asks for the next task and stores an annotation, that of secondread leases a read and
labels it, by one connection without pause, in turns, on the same cores. Label Studio takes the development server of
its framework, which is what its own command starts, and knows neither blind reads nor a chain of audit events;
secondread predicts nothing here, since both have their cases already. There is one annotator, since eight connections
of one account are answered "database is locked" by Label Studio on SQLite.
"""

import argparse
import http.client
import json
import os
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from rich.progress import Progress

from benchmarks.labels import CASES, Reader, fill
from tests.support.process import Installation, free_port
from tests.support.tiny_release import write_tiny_release
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[1]
ENVIRONMENT, VERSION = ROOT / "build" / "label_studio", "1.23.2"
ROUNDS, SECONDS, START_SECONDS = 3, 1.2, 180  # in which nobody comes to the last case
CLASSES = ("basophil", "blast", "lymphocyte")
_VIEW = "<View><Image name='image' value='$image'/><Choices name='cell' toName='image'>{}</Choices></View>"


class Studio:
    """An annotator of Label Studio with a connection of their own.

    Args:
        port: of the server.
        token: of the account.
        project: whose tasks they label.
    """

    def __init__(self, port: int, token: str, project: int = 0) -> None:
        self.project = project
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._headers = {"Authorization": f"Token {token}", "Content-Type": "application/json"}

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """The answer of a request.

        Raises:
            RuntimeError: it was refused.
        """
        sent = None if body is None else json.dumps(body)
        try:
            self._connection.request(method, path, sent, self._headers)
            answer = self._connection.getresponse()
        except ConnectionError:  # the server ends connections that rest, as between two rounds
            self._connection.close()
            self._connection.request(method, path, sent, self._headers)
            answer = self._connection.getresponse()
        content = answer.read()
        if answer.status not in {200, 201}:
            raise RuntimeError(f"{path}: {answer.status} {content[:200].decode()}")
        return json.loads(content)

    def label(self) -> None:
        """Ask for the next task and store an annotation."""
        task = self.ask("GET", f"/api/projects/{self.project}/next")
        value = {"choices": [CLASSES[task["id"] % len(CLASSES)]]}
        result = {"from_name": "cell", "to_name": "image", "type": "choices", "value": value}
        self.ask("POST", f"/api/tasks/{task['id']}/annotations/", {"result": [result], "lead_time": 1.0})


def make_environment() -> Path:
    """The command of Label Studio, installed at the first call.

    Raises:
        SystemExit: it cannot be installed.
    """
    command = ENVIRONMENT / "bin" / "label-studio"
    if not command.exists():
        print("installing Label Studio into build/label_studio", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
        install = [ENVIRONMENT / "bin" / "python", "-m", "pip", "install", "--quiet", f"label-studio=={VERSION}"]
        done = subprocess.run(install, check=False, capture_output=True, text=True)
        if done.returncode:
            shutil.rmtree(ENVIRONMENT)
            raise SystemExit(f"Label Studio cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return command


@contextmanager
def studio(folder: Path) -> Iterator[Studio]:
    """An annotator, and a server with images that nobody has labelled."""
    port, token = free_port(), secrets.token_hex(20)
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    environment = {**kept, "HOME": str(folder), "LABEL_STUDIO_BASE_DATA_DIR": str(folder / "data")}
    environment |= {"COLLECT_ANALYTICS": "0", "LATEST_VERSION_CHECK": "0", "SENTRY_DSN": "", "FRONTEND_SENTRY_DSN": ""}
    command = [str(make_environment()), "start", "--no-browser", "--port", str(port), "--internal-host", "127.0.0.1"]
    command += ["--username", "benchmark@example.org", "--password", token, "--user-token", token]
    log = folder / "label_studio.log"
    with log.open("wb") as stream:
        server = subprocess.Popen(
            [*command, "--enable-legacy-api-token"],
            env=environment,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    try:
        wait_until(lambda: _answers(port, token), START_SECONDS, log.read_text)
        view = _VIEW.format("".join(f"<Choice value='{name}'/>" for name in CLASSES))
        asking = Studio(port, token)
        project = asking.ask("POST", "/api/projects/", {"title": "cells", "label_config": view})["id"]
        images = [{"image": f"http://127.0.0.1/{number}.png"} for number in range(CASES)]
        asking.ask("POST", f"/api/projects/{project}/import", images)
        yield Studio(port, token, project)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def _answers(port: int, token: str) -> bool:
    try:
        return Studio(port, token).ask("GET", "/api/projects/") is not None
    except (OSError, RuntimeError):
        return False


def rate(label: Callable[[], object], seconds: float) -> float:
    """Labels per second of one after the other."""
    begun, n_labels = time.perf_counter(), 0
    while time.perf_counter() < begun + seconds:
        label()
        n_labels += 1
    return n_labels / (time.perf_counter() - begun)


def measure(folder: Path, bar: Progress, rounds: int, seconds: float) -> dict[str, float]:
    """Labels per second of both, in turns, after one that pays for what only the first one costs."""
    with Installation(folder / "home") as made, studio(folder) as annotator:
        made.environment |= {"SECONDREAD_RATE_LIMIT": "0", "SECONDREAD_MIN_FREE_BYTES": "0"}
        keys = made.prepare(write_tiny_release(folder / "release"), admin="admin", annotator="annotator")
        with made.parts() as context:
            fill(context)
        made.start()
        reader = Reader(made.port, keys["annotator"])
        reader.label(reader.lease())
        annotator.label()
        ours, theirs = [], []
        for _ in bar.track(range(rounds), description="labelling"):
            theirs.append(rate(annotator.label, seconds))
            ours.append(rate(lambda: reader.label(reader.lease()), seconds))
    return {
        "secondread, labels per second": statistics.median(ours),
        "Label Studio, labels per second": statistics.median(theirs),
        "of Label Studio": statistics.median(own / other for own, other in zip(ours, theirs, strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/DATE_label_studio.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Progress(transient=True) as bar:
        figures = measure(Path(folder), bar, options.rounds, options.seconds)
    for name, value in figures.items():
        print(f"{value:10.2f}  {name}")
    if options.save:
        document = {"Label Studio": VERSION, "cores": os.cpu_count(), "figures": figures}
        path = ROOT / "benchmarks" / "results" / f"{date.today()}_label_studio.json"
        path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
