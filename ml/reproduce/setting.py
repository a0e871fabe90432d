"""Arguments and results of a reproduction."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from altair.typing import ChartType

Truth = Literal["exact", "counts"]
#: Called with what is being done, steps done and steps in all.
Observer = Callable[[str, int, int], None]


def _silent(what: str, done: int, total: int) -> None:
    """Show nothing."""


@dataclass(frozen=True)
class Setting:
    """One call of ``secondread reproduce``.

    Attributes:
        name: what to reproduce.
        out: folder for results, and for what is kept to resume from.
        seeds: of training and of everything random.
        quick: a short version.
        truth: score simulated labels against the exact probabilities, or against the label counts.
        device: where networks run.
        network: another network than the full run's, where a smaller machine must do.
        observer: shows progress.
    """

    name: str
    out: Path
    seeds: tuple[int, ...] = (0,)
    quick: bool = False
    truth: Truth = "exact"
    device: str = "auto"
    network: str | None = None
    observer: Observer = _silent


@dataclass(frozen=True)
class Reproduction:
    """Results.

    Attributes:
        what: heading.
        rows: results as JSON values; each reproduction has its own.
        text: Markdown below the heading.
        charts: file name → chart.
        further: more entries of the JSON document.
    """

    what: str
    rows: Sequence[Mapping[str, object]]
    text: str
    charts: Mapping[str, ChartType]
    further: Mapping[str, object] = field(default_factory=dict)
