"""Windows of work by one or more processes, and what they say as ratios: used by ``scaling.py``."""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CORES = len(os.sched_getaffinity(0))
#: Whose processor time is counted apart, in the order of the tables.
PARTS = ("process", "PostgreSQL", "bucket", "generator")
Meters = Mapping[str, Callable[[], float]]
Figures = dict[str, float]
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Window:
    """What was done in a while.

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
        """Cores in use by whatever else runs here: where there are some, the ratios are too small."""
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


def in_turn(counts: Sequence[int], rounds: int) -> Iterator[list[int]]:
    """The numbers of processes in each round, beginning with another one each time, so that none is always last.

    >>> list(in_turn((1, 2, 4), 2))
    [[1, 2, 4], [2, 4, 1]]
    """
    for number in range(rounds):
        at = number % len(counts)
        yield [*counts[at:], *counts[:at]]


def summary(rounds: list[dict[int, Window]]) -> dict[str, Figures]:
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


def _figures(n: int, window: Window, alone: Window) -> Figures:
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


def table_of(rows: dict[str, Figures], called: str) -> str:
    """One kind of work by number of processes.

    Args:
        rows: as of ``summary``.
        called: what the processes are.
    """
    parts = [part for part in PARTS if any(f"{part} ms" in row for row in rows.values())]
    names = ["per second", "ratio", *(f"{part} ms" for part in parts), "cores", "by others"]
    names += ["at most on these cores", "with cores added", "cores needed"]
    heads = [called, "per second", "to one", *(f"{part}, ms each" for part in parts)]
    heads += [f"cores in use of {CORES}", "by other programs", f"at most on {CORES} cores (computed)"]
    heads += ["with cores added (computed)", "cores for that (computed)"]
    return table(heads, [[n, *(digits(row.get(name)) for name in names)] for n, row in rows.items()])


def limits_of(rows: dict[str, Figures], called: str) -> str:
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
