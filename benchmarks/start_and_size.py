"""How soon commands and the server are there, and how much memory and disk they take.

    python -m benchmarks.start_and_size --save

Each time is the median of rounds, each of a new process, with the bytecode of the round before; the machine's files are
in memory. Memory is Pss of an idle server and its worker, with the demo's release on SQLite, some seconds after the
start: what both share counts once. The size of an installation: files of `secondread-cells[cpu,serve]` and of all that
this needs, without bytecode.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from rich.progress import Progress

from benchmarks.harness import DEMO, Figures, main, medians, shared_mb
from tests.support.process import Installation

EXTRAS = ("cpu", "serve")
_SERVE = "from app.cli.main import main; main()"


def with_bytecode(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which Python keeps bytecode, as pip does at an installation."""
    return {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}


def seconds_of(*arguments: str) -> float:
    """Seconds that a Python process takes."""
    began = time.perf_counter()
    environment = with_bytecode(os.environ)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - began


@contextmanager
def started(made: Installation) -> Iterator[tuple[float, int]]:
    """A server as a user starts it, until the end of the block: seconds until it was ready, and its process.

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
    needs: dict[str, Distribution] = {}
    pending: list[tuple[str, frozenset[str]]] = [("secondread-cells", frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while pending:
        name, chosen = pending.pop()
        if (name, chosen) in seen:
            continue
        seen.add((name, chosen))
        try:
            needs[name] = distribution(name)
        except PackageNotFoundError:
            raise SystemExit(f"{name} is not installed: pip install -e '.[{','.join(EXTRAS)}]'") from None
        for line in needs[name].requires or ():
            needed = Requirement(line)
            named = [{"extra": extra} for extra in chosen] or [{"extra": ""}]
            if needed.marker is None or any(needed.marker.evaluate(extra) for extra in named):
                pending.append((re.sub(r"[-_.]+", "-", needed.name).lower(), frozenset(needed.extras)))
    return needs


def megabytes(package: Distribution) -> float:
    """Size of the files that a package lists, without bytecode."""
    paths = (Path(str(package.locate_file(file))) for file in package.files or () if file.suffix != ".pyc")
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6


def is_ready(made: Installation) -> bool:
    """Whether the server answers."""
    try:
        with urllib.request.urlopen(f"{made.address}/readyz", timeout=5):
            return True
    except OSError:
        return False


def measure(quick: bool) -> Figures:
    """Medians of times and memory, and the packages that take the most room."""
    rounds, idle_seconds = (1, 0.5) if quick else (5, 8.0)
    rows = []
    with tempfile.TemporaryDirectory() as folder, Installation(Path(folder) / "home") as made:
        made.prepare(DEMO)
        with Progress(transient=True) as bar:
            for _ in bar.track(range(rounds + 1), description="starts"):
                with started(made) as (seconds, process):
                    row = {"serve ready (s)": seconds}
                    time.sleep(idle_seconds)
                    row["idle server and worker, Pss (MB)"] = shared_mb(process)
                row["--help (s)"] = seconds_of("-c", _SERVE, "--help")
                row["import secondread (s)"] = seconds_of("-c", "import secondread")
                rows.append(row)
    sizes = {name: megabytes(package) for name, package in packages(EXTRAS).items()}
    largest = dict(sorted(sizes.items(), key=lambda item: -item[1])[:12])
    figures = medians(rows[1:])  # the first round writes bytecode
    figures |= {"installation (MB)": sum(sizes.values()), "packages": len(sizes)}
    return figures | {"largest packages (MB)": largest}


if __name__ == "__main__":
    main(__doc__, {"start_and_size": measure})
