"""Where the time of a server goes while it predicts, and while annotators label: a flame graph of each.

    python -m benchmarks.flames --save

py-spy (`pip install -e '.[bench]'`) looks at the server's threads a few hundred times per second, those that hold the
interpreter, while eight clients ask without pause. Width is time; below stands who called. It may need to be run as
root, or with the right to trace.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from datetime import date
from pathlib import Path

from benchmarks import labels
from benchmarks.predicting import requests
from benchmarks.serving import cell_jpeg
from tests.support.process import Installation
from tests.support.tiny_release import write_tiny_release

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "app" / "demo" / "cells" / "release"
CLIENTS, RATE = 8, 250
_ASK = """
import socket, sys, time
request, port, end = sys.stdin.buffer.read(), int(sys.argv[1]), time.time() + float(sys.argv[2])
with socket.create_connection(("127.0.0.1", port)) as connection:
    while time.time() < end:
        connection.sendall(request)
        got = b""
        while b"\\r\\n\\r\\n" not in got:
            got += connection.recv(65536)
        head, _, body = got.partition(b"\\r\\n\\r\\n")
        left = int(head.lower().partition(b"content-length: ")[2].partition(b"\\r\\n")[0]) - len(body)
        while left > 0:
            left -= len(connection.recv(65536))
"""


def record(pid: int, seconds: float, work: Callable[[], None], out: Path, title: str) -> None:
    """A flame graph of a process while something is done.

    Raises:
        SystemExit: py-spy is missing, or may not look.
    """
    spy = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin")
    if spy is None:
        raise SystemExit("py-spy is missing: pip install -e '.[bench]'")
    thread = threading.Thread(target=work)
    thread.start()
    command = [spy, "record", "--pid", str(pid), "--duration", str(int(seconds)), "--rate", str(RATE), "--gil"]
    done = subprocess.run(
        [*command, "--output", str(out), "--format", "flamegraph"], check=False, capture_output=True, text=True
    )
    thread.join()
    if done.returncode:
        raise SystemExit(f"py-spy may not look at the server: {done.stderr.strip().splitlines()[-1]}")
    # names of folders of this machine are no business of a reader
    text = out.read_text().replace("py-spy record --pid", title).replace(f"{ROOT}/", "")
    out.write_text(text)


def predicting(out: Path, seconds: float) -> None:
    """Eight clients that predict the same picture."""
    with tempfile.TemporaryDirectory() as folder, Installation(Path(folder) / "home") as made:
        made.environment |= {"SECONDREAD_RATE_LIMIT": "0", "SECONDREAD_WORKER": "false"}
        key = made.prepare(DEMO, client="service")["client"]
        made.start()
        request = requests(key, cell_jpeg())["raw body"]

        def work() -> None:
            arguments = [sys.executable, "-c", _ASK, str(made.port), str(seconds + 2)]
            clients = [subprocess.Popen(arguments, stdin=subprocess.PIPE) for _ in range(CLIENTS)]
            for client in clients:
                assert client.stdin is not None
                client.stdin.write(request)
                client.stdin.close()
            for client in clients:
                client.wait()

        record(made.processes[0].pid, seconds, work, out, "POST /v1/predictions, eight clients")


def labelling(out: Path, seconds: float) -> None:
    """Eight annotators who lease and label at the rate of the benchmark, on SQLite."""
    names = [f"annotator-{index}" for index in range(CLIENTS)]
    with tempfile.TemporaryDirectory() as folder, Installation(Path(folder) / "home") as made:
        made.environment |= {"SECONDREAD_RATE_LIMIT": "0", "SECONDREAD_WORKER": "false"}
        people = {"admin": "admin", **dict.fromkeys(names, "annotator")}
        keys = made.prepare(write_tiny_release(Path(folder) / "release"), **people)
        with made.parts() as context:
            labels.fill(context)
        made.start()
        readers = [labels.Reader(made.port, keys[name]) for name in names]

        def work() -> None:
            labels.offer_labels(readers, seconds + 2)

        record(made.processes[0].pid, seconds, work, out, "Leases and labels, eight annotators, 30 per second")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--out", type=Path, default=Path("build"), help="folder of the graphs")
    parser.add_argument("--save", action="store_true", help="write them to benchmarks/results")
    options = parser.parse_args()
    out = ROOT / "benchmarks" / "results" if options.save else options.out
    out.mkdir(parents=True, exist_ok=True)
    for name, make in (("predicting", predicting), ("labelling", labelling)):
        path = out / f"{date.today()}_flame_{name}.svg"
        make(path, options.seconds)
        print(path)


if __name__ == "__main__":
    main()
