"""What one, two and four processes do next to one, and what one to a million rows cost next to ten thousand.

    python -m benchmarks.scaling --save

Predictions, cases and labels by API processes; old cases predicted by workers; images scored in shards; rows evaluated
as a stream, and scored. Everything is a ratio within one round, rounds take turns, and medians of rounds are shown.
Processor time of processes, PostgreSQL, bucket and generator of requests is counted apart, from ``/proc``, so that it
can be seen where the cores of this machine end what can be shown. What a figure would be with more cores is computed,
and said to be.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from rich.progress import Progress

from benchmarks.scaling_files import REFERENCE, by_rows, in_shards
from benchmarks.scaling_service import CLIENTS, PARTS, SIDE, Machinery, over_http, predicting_again
from benchmarks.scaling_windows import CORES, Figures, digits, limits_of, summary, table, table_of
from tests.support.bucket import bucket_server
from tests.support.postgres import PostgresServer, find_binaries
from tests.support.tiny_release import write_tiny_release

RESULTS = Path(__file__).parent / "results"


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


def measure(size: Size) -> dict[str, Any]:
    """All tables.

    Args:
        size: how much.

    Raises:
        SystemExit: PostgreSQL is missing.
    """
    binaries = find_binaries()
    if binaries is None:
        raise SystemExit("PostgreSQL is missing (Debian package postgresql)")
    began, load, environment = time.monotonic(), os.getloadavg()[0], dict(os.environ)
    with tempfile.TemporaryDirectory() as name, bucket_server(Path(name) / "bucket.log") as buckets:
        os.environ |= buckets.environment
        server = PostgresServer(binaries)
        try:
            release = write_tiny_release(Path(name) / "release")
            figures = _all_tables(size, Path(name), Machinery(Path(name), server, buckets, release))
        finally:
            server.stop()
            os.environ.clear()
            os.environ |= environment
    about = {
        "machine": platform.machine(),
        "cores": CORES,
        "load_before": load,
        "minutes": (time.monotonic() - began) / 60,
        "rounds": size.rounds,
        "seconds": size.seconds,
    }
    return about | figures


def _all_tables(size: Size, folder: Path, machinery: Machinery) -> dict[str, Any]:
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


def shown(figures: dict[str, Any]) -> str:
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


def _heading(figures: dict[str, Any]) -> str:
    return (
        f"# Scaling\n\nMedians of rounds ({figures['rounds']}) on {figures['cores']} cores ({figures['machine']}), in "
        f"{figures['minutes']:.0f} minutes; load before it: {figures['load_before']:.1f}. {CLIENTS} clients ask again "
        f"and again for {figures['seconds']:g} s, spread over as many of the API processes as a row says; the others "
        f"run idle. Pictures have {SIDE} px, the network is the small one of the tests. Each process has a HOME of its "
        "own; they share one PostgreSQL, in memory without fsync, and one bucket, a process on the same machine. No "
        'worker links audit events meanwhile. "To one" compares with one process in the same round. Milliseconds are '
        "processor time. A process that fewer clients ask at once spends less time per request, so that n processes "
        "can come out at more than n times one.\n"
    )


def rows_table(rows: dict[str, Figures]) -> str:
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


def _limits_of_rows(rows: dict[str, Figures]) -> str:
    least, most = min(rows, key=int), max(rows, key=int)
    busy = rows[most]["processor_seconds"] / rows[most]["seconds"]
    return (
        f"**What {CORES} cores cannot show.** With {int(most):,} rows the one process used {busy:.2f} of {CORES} "
        "cores: this is what a row costs one process, not how more of them would share a longer table, which is the "
        "table of shards. All files were in memory, so nothing waited for a disk or a bucket. The "
        f"{digits(rows[least]['seconds'])} s of one row are the start of the command, which is most of the time of "
        "few rows; further rows are those that a line has more than the line above, and have no figure where the "
        "start hides them.\n"
    )


def _counts(counted: dict[str, dict[str, int]]) -> str:
    lines = [[name, f"{row['acknowledged']:,}", f"{row['stored']:,}"] for name, row in counted.items()]
    return table(["all rounds together", "acknowledged", "stored"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=Size.rounds)
    parser.add_argument("--seconds", type=float, default=Size.seconds, help="of each window of requests")
    parser.add_argument("--quick", action="store_true", help="show that everything runs; figures mean nothing")
    parser.add_argument("--save", action="store_true", help="keep figures and tables in benchmarks/results")
    options = parser.parse_args()
    figures = measure(QUICK if options.quick else Size(options.rounds, options.seconds))
    print(shown(figures))
    if options.save:
        path = RESULTS / f"{date.today()}_scaling"
        path.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n")
        path.with_suffix(".md").write_text(shown(figures))


if __name__ == "__main__":
    main()
