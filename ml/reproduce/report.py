"""Reports of reproductions: a Markdown page, a JSON document and a figure, with seed and versions."""

import platform
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ml.plots import debias_figure, write_chart
from ml.reproduce import debias
from ml.run_folder import write_bytes_atomically, write_json

#: What can be reproduced.
NAMES = ("debias",)


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    packages = {name: version(name) for name in ("secondread", "numpy", "scipy")}
    return {"python": platform.python_version(), **packages}


def reproduce(
    name: str,
    out: Path,
    *,
    seed: int = 0,
    quick: bool = False,
    observer: Callable[[int, int], None] = lambda d, t: None,
) -> dict[str, Any]:
    """Reproduce a figure or table of the paper.

    Args:
        name: one of ``NAMES``.
        out: folder that receives ``<name>.md``, ``<name>.json`` and ``<name>.svg``.
        seed: of everything random.
        quick: a short version.
        observer: called with steps done and in all.

    Returns:
        The JSON document.

    Raises:
        ValueError: an unknown name.
    """
    if name not in NAMES:
        raise ValueError(f"unknown reproduction {name!r}; there are {', '.join(NAMES)}")
    rows = debias.run(seed, quick=quick, observer=observer)
    document: dict[str, Any] = {
        "name": name,
        "what": "Figure 2: EL and CL of a perfect predictor, whose truth is 0",
        "seed": seed,
        "quick": quick,
        "versions": versions(),
        "rows": [asdict(row) for row in rows],
    }
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / f"{name}.json", document)
    used = ", ".join(f"{package} {number}" for package, number in document["versions"].items())
    head = (
        f"# {document['what']}\n\nSeed {seed}; {used}. In brackets: distance from 0 in Monte-Carlo standard errors.\n\n"
    )
    write_bytes_atomically(out / f"{name}.md", (head + debias.markdown(rows) + "\n").encode())
    write_chart(debias_figure(document["rows"]), out / f"{name}.svg")
    return document
