"""How soon commands and the server are there, and how much memory and disk they take.

    python -m benchmarks.start_and_size --save

Each time is the median of rounds, each of a new process, with the bytecode of the round before; the machine's files are
in memory. Memory is Pss of an idle server and its worker, with the demo's release on SQLite, some seconds after the
start: what both share counts once. The size of an installation is what the packages of `secondread[cpu,serve]` and what
these need list as their files, without bytecode.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from rich.progress import Progress

from benchmarks.predicting import is_ready
from benchmarks.serving import memory_mb
from tests.support.process import Installation

DEMO = Path(__file__).parents[1] / "app" / "demo" / "cells" / "release"
EXTRAS = ("cpu", "serve")
GOALS = {"serve ready (s)": 2.0, "--help (s)": 0.3, "import secondread (s)": 0.5, "installation (MB)": 480.0}
GOALS["idle server and worker, Pss (MB)"] = 300.0
_SERVE = "from app.cli.main import main; main()"


def with_bytecode(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which Python keeps bytecode, as pip does for whoever installs the package."""
    return {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}


def seconds_of(*arguments: str) -> float:
    """Seconds that a Python process takes."""
    began = time.perf_counter()
    environment = with_bytecode(os.environ)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - began


@contextmanager
def started(made: Installation) -> Iterator[tuple[float, int]]:
    """A server as anybody starts it, until the end of the block: seconds until it was ready, and its process.

    Raises:
        SystemExit: it ended before.
    """
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", _SERVE, "serve"],
        env=with_bytecode(made.environment),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            while not is_ready(made):
                if server.poll() is not None:
                    raise SystemExit("the server ended before it was ready")
                time.sleep(0.005)
            yield time.perf_counter() - began, server.pid
        finally:
            server.terminate()
            server.wait()


def packages(extras: tuple[str, ...]) -> dict[str, Distribution]:
    """The package and everything that it needs here with some extras, by name.

    Raises:
        SystemExit: something is not installed.
    """
    found: dict[str, Distribution] = {}
    wanted: list[tuple[str, frozenset[str]]] = [("secondread", frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while wanted:
        name, chosen = wanted.pop()
        if (name, chosen) in seen:
            continue
        seen.add((name, chosen))
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            raise SystemExit(f"{name} is not installed: pip install -e '.[{','.join(EXTRAS)}]'") from None
        for line in found[name].requires or ():
            needed = Requirement(line)
            named = [{"extra": extra} for extra in chosen] or [{"extra": ""}]
            if needed.marker is None or any(needed.marker.evaluate(extra) for extra in named):
                wanted.append((re.sub(r"[-_.]+", "-", needed.name).lower(), frozenset(needed.extras)))
    return found


def megabytes(package: Distribution) -> float:
    """Size of the files that a package lists, without bytecode."""
    paths = (Path(str(package.locate_file(file))) for file in package.files or () if file.suffix != ".pyc")
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6


def measure(rounds: int, idle_seconds: float) -> dict[str, Any]:
    """Medians, and the packages that take the most room."""
    times: dict[str, list[float]] = {"serve ready (s)": [], "--help (s)": [], "import secondread (s)": []}
    memory: list[float] = []
    with tempfile.TemporaryDirectory() as folder, Installation(Path(folder) / "home") as made:
        made.prepare(DEMO)
        with Progress(transient=True) as bar:
            for _ in bar.track(range(rounds + 1), description="starts"):
                with started(made) as (seconds, process):
                    times["serve ready (s)"].append(seconds)
                    time.sleep(idle_seconds)
                    memory.append(memory_mb(process))
                times["--help (s)"].append(seconds_of("-c", _SERVE, "--help"))
                times["import secondread (s)"].append(seconds_of("-c", "import secondread"))
    figures = {name: statistics.median(seen[1:]) for name, seen in times.items()}  # the first one writes bytecode
    figures["idle server and worker, Pss (MB)"] = statistics.median(memory[1:])
    sizes = {name: megabytes(package) for name, package in packages(EXTRAS).items()}
    figures["installation (MB)"] = sum(sizes.values())
    largest = dict(sorted(sizes.items(), key=lambda item: -item[1])[:12])
    return {"figures": figures, "largest packages (MB)": largest, "packages": len(sizes)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle-seconds", type=float, default=8.0, help="from ready to the measurement of memory")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/DATE_start_and_size.json")
    options = parser.parse_args()
    found = measure(options.rounds, options.idle_seconds)
    for name, value in found["figures"].items():
        print(f"{name:<36}{value:>9.2f}   goal: at most {GOALS[name]:g}")
    print("largest: " + ", ".join(f"{name} {size:.0f}" for name, size in found["largest packages (MB)"].items()))
    if options.save:
        machine = f"{os.cpu_count()} cores, {platform.machine()}"
        path = Path(__file__).parent / "results" / f"{date.today()}_start_and_size.json"
        path.write_text(json.dumps({"machine": machine, "rounds": options.rounds} | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
