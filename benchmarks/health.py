"""Time of ``/healthz`` and of labels while the service is flooded, and while its database is frozen.

    python -m benchmarks.health --save

One process asks ``/healthz`` every 20 ms, one labels every 100 ms, each over a new connection; the others attack. All
of them share the machine with the server, so each figure contains what the attackers themselves take of the processor.
"""

import http.client
import io
import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import numpy as np

from benchmarks.harness import Figures, main, postgres
from tests.security.test_pictures import deep_png
from tests.support.postgres import PostgresServer
from tests.support.process import Installation
from tests.support.service import cell_png
from tests.support.tiny_release import write_tiny_release

EVERY = 0.02
_ASKER = """
import http.client, json, sys, time
asked = json.loads(sys.argv[1])
answers, end, number = [], time.perf_counter() + asked["seconds"], 0
while time.perf_counter() < end:
    started, number = time.perf_counter(), number + 1
    headers = {name: value.replace("NUMBER", f"{asked['name']} {number}") for name, value in asked["headers"].items()}
    connection = http.client.HTTPConnection("127.0.0.1", asked["port"], 30)
    body = asked["body"].replace("NUMBER", f"{asked['name']} {number}") or None
    try:
        connection.request(asked["method"], asked["paths"][number % len(asked["paths"])], body, headers)
        status = connection.getresponse().status
    except OSError:
        status = 0
    connection.close()
    answers.append((status, 1000 * (time.perf_counter() - started)))
    time.sleep(asked["every"])
print(json.dumps(answers))
"""
_CASES = 10
_CELL = cell_png(1, 96)
Attack = Callable[[], int | None]
Asker = subprocess.Popen[str]


def ask(
    made: Installation, seconds: float, name: str, method: str, paths: list[str], key: str = "", body: str = ""
) -> Asker:
    """Ask from a process of its own, again and again."""
    headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "NUMBER", "Content-Type": "application/json"}
    asked = {
        "port": made.port,
        "seconds": seconds,
        "every": EVERY if not body else 5 * EVERY,
        "name": name,
        "method": method,
        "paths": paths,
        "headers": headers if key else {},
        "body": body,
    }
    return subprocess.Popen([sys.executable, "-c", _ASKER, json.dumps(asked)], stdout=subprocess.PIPE, text=True)


def answers_of(asker: Asker) -> list[tuple[int, float]]:
    """Status and milliseconds of each answer.

    Raises:
        RuntimeError: there was a request without an answer.
    """
    output, _ = asker.communicate()
    if asker.returncode:
        raise RuntimeError("a request had no answer")
    return [(status, time) for status, time in json.loads(output)]


def figures_of(answers: list[tuple[int, float]], prefix: str) -> dict[str, object]:
    """Statuses and milliseconds of answers."""
    times = np.array([time for _, time in answers])
    return {
        f"{prefix}statuses": dict(Counter(status for status, _ in answers)),
        f"{prefix}median_ms": float(np.median(times)),
        f"{prefix}p99_ms": float(np.percentile(times, 99)),
        f"{prefix}slowest_ms": float(times.max()),
    }


def probe(made: Installation, seconds: float) -> dict[str, object]:
    """``/healthz`` of a service."""
    answers = answers_of(ask(made, seconds, "", "GET", ["/healthz"]))
    share = float(np.mean([status == 200 and time <= 100 for status, time in answers]))
    return {**figures_of(answers, ""), "share_within_100_ms": share}


@contextmanager
def attackers(number: int, attack: Attack) -> Iterator[Counter[int]]:
    """Threads that attack again and again; gives their answers by status."""
    answers: Counter[int] = Counter()
    over = threading.Event()

    def repeat() -> None:
        while not over.is_set():
            try:
                answers[attack() or 0] += 1
            except OSError:
                answers[0] += 1  # no answer

    threads = [threading.Thread(target=repeat, daemon=True) for _ in range(number)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    yield answers
    over.set()
    for thread in threads:
        thread.join(60)


class Attacks:
    """Requests that cost.

    Args:
        made: the service, without a trusted proxy.
        keys: by account.
    """

    def __init__(self, made: Installation, keys: dict[str, str]) -> None:
        self._made, self._keys = made, keys
        self._picture = deep_png(5000)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("manifest.csv", b"file,external_id\n" + b"a,b\n" * 2_000_000)
        self._archive = packed.getvalue()

    def _post(self, path: str, body: bytes, **headers: str) -> int:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        asked = http.client.HTTPConnection("127.0.0.1", self._made.port, 30, source_address=("127.0.0.2", 0))
        try:
            asked.request("POST", path, body, names)
            return asked.getresponse().status
        finally:
            asked.close()

    def sign_in(self) -> int:
        """A wrong password."""
        kind = "application/x-www-form-urlencoded"
        return self._post("/login", f"name=nobody{time.monotonic_ns()}&password=wrong".encode(), Content_Type=kind)

    def picture(self) -> int:
        """25 megapixels of 16 bits."""
        key = f"Bearer {self._keys['viewer']}"
        return self._post("/v1/predictions", self._picture, Authorization=key, Content_Type="image/png")

    def predict(self) -> int:
        """A cell of 96 pixels."""
        key = f"Bearer {self._keys['viewer']}"
        return self._post("/v1/predictions", _CELL, Authorization=key, Content_Type="image/png")

    def archive(self) -> int:
        """Two million rows in 8 KB."""
        key, kind = f"Bearer {self._keys['lead']}", "application/zip"
        headers = {"Authorization": key, "Content_Type": kind, "Idempotency_Key": str(time.monotonic_ns())}
        return self._post("/v1/imports", self._archive, **headers)

    def body(self) -> int:
        """11 MiB without an account."""
        return self._post("/v1/imports", bytes(11 * 1024**2), Content_Type="application/zip")

    def cases(self) -> int:
        """A page of cases."""
        asked = http.client.HTTPConnection("127.0.0.1", self._made.port, 30, source_address=("127.0.0.2", 0))
        try:
            asked.request("GET", "/v1/cases", headers={"Authorization": f"Bearer {self._keys['viewer']}"})
            return asked.getresponse().status
        finally:
            asked.close()

    @contextmanager
    def silent(self) -> Iterator[Counter[int]]:
        """Six hundred half-sent requests of as many addresses."""
        opened = []
        for number in range(600):
            source = f"127.0.{1 + number // 200}.{1 + number % 200}"
            opened.append(socket.create_connection(("127.0.0.1", self._made.port), 20, source_address=(source, 0)))
            opened[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: ")
        yield Counter({0: len(opened)})
        for one in opened:
            one.close()


def upload(made: Installation, key: str) -> tuple[list[str], str]:
    """Paths of labels of some cases, and a class."""
    cases, code = [], ""
    for number in range(_CASES):
        headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": f"case {number}"}
        files = {"image": ("x.png", cell_png(number, 96))}
        answer = httpx2.post(
            f"{made.address}/v1/cases", headers=headers, files=files, data={"external_id": str(number)}, timeout=30
        )
        case = answer.raise_for_status().json()
        cases.append(f"/v1/cases/{case['id']}/labels")
        code = case["prediction"]["classes"][0]
    return cases, code


def under_attack(
    made: Installation, keys: dict[str, str], server: PostgresServer, seconds: float
) -> dict[str, dict[str, object]]:
    """Milliseconds of ``/healthz`` and of labels by attack."""
    attacks = Attacks(made, keys)
    cases, code = upload(made, keys["lead"])
    figures: dict[str, dict[str, object]] = {}
    floods: dict[str, tuple[int, Attack]] = {
        "nothing": (0, attacks.cases),
        "64 clients with predictions": (64, attacks.predict),
        "60 clients with wrong passwords": (60, attacks.sign_in),
        "64 clients with pictures of 25 megapixels, 16 bits": (64, attacks.picture),
        "8 clients with an archive of two million rows": (8, attacks.archive),
        "32 clients without an account and 11 MiB each": (32, attacks.body),
        "60 clients with pages of cases": (60, attacks.cases),
    }
    for name, (number, attack) in floods.items():
        label = json.dumps({"label": code, "annotator": "NUMBER", "blind": True})
        with attackers(number, attack) as answers:
            labels = ask(made, seconds, name, "POST", cases, keys["outside"], label)
            figures[name] = {**probe(made, seconds), **figures_of(answers_of(labels), "label_")}
        figures[name]["attackers_statuses"] = dict(sorted(answers.items()))
    with attacks.silent():
        figures["600 half-sent requests of 600 addresses"] = probe(made, seconds)
    server.send_signal(signal.SIGSTOP)
    try:
        with attackers(60, attacks.cases) as answers:
            figures["a frozen database and 60 clients with pages of cases"] = probe(made, seconds)
            server.send_signal(signal.SIGCONT)
    finally:
        server.send_signal(signal.SIGCONT)
    return figures


def measure(quick: bool) -> Figures:
    """Milliseconds by attack."""
    with tempfile.TemporaryDirectory() as folder, postgres() as server:
        release = write_tiny_release(Path(folder) / "release")
        with Installation(Path(folder) / "home", server.url(server.create())) as made:
            keys = made.prepare(release, viewer="viewer", lead="admin", outside="service")
            made.environment["SECONDREAD_WORKER"] = "false"
            made.start()
            return under_attack(made, keys, server, 1.0 if quick else 10.0)


if __name__ == "__main__":
    main(__doc__, {"health": measure})
