"""Simulations and research scripts that no command reaches, outside the wheel; each makes a page of results."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ml.reproduce.report import Reproduction, Setting

#: Shared with the benchmarks: pages quote the newest result of a name.
RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"


def reproduce_from_arguments(name: str, what: str, run: "Callable[[Setting], Reproduction]") -> None:
    """Reproduce a page with its document and figures, as the command line asks."""
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("reproduced") / name, help="folder for the page and figures")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a short version, whose numbers mean nothing")
    options = parser.parse_args()
    from ml.reproduce.report import Setting, run_and_write

    run_and_write(Setting(name, options.out, (options.seed,), quick=options.quick), run)
    print((options.out / f"{name}.md").read_text())
