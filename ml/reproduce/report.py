"""Reproductions by name, each written as a Markdown page, a JSON document and figures, with seeds and versions."""

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from altair.typing import ChartType

from ml.charts.reliability import write_chart
from ml.util.files import write_bytes_atomically, write_json

Truth = Literal["exact", "counts"]
#: Called with what is being done, steps done and steps in all.
Observer = Callable[[str, int, int], None]
#: What can be reproduced, and the module that does it.
MODULES = {
    "debias": "debias",
    "mix-mnist": "synthetic",
    "mix-cifar10": "synthetic",
    "cifar10h": "human_labels",
    "coverage": "coverage",
}
NAMES = tuple(MODULES)


def show_nothing(what: str, done: int, total: int) -> None:
    """Observe without showing anything."""


@dataclass(frozen=True)
class Setting:
    """One call of ``secondread reproduce``; ``out`` keeps runs to resume."""

    name: str
    out: Path
    seeds: tuple[int, ...] = (0,)
    quick: bool = False
    truth: Truth = "exact"
    device: str = "auto"
    network: str | None = None
    from_outputs: Path | None = None
    observer: Observer = show_nothing


@dataclass(frozen=True)
class Reproduction:
    """Results: heading, rows, Markdown, charts, further entries."""

    what: str
    rows: Sequence[Mapping[str, object]]
    text: str
    charts: Mapping[str, ChartType]
    further: Mapping[str, object] = field(default_factory=dict)


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    numbers = {"python": platform.python_version()}
    for name in ("secondread", "numpy", "scipy", "torch"):
        try:
            numbers[name] = version(name)
        except PackageNotFoundError:  # torch is in the extra [train] only
            continue
    return numbers


def reproduce(setting: Setting) -> Mapping[str, object]:
    """Reproduce a figure or table by its name."""
    if setting.name not in NAMES:
        raise ValueError(f"unknown reproduction {setting.name!r}; there are {', '.join(NAMES)}")
    run: Callable[[Setting], Reproduction] = import_module(f"ml.reproduce.{MODULES[setting.name]}").reproduce
    return run_and_write(setting, run)


def run_and_write(setting: Setting, run: Callable[[Setting], Reproduction]) -> Mapping[str, object]:
    """Write documents and figures of a reproduction; return the JSON."""
    setting.out.mkdir(parents=True, exist_ok=True)
    result, used = run(setting), versions()
    document: Mapping[str, object] = {
        "name": setting.name,
        "what": result.what,
        "seeds": list(setting.seeds),
        "quick": setting.quick,
        "truth": setting.truth,
        "versions": used,
        "rows": result.rows,
        **result.further,
    }
    write_json(setting.out / f"{setting.name}.json", document)
    for name, chart in result.charts.items():
        write_chart(chart, setting.out / f"{name}.svg")
    packages = ", ".join(f"{package} {number}" for package, number in used.items())
    seeds = ", ".join(str(seed) for seed in setting.seeds)
    short = " A quick version: its numbers only show that everything runs." if setting.quick else ""
    figures = "".join(f"\n![{name.replace('_', ' ')}]({name}.svg)\n" for name in result.charts)
    page = f"# {result.what}\n\nSeeds {seeds}; {packages}.{short}\n\n{result.text}\n{figures}"
    write_bytes_atomically(setting.out / f"{setting.name}.md", page.encode())
    return document
