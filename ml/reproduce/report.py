"""Reproductions by name, each written as a Markdown page, a JSON document and figures, with seeds and versions."""

import platform
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ml.charts.reliability import write_chart
from ml.files import write_bytes_atomically, write_json
from ml.reproduce.setting import Reproduction, Setting

#: What can be reproduced, and the module that does it.
MODULES = {
    "debias": "debias",
    "mix-mnist": "synthetic_report",
    "mix-cifar10": "synthetic_report",
    "cifar10h": "human_labels",
    "pbc-nucleus": "nucleus",
    "lidc": "nodules",
    "theorem-1": "theorem",
    "coverage": "coverage",
}
NAMES = tuple(MODULES)


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    found = {"python": platform.python_version()}
    for name in ("secondread", "numpy", "scipy", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # torch is in the extra [train] only
            continue
    return found


def reproduce(setting: Setting) -> dict[str, Any]:
    """Reproduce a figure or table.

    Args:
        setting: what, where, and how; the folder receives ``<name>.md``, ``<name>.json`` and the figures.

    Returns:
        The JSON document.

    Raises:
        ValueError: an unknown name, or data that are not on this machine.
    """
    if setting.name not in NAMES:
        raise ValueError(f"unknown reproduction {setting.name!r}; there are {', '.join(NAMES)}")
    setting.out.mkdir(parents=True, exist_ok=True)
    run: Callable[[Setting], Reproduction] = import_module(f"ml.reproduce.{MODULES[setting.name]}").reproduce
    found = run(setting)
    document: dict[str, Any] = {
        "name": setting.name,
        "what": found.what,
        "seeds": list(setting.seeds),
        "quick": setting.quick,
        "truth": setting.truth,
        "versions": versions(),
        "rows": found.rows,
        **found.further,
    }
    write_json(setting.out / f"{setting.name}.json", document)
    for name, chart in found.charts.items():
        write_chart(chart, setting.out / f"{name}.svg")
    write_bytes_atomically(setting.out / f"{setting.name}.md", _page(document, found).encode())
    return document


def _page(document: dict[str, Any], found: Reproduction) -> str:
    used = ", ".join(f"{package} {number}" for package, number in document["versions"].items())
    seeds = ", ".join(str(seed) for seed in document["seeds"])
    short = " A quick version: its numbers only show that everything runs." if document["quick"] else ""
    figures = "".join(f"\n![{name.replace('_', ' ')}]({name}.svg)\n" for name in found.charts)
    return f"# {found.what}\n\nSeeds {seeds}; {used}.{short}\n\n{found.text}\n{figures}"
