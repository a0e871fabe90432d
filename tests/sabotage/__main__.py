"""Undo each control and see its test fail: ``python -m tests.sabotage [NAME …]``."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.sabotage.patches import SabotageError, copy_sources, run, sabotages


def main() -> int:
    """Print a line per sabotage.

    Returns:
        1 where a control can be undone without its test failing, or a patch does not apply; else 0.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.sabotage", description=__doc__)
    parser.add_argument("names", nargs="*", help="patches without .patch; all where left out")
    parser.add_argument("--named", action="store_true", help="run the named tests only, not the rest of their files")
    arguments = parser.parse_args()
    names = arguments.names
    every = {sabotage.name: sabotage for sabotage in sabotages()}
    if unknown := sorted(set(names) - set(every)):
        parser.error(f"no such patch: {', '.join(unknown)}; there are {', '.join(every)}")
    unnoticed = 0
    print("| threat | control | test | result |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="sabotage-") as folder:
        sources = copy_sources(Path(folder))
        for name in names or every:
            sabotage = every[name]
            try:
                outcome = run(sabotage, sources, others=not arguments.named)
                result = f"not noticed by {', '.join(outcome.passed)}" if outcome.passed else "red"
                result += f", and {len(outcome.others)} more" if outcome.others else ""
                unnoticed += bool(outcome.passed)
            except SabotageError as error:
                unnoticed, result = unnoticed + 1, str(error)
            tests = " ".join(f"`{test}`" for test in sabotage.red)
            print(f"| {sabotage.threat} | {sabotage.control} | {tests} | {result} |", flush=True)
    return min(unnoticed, 1)


if __name__ == "__main__":
    sys.exit(main())
