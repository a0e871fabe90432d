"""The tables of ``docs/scale.md``, from the newest results of ``unit_costs.py`` and ``reading_rooms.py``.

    python -m experiments.scale --save

What 10³, 10⁶ and 10⁹ cells cost is a product of the costs of one, a straight line far beyond what was measured. Each
cell is stored, read 1.2 times, predicted again once, scored once in a shard, and evaluated once.
"""

import argparse
from datetime import date
from typing import Any

from experiments import RESULTS
from experiments.reading_rooms import TWICE, newest

CELLS = (10**3, 10**6, 10**9)
_STEPS = {"s": ((86_400, "days"), (3_600, "h"), (1, "s")), "B": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))}


def shown(value: float, unit: str) -> str:
    """A quantity with two digits in a unit that people read."""
    steps = _STEPS.get(unit, ((1, unit),))
    size, name = next(((size, name) for size, name in steps if value >= size), steps[-1])
    digits = value / size
    number = f"{digits:.2g}" if digits < 10 else f"{float(f'{digits:.2g}'):,.0f}"
    return f"{number} {name}".strip()


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def unit_rows(costs: dict[str, dict[str, float]]) -> list[list[str]]:
    """What one of each costs, in milliseconds of processor and bytes."""
    own = ("api_seconds", "worker_seconds", "seconds", "seconds_per_1000")
    names = {"list keys": "list 1,000 keys of a bucket", "snapshot": "a case in a snapshot"}
    rows = []
    for name, cost in costs.items():
        process = next((cost[meter] for meter in own if meter in cost), None)
        numbers = [process, cost.get("postgres_seconds")]
        spread = [f"{1e3 * n:.3g} ms" if n is not None else "–" for n in numbers]
        stored = cost.get("table_bytes", 0) + cost.get("index_bytes", 0)
        sizes = [stored, cost.get("wal_bytes", 0), cost.get("bucket_bytes", cost.get("bytes", 0))]
        bytes_shown = [f"{size / 1e3:.2g} kB" if size else "–" for size in sizes]
        counted = [f"{cost['statements']:.0f}" if "statements" in cost else "–", f"{cost['n']:,.0f}"]
        rows.append([names.get(name, name), *spread, *bytes_shown, *counted])
    return rows


def per_cell(costs: dict[str, dict[str, float]]) -> list[tuple[str, float, str]]:
    """What each cell costs in its life, by kind, and the unit."""
    case, read = costs["store a case"], costs["lease and label"]
    reads = 1 + TWICE
    old = costs["predict an old case"]
    return [
        ("API, storing: core time", case["api_seconds"], "s"),
        ("API, 1.2 leases and labels: core time", reads * read["api_seconds"], "s"),
        ("PostgreSQL, both: core time", case["postgres_seconds"] + reads * read["postgres_seconds"], "s"),
        ("predicting again, with PostgreSQL: core time", _all_seconds(old), "s"),
        ("scoring in shards, the tests' network: core time", costs["score an image"]["seconds"], "s"),
        ("evaluating in shards: core time", costs["evaluate a case"]["seconds"], "s"),
        ("database, tables", case["table_bytes"] + reads * read["table_bytes"], "B"),
        ("database, indexes", case["index_bytes"] + reads * read["index_bytes"], "B"),
        ("WAL", case["wal_bytes"] + reads * read["wal_bytes"], "B"),
        ("images in the bucket", case["bucket_bytes"], "B"),
        ("a snapshot per release", costs["snapshot"]["bytes"], "B"),
        ("requests that write to the bucket", case["bucket_puts"], ""),
        ("requests to list the bucket once", costs["list keys"]["requests_per_1000"] / 1000, ""),
        ("requests to the API", 1 + 2 * reads, ""),
    ]


def _all_seconds(cost: dict[str, float]) -> float:
    return cost.get("worker_seconds", 0.0) + cost["postgres_seconds"]


def room_rows(rows: list[dict[str, Any]]) -> list[list[str]]:
    """The simulated busiest minutes."""
    return [
        [
            row["cells"],
            f"{row['readers']:,}",
            f"{row['reads_per_second']:.3g}",
            f"{row['reading']:,.0f} of {row['present']:,}",
            f"{row['processes']:,}",
            f"{row['api_utilisation']:.2f}",
            f"{1000 * row['wait_median']:.0f}, {1000 * row['wait_99']:.0f} ms",
            f"{row['no_cell_median']:,.0f} s",
            f"{row['connections']:,}",
            f"{row['postgres_cores']:.2g}",
        ]
        for row in rows
    ]


def tables() -> str:
    """All four tables, as they stand in the document."""
    figures, rooms = newest("unit_costs")["figures"], newest("reading_rooms")
    costs = {name: figure for name, figure in figures.items() if "n" in figure}  # the rest is how they were measured
    unit_heads = ["one", "process", "PostgreSQL", "in the database", "WAL", "in files", "statements", "measured on"]
    cell_rows = [[what, *(shown(n * each, unit) for n in CELLS)] for what, each, unit in per_cell(costs)]
    room_heads = ["cells", "annotators", "reads per second", "reading of those present", "API processes", "their use"]
    room_heads += [
        "wait for the API, median and 99 %",
        "wait for a cell, median",
        "connections",
        "cores of PostgreSQL",
    ]
    walls = [[name, f"{float(f'{readers:.2g}'):,.0f}"] for name, readers in rooms["walls"].items()]
    return "\n".join(
        (
            table(unit_heads, unit_rows(costs)),
            table(["extrapolated", "10³ cells", "10⁶ cells", "10⁹ cells"], cell_rows),
            table(room_heads, room_rows(rooms["rows"])),
            table(["wall", "annotators on the staff"], walls),
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help="keep the tables in benchmarks/results")
    arguments = parser.parse_args()
    print(tables())
    if arguments.save:
        (RESULTS / f"{date.today()}_scale.md").write_text(tables())


if __name__ == "__main__":
    main()
