"""One, two and four processes next to one, and one to a million rows next to ten thousand.

    python -m benchmarks.scaling --save

Predictions, cases and labels by API processes; old cases predicted by workers; images scored in shards; rows evaluated
as a stream, and scored. Everything is a ratio within one round, rounds take turns, and medians of rounds are shown.
Processor time of processes, PostgreSQL, bucket and generator of requests is counted apart, from ``/proc``, which
shows how far the cores of this machine allow conclusions. Figures for more cores are computed, and marked so.
"""

import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from rich.progress import Progress

from benchmarks.harness import CORES, RESULTS, Figures, main, postgres
from benchmarks.scaling_files import REFERENCE, Window, by_rows, in_shards
from benchmarks.scaling_service import CLIENTS, PARTS, SIDE, Machinery, over_http, predicting_again
from tests.support.bucket import bucket_server
from tests.support.tiny_release import write_tiny_release

#: Whose processor time is counted apart, in the order of the tables.
PROCESSES = ("process", "PostgreSQL", "bucket", "generator")


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        rounds: of everything.
        seconds: of a window of requests.
        processes: numbers that are compared.
        old_cases: that workers predict.
        images: that are scored in shards.
        rows: of each command.
    """

    rounds: int = 3
    seconds: float = 3.0
    processes: tuple[int, ...] = (1, 2, 4)
    old_cases: int = 16_000
    images: int = 20_000
    evaluated: tuple[int, ...] = (1, 1_000, 10_000, 100_000, 1_000_000)
    scored: tuple[int, ...] = (1, 10, 100, 1_000, 10_000)


QUICK = Size(rounds=1, seconds=0.4, processes=(1, 2), old_cases=200, images=200, evaluated=(1, 1_000), scored=(1, 100))


def measure_size(size: Size) -> Figures:
    """All figures."""
    began, environment = time.monotonic(), dict(os.environ)
    with (
        tempfile.TemporaryDirectory() as name,
        bucket_server(Path(name) / "bucket.log") as buckets,
        postgres() as server,
    ):
        os.environ |= buckets.environment
        try:
            release = write_tiny_release(Path(name) / "release")
            figures = _all_tables(size, Path(name), Machinery(Path(name), server, buckets, release))
        finally:
            os.environ.clear()
            os.environ |= environment
    minutes = (time.monotonic() - began) / 60
    return {"minutes": minutes, "rounds": size.rounds, "seconds": size.seconds} | figures


def _all_tables(size: Size, folder: Path, machinery: Machinery) -> Figures:
    with Progress(transient=True) as bar:
        requests, counted = over_http(machinery, size.processes, size.rounds, size.seconds, bar)
        old, counted["old cases"] = predicting_again(machinery, size.processes, size.rounds, size.old_cases, bar)
        shards, counted["images"] = in_shards(folder, machinery.release, size.processes, size.rounds, size.images, bar)
        sizes = {"evaluate": size.evaluated, "score": size.scored}
        rows = by_rows(folder, machinery.release, sizes, size.rounds, bar)
    windows = requests | {"old cases": old, "images": shards}
    return {
        "processes": {name: summary(rounds) for name, rounds in windows.items()},
        "rows": rows,
        "counted": counted,
    }


def as_markdown(figures: Figures) -> str:
    """The document in Markdown."""
    titles = {
        "predictions": ("Predictions that leave nothing behind: `POST /v1/predictions`", "API processes"),
        "cases": ("Storing cases: `POST /v1/cases`", "API processes"),
        "labels": ("Labels: a lease and the answer to it", "API processes"),
        "old cases": (f"Old cases predicted by a job in {PARTS} parts", "workers"),
        "images": ("Images by `secondread score --shard i/n`, with the start of each process", "processes"),
    }
    parts = [_heading(figures)]
    for name, (title, called) in titles.items():
        rows = figures["processes"][name]
        parts += [f"## {title}\n", table_of(rows, called), limits_of(rows, called)]
    for name, title in {"evaluate": "secondread evaluate --stream", "score": "secondread score"}.items():
        parts += [f"## Rows of `{title}`\n", rows_table(figures["rows"][name]), _limits_of_rows(figures["rows"][name])]
    parts += ["## What was acknowledged is there\n", _counts(figures["counted"])]
    return "\n".join(parts)


def _heading(figures: Figures) -> str:
    return (
        f"# Scaling\n\nMedians of rounds ({figures['rounds']}) on {CORES} cores, in "
        f"{figures['minutes']:.0f} minutes. {CLIENTS} clients ask again "
        f"and again for {figures['seconds']:g} s, spread over as many of the API processes as a row says; the others "
        f"run idle. Pictures have {SIDE} px, the network is the small one of the tests. Each process has a HOME of its "
        "own; they share one PostgreSQL, in memory without fsync, and one bucket, a process on the same machine. No "
        'worker links audit events meanwhile. "To one" compares with one process in the same round. Milliseconds are '
        "processor time. A process that fewer clients ask at once spends less time per request, so that n processes "
        "can come out at more than n times one.\n"
    )


def rows_table(rows: dict[str, dict[str, float]]) -> str:
    """What a command costs by number of rows."""
    reference = f"to {min(REFERENCE, max(map(int, rows))):,} rows"
    heads = ["rows", "seconds", "processor seconds", f"seconds per row, {reference}"]
    heads += ["µs of processor per further row", "most memory, MB", f"memory, {reference}"]
    lines = []
    for n, row in rows.items():
        further = row.get("seconds_per_further_row")
        values = (
            row["seconds"],
            row["processor_seconds"],
            row["per_row_ratio"],
            None if further is None else 1e6 * further,
            row["peak_bytes"] / 1e6,
            row["memory_ratio"],
        )
        lines.append([f"{int(n):,}", *map(digits, values)])
    return table(heads, lines)


def _limits_of_rows(rows: dict[str, dict[str, float]]) -> str:
    least, most = min(rows, key=int), max(rows, key=int)
    busy = rows[most]["processor_seconds"] / rows[most]["seconds"]
    return (
        f"**What {CORES} cores cannot show.** With {int(most):,} rows the one process used {busy:.2f} of {CORES} "
        "cores: this is what a row costs one process, not how more of them would share a longer table, which is the "
        "table of shards. All files were in memory, so nothing waited for a disk or a bucket. The "
        f"{digits(rows[least]['seconds'])} s of one row are the start of the command, which is most of the time of "
        "few rows; further rows are those that a line has more than the line above, and have no figure if the "
        "start hides them.\n"
    )


def _counts(counted: dict[str, dict[str, int]]) -> str:
    lines = [[name, f"{row['acknowledged']:,}", f"{row['stored']:,}"] for name, row in counted.items()]
    return table(["all rounds together", "acknowledged", "stored"], lines)


def summary(rounds: list[dict[int, Window]]) -> dict[str, dict[str, float]]:
    """Medians of rounds by number of processes, each compared with one process in the same round.

    Args:
        rounds: windows by number of processes.
    """
    rows = {}
    for n in sorted(rounds[0]):
        figures = [_figures(n, windows[n], windows[1]) for windows in rounds]
        rows[str(n)] = {name: statistics.median(row[name] for row in figures) for name in figures[0]}
    # what took less than a tick of the clock in most rounds has no figure
    return {n: {name: value for name, value in row.items() if value > 0} for n, row in rows.items()}


def _figures(n: int, window: Window, alone: Window) -> dict[str, float]:
    """What one round says of n processes, next to one; the last three are computed, not measured."""
    each = {f"{part} ms": 1000 * seconds / window.done for part, seconds in window.processor.items()}
    all_ms = sum(each.values())
    # each process does with its core what one process did with its own, at what a request costs with n of them
    added = n * (alone.processor["process"] / alone.done) / (window.processor["process"] / window.done)
    here = CORES / (alone.rate * all_ms / 1000)
    computed = {
        "at most on these cores": min(added, here),
        "with cores added": added,
        "cores needed": added * alone.rate * all_ms / 1000,
    }
    cores = {"cores": window.cores, "by others": window.others}
    return {"per second": window.rate, "ratio": window.rate / alone.rate} | each | cores | computed


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def digits(value: float | None) -> str:
    """A number with three digits.

    >>> [digits(value) for value in (None, 0.01234, 1.5, 123.4, 12_345.0)]
    ['–', '0.0123', '1.50', '123', '12,345']
    """
    if value is None:
        return "–"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:#.3g}"


def table_of(rows: dict[str, dict[str, float]], called: str) -> str:
    """One kind of work by number of processes.

    Args:
        rows: as of ``summary``.
        called: what the processes are.
    """
    parts = [part for part in PROCESSES if any(f"{part} ms" in row for row in rows.values())]
    names = ["per second", "ratio", *(f"{part} ms" for part in parts), "cores", "by others"]
    names += ["at most on these cores", "with cores added", "cores needed"]
    heads = [called, "per second", "to one", *(f"{part}, ms each" for part in parts)]
    heads += [f"cores in use of {CORES}", "by other programs", f"at most on {CORES} cores (computed)"]
    heads += ["with cores added (computed)", "cores for that (computed)"]
    return table(heads, [[n, *(digits(row.get(name)) for name in names)] for n, row in rows.items()])


def limits_of(rows: dict[str, dict[str, float]], called: str) -> str:
    """What these cores cannot show about a table, in words.

    Args:
        rows: as of ``summary``.
        called: what the processes are.
    """
    most = max(rows, key=int)
    alone, many = rows["1"], rows[most]
    here, added = many["at most on these cores"], many["with cores added"]
    if here < added:
        end = (
            f"However well they share the work, {most} cannot be seen to do more than {here:.2f} times as much as one "
            f"here: what is missing from there to {most} is cores."
        )
    else:
        end = f"They would be enough for {here:.2f} times as much as one, which is all that {most} can do at this cost."
    return (
        f"**What {CORES} cores cannot show.** One of the {called} and what it needs used {alone['cores']:.2f} of "
        f"{CORES} cores, {most} used {many['cores']:.2f}. {end} What is missing from {many['ratio']:.2f} to "
        f"{here:.2f} is waiting, or other programs. Computed, not measured: if each unit kept costing the processor "
        f"time that it cost with {most}, and cores were added until each process has what one had alone, {most} would "
        f"do {added:.2f} times as much as one and keep {many['cores needed']:.1f} cores busy. That is a bound: locks, "
        "disks and networks are not in it.\n"
    )


def measure(quick: bool) -> Figures:
    """All figures; those of a full run are written as a page too."""
    figures = measure_size(QUICK if quick else Size())
    text = as_markdown(figures)
    if quick:
        print(text)
    else:
        (RESULTS / f"{date.today()}_scaling.md").write_text(text)
    return figures


if __name__ == "__main__":
    main(__doc__, {"scaling": measure})
