"""Commands on files: lists and tables of any length, images scored in shards, and both commands on ever more rows.

Used by ``scaling.py``. Each process is a ``secondread`` of its own with everything that its start costs.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from rich.progress import Progress

from benchmarks.harness import in_turn
from tests.support.service import cell_png

FILES, SIDE, N_CLASSES = 64, 96, 8
#: Rows that all other numbers of rows are compared with.
REFERENCE = 10_000
Meters = Mapping[str, Callable[[], float]]
_TICK = os.sysconf("SC_CLK_TCK")
_VISIBLE = 1.25  # as many times the processor time of fewer rows
# VmHWM and not ru_maxrss, which counts what the parent had before the child became another program
_COMMAND = """
import json, sys
from app.cli.main import main
try:
    main()
except SystemExit as end:
    if end.code:
        raise
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
print("\\n" + str(1024 * int(peak)), file=sys.stderr)
"""


@dataclass(frozen=True)
class Window:
    """Work of a while.

    Attributes:
        done: units of work that were acknowledged.
        seconds: on the clock.
        processor: seconds of processor time by part.
        machine: the same of everything that runs on this machine.
    """

    done: int
    seconds: float
    processor: dict[str, float]
    machine: float

    @property
    def rate(self) -> float:
        """Units per second."""
        return self.done / self.seconds

    @property
    def cores(self) -> float:
        """Cores in use by all parts together."""
        return sum(self.processor.values()) / self.seconds

    @property
    def others(self) -> float:
        """Cores in use by other programs: if there are some, the ratios are too small."""
        return self.machine / self.seconds - self.cores


def machine_seconds() -> float:
    """Processor time of the whole machine so far, waiting and idling left out."""
    user, nice, system, _idle, _waiting, irq, softirq, steal = Path("/proc/stat").read_text().split()[1:9]
    return sum(map(int, (user, nice, system, irq, softirq, steal))) / _TICK


def watched(meters: Meters, work: Callable[[], int]) -> Window:
    """Do some work, and read all meters before and after.

    Args:
        meters: processor seconds so far, by part.
        work: gives the units that were done.
    """
    before, machine = {name: read() for name, read in meters.items()}, machine_seconds()
    started = time.perf_counter()
    done = work()
    seconds = time.perf_counter() - started
    processor = {name: read() - before[name] for name, read in meters.items()}
    return Window(done, seconds, processor, machine_seconds() - machine)


def write_list(folder: Path, rows: int) -> Path:
    """A list of so many images, which are few files again and again."""
    images = folder / "images"
    if not images.exists():
        images.mkdir()
        for index in range(FILES):
            (images / f"{index}.png").write_bytes(cell_png(index, SIDE))
    path = images / f"list-{rows}.csv"
    lines = [f"case-{row:07d},{row % FILES}.png" for row in range(rows)]
    path.write_text("\n".join(["case_id,file", *lines]) + "\n")
    return path


def write_tables(folder: Path, rows: int) -> tuple[Path, Path]:
    """LABELS with two labels per case and ten cases per patient, and PREDICTIONS, both sorted."""
    rng = np.random.default_rng(0)
    names = [f"{row:09d}" for row in range(rows)]
    probs = rng.dirichlet(np.ones(N_CLASSES), rows)
    columns: dict[str, Any] = {"case_id": names} | {f"prob:{k}": probs[:, k] for k in range(N_CLASSES)}
    read: dict[str, Any] = {"case_id": np.repeat(names, 2), "annotator": ["a", "b"] * rows}
    read["patient"] = np.repeat([name[:-1] for name in names], 2)
    read["label"] = rng.integers(N_CLASSES, size=2 * rows).astype(str)
    paths = folder / f"labels-{rows}.parquet", folder / f"predictions-{rows}.parquet"
    for path, table in zip(paths, (read, columns), strict=True):
        parquet.write_table(pa.table(table), path, row_group_size=122_880)
    return paths


@dataclass(frozen=True)
class Ran:
    """A command that has ended.

    Attributes:
        document: what it printed.
        peak_bytes: most memory that was resident.
    """

    document: dict[str, Any]
    peak_bytes: int


def children_seconds() -> float:
    """Processor time of all processes that this one started and that have ended, with their starts and ends."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(commands: Sequence[Sequence[object]]) -> list[Ran]:
    """Run commands at the same time, to their end.

    Args:
        commands: arguments of ``secondread``.

    Raises:
        RuntimeError: one failed.
    """
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _COMMAND, *map(str, arguments), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for arguments in commands
    ]
    ran = []
    for process in started:
        out, err = process.communicate()
        if process.returncode:
            raise RuntimeError(err)
        ran.append(Ran(json.loads(out), int(err.splitlines()[-1])))
    return ran


def in_shards(
    folder: Path, release: Path, counts: Sequence[int], rounds: int, images: int, bar: Progress
) -> tuple[list[dict[int, Window]], dict[str, int]]:
    """A list scored by so many processes with a shard each, and how many images were asked for and scored in all."""
    listed, seen, counted = write_list(folder, images), [], {"acknowledged": 0, "stored": 0}
    task = bar.add_task("shards", total=rounds * len(counts))
    for number, order in enumerate(in_turn(counts, rounds)):
        windows = {}
        for n in order:
            out = folder / f"scored-{number}-{n}"
            windows[n] = _scored(release, listed, out, n)
            counted["acknowledged"] += windows[n].done
            counted["stored"] += sum(parquet.read_metadata(path).num_rows for path in out.glob("*.predictions.parquet"))
            bar.advance(task)
        seen.append(windows)
    return seen, counted


def _scored(release: Path, listed: Path, out: Path, n: int) -> Window:
    command = ("score", release, "--images", listed, "--out", out, "--shard")
    shards = [(*command, f"{number}/{n}") for number in range(1, n + 1)]
    return watched({"process": children_seconds}, lambda: sum(done.document["n_predictions"] for done in run(shards)))


def by_rows(
    folder: Path, release: Path, sizes: dict[str, Sequence[int]], rounds: int, bar: Progress
) -> dict[str, dict[str, dict[str, float]]]:
    """Both commands on ever more rows: medians of rounds.

    Args:
        folder: for tables, images and what is written.
        release: release folder.
        sizes: numbers of rows by command, ``evaluate`` and ``score``.
        rounds: how often.
        bar: to advance.
    """
    command_of: dict[str, Callable[[int], tuple[object, ...]]] = {
        "evaluate": lambda rows: _evaluation(folder, rows),
        "score": lambda rows: _scoring(folder, release, rows),
    }
    commands = {(name, rows): command_of[name](rows) for name, numbers in sizes.items() for rows in numbers}
    seen: dict[tuple[str, int], list[tuple[Window, Ran]]] = {key: [] for key in commands}
    task = bar.add_task("rows", total=rounds * len(commands))
    for _ in range(rounds):
        for (name, rows), command in commands.items():
            seen[name, rows].append(_one(command, rows))
            bar.advance(task)
    return {
        name: _compared({rows: seen[name, rows] for rows in numbers}, min(REFERENCE, max(numbers)))
        for name, numbers in sizes.items()
    }


def _evaluation(folder: Path, rows: int) -> tuple[object, ...]:
    labels, predictions = write_tables(folder, rows)
    return ("evaluate", "--stream", "--labels", labels, "--predictions", predictions, "--cluster", "patient")


def _scoring(folder: Path, release: Path, rows: int) -> tuple[object, ...]:
    return ("score", release, "--images", write_list(folder, rows), "--out", folder / f"table-{rows}.parquet")


def _one(command: tuple[object, ...], rows: int) -> tuple[Window, Ran]:
    """Run a command over so many rows.

    Raises:
        RuntimeError: it says that there were others.
    """
    ran: list[Ran] = []

    def work() -> int:
        ran.extend(run([command]))
        return int(ran[0].document["n_cases"])

    window = watched({"process": children_seconds}, work)
    if window.done != rows:
        raise RuntimeError(f"{command}: {window.done} cases, not {rows}")
    return window, ran[0]


def _compared(seen: dict[int, list[tuple[Window, Ran]]], reference: int) -> dict[str, dict[str, float]]:
    """Seconds per row and memory, each next to that of the reference in the same round."""
    rows: dict[str, dict[str, float]] = {}
    before = (0, 0.0)
    for n, rounds in seen.items():
        pairs = list(zip(rounds, seen[reference], strict=True))
        memory = statistics.median(ran.peak_bytes for _, ran in rounds)
        processor = statistics.median(window.processor["process"] for window, _ in rounds)
        rows[str(n)] = {
            "seconds": statistics.median(window.seconds for window, _ in rounds),
            "processor_seconds": processor,
            "seconds_per_row": statistics.median(1 / window.rate for window, _ in rounds),
            "per_row_ratio": statistics.median(other.rate / own.rate for (own, _), (other, _) in pairs),
            "peak_bytes": memory,
            "memory_ratio": statistics.median(own.peak_bytes / other.peak_bytes for (_, own), (_, other) in pairs),
        }
        # without the start of the command; if that is most of it, the difference is chance
        if before[0] and processor > _VISIBLE * before[1]:
            rows[str(n)]["seconds_per_further_row"] = (processor - before[1]) / (n - before[0])
        before = (n, processor)
    return rows
