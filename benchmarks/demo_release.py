"""How long the release of the simulated demo takes, from the start of Python: simulate, train, calibrate, export.

    python -m benchmarks.demo_release --save

Each round is a process of its own in a new folder, as ``secondread demo --train`` begins; what follows there, filling
the laboratory, is not part of it. The goal is 20 s on two idle cores.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from itertools import pairwise
from pathlib import Path

GOAL_SECONDS = 20.0
_PROGRAM = """
import json, sys, time
from pathlib import Path
marks = [("start", float(sys.argv[2]))]
def say(line):
    marks.append((line, time.time()))
from app.demo.filling import make_release
make_release(Path(sys.argv[1]) / "run", Path(sys.argv[1]) / "release", say)
say("end")
report = json.loads((Path(sys.argv[1]) / "run" / "calibration_report.json").read_text())
print(json.dumps({"marks": marks, "held_out": report["held_out"]["with concentration head"]}))
"""


def measure() -> dict[str, float]:
    """Seconds of each part of one run, and what the release is worth on held-out cells."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _PROGRAM, folder, str(time.time())]
        # as many threads as somebody's own shell would give it
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        quiet = subprocess.DEVNULL
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=quiet, check=True, text=True, env=environment)
    told = json.loads(done.stdout.splitlines()[-1])
    marks = [(name.removeprefix("demo: ").partition(",")[0], when) for name, when in told["marks"]]
    parts = {name: after - when for (name, when), (_, after) in pairwise(marks)}
    quality = {f"held out: {name}": told["held_out"][name]["value"] for name in ("L", "agreement", "CE_D")}
    return {**parts, "all": marks[-1][1] - marks[0][1], **quality}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/DATE_demo_release.json")
    options = parser.parse_args()
    rounds = [measure() for _ in range(options.rounds)]
    found = {name: statistics.median(row[name] for row in rounds) for name in rounds[0]}
    for name, value in found.items():
        print(f"{name:<60}{value:8.3f}")
    print(f"goal: {GOAL_SECONDS:.0f} s on two idle cores; load of a minute {os.getloadavg()[0]:.1f}")
    if options.save:
        machine = {"machine": f"{os.cpu_count()} cores, {platform.machine()}", "load": os.getloadavg()[0]}
        path = Path(__file__).parent / "results" / f"{date.today().isoformat()}_demo_release.json"
        path.write_text(json.dumps(machine | {"goal_seconds": GOAL_SECONDS, "seconds": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
