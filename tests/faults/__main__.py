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


def run(marker: str, folder: Path) -> int:
    """Run the tests of faults; gives pytest's exit status."""
    command = [sys.executable, "-m", "pytest", "-q", "tests/faults", "-m", marker]
    return subprocess.run(command, env=os.environ | {"SECONDREAD_FAULTS_OUT": str(folder)}, check=False).returncode


def table(rows: list[dict[str, object]], flag: str) -> str:
    """The rows as Markdown."""
    lines = []
    for row in sorted(rows, key=lambda row: (str(row["fault"]), str(row["database"]))):
        seconds = row["recovery_seconds"]
        cells = [row[name] for name in ("fault", "what", "database", "rounds", "acknowledged", "lost", "duplicates")]
        cells += [row["server_errors"], "–" if seconds is None else f"{seconds:.1f} s"]
        lines.append("| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells) + " |\n")
    return _HEAD.format(flag=flag) + "".join(lines)


def main() -> int:
    """Run, print the table and write it to benchmarks/results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="as many rounds as the design asks for")
    arguments = parser.parse_args()
    stem = RESULTS / f"{date.today().isoformat()}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        status = run("heavy and not gpu" if arguments.full else "not heavy and not gpu", folder)
        rows = [json.loads(line) for line in (folder / ROWS).read_text().splitlines()]
        if (folder / "soak").exists():
            shutil.copytree(folder / "soak", f"{stem}_soak", dirs_exist_ok=True)
    text = table(rows, " --full" if arguments.full else "")
    Path(f"{stem}_faults.md").write_text(text)
    print(text)
    return status


if __name__ == "__main__":
    sys.exit(main())
