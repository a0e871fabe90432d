"""Reproductions by name, each written as a Markdown page, a JSON document and figures, with seeds and versions."""

import platform
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from ml.charts.reliability import write_chart
from ml.reproduce.setting import Reproduction, Setting
from ml.util.files import write_bytes_atomically, write_json

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
    numbers = {"python": platform.python_version()}
    for name in ("secondread", "numpy", "scipy", "torch"):
        try:
            numbers[name] = version(name)
        except PackageNotFoundError:  # torch is in the extra [train] only
            continue
    return numbers


def reproduce(setting: Setting) -> Mapping[str, object]:
    """Reproduce a figure or table.

    Args:
        setting: what, where, and how; the folder receives ``<name>.md``, ``<name>.json`` and the figures.

    Returns:
        The JSON document: name, what, seeds, quick, truth, versions, rows, and what only this reproduction has.

    Raises:
        ValueError: an unknown name, or data that are not on this machine.
    """
    if setting.name not in NAMES:
        raise ValueError(f"unknown reproduction {setting.name!r}; there are {', '.join(NAMES)}")
    setting.out.mkdir(parents=True, exist_ok=True)
    run: Callable[[Setting], Reproduction] = import_module(f"ml.reproduce.{MODULES[setting.name]}").reproduce
    result = run(setting)
    used = versions()
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
    write_bytes_atomically(setting.out / f"{setting.name}.md", _page(setting, used, result).encode())
    return document


def _page(setting: Setting, used: dict[str, str], result: Reproduction) -> str:
    packages = ", ".join(f"{package} {number}" for package, number in used.items())
    seeds = ", ".join(str(seed) for seed in setting.seeds)
    short = " A quick version: its numbers only show that everything runs." if setting.quick else ""
    figures = "".join(f"\n![{name.replace('_', ' ')}]({name}.svg)\n" for name in result.charts)
    return f"# {result.what}\n\nSeeds {seeds}; {packages}.{short}\n\n{result.text}\n{figures}"
