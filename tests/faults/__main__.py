"""``python -m tests.faults``: every fault with rounds that are counted, and the table of what they came to.

It takes minutes; ``--full`` takes hours (100 kills per database, half an hour of steady load).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

from tests.faults.rounds import ROWS

RESULTS = Path("benchmarks/results")
_HEAD = """# Faults: rounds, and what they came to

`python -m tests.faults{flag}`. Lost: acknowledged, and not in the database. Duplicates: stored twice. 5xx: answers of
500 and above but 503 and 507, which ask to come back. Recovery: until the service was ready again, the longest.

| fault | what was done | database | rounds | acknowledged | lost | duplicates | 5xx | recovery |
|---|---|---|---|---|---|---|---|---|
"""


def table(rows: list[dict[str, object]]) -> str:
    """The rows as Markdown."""
    lines = []
    for row in sorted(rows, key=lambda row: (str(row["fault"]), str(row["database"]))):
        seconds = row.pop("recovery_seconds")
        cells = [f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row.values()]
        lines.append("| " + " | ".join([*cells, "–" if seconds is None else f"{seconds:.1f} s"]) + " |\n")
    return "".join(lines)


def main() -> int:
    """Run the tests of faults, print the table and write it to benchmarks/results; gives pytest's exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="as many rounds as the design asks for")
    full = parser.parse_args().full
    stem = RESULTS / f"{date.today().isoformat()}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        marker = "heavy and not gpu" if full else "not heavy and not gpu"
        command = [sys.executable, "-m", "pytest", "-q", "tests/faults", "-m", marker]
        status = subprocess.run(command, env=os.environ | {"SECONDREAD_FAULTS_OUT": name}, check=False).returncode
        rows = [json.loads(line) for line in (folder / ROWS).read_text().splitlines()]
        if (folder / "soak").exists():
            shutil.copytree(folder / "soak", f"{stem}_soak", dirs_exist_ok=True)
    text = _HEAD.format(flag=" --full" if full else "") + table(rows)
    Path(f"{stem}_faults.md").write_text(text)
    print(text)
    return status


if __name__ == "__main__":
    sys.exit(main())
