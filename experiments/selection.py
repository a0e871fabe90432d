"""What weighting by the plan undoes: EL, CL and L_φ where triage chose the second reads, against complete labelling."""

import argparse
import sys
from datetime import date

from experiments import RESULTS
from experiments.worlds.laboratory import Outcome, live, table
from ml.util.files import write_json

FIRST_SEED = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--laboratories", type=int, default=200)
    parser.add_argument("--cases", type=int, default=4000)
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    arguments = parser.parse_args()
    outcomes: list[Outcome] = []
    for seed in range(FIRST_SEED, FIRST_SEED + arguments.laboratories):
        outcomes.append(live(seed, arguments.cases))
        print(f"\r{len(outcomes)} of {arguments.laboratories} laboratories", end="", file=sys.stderr)
    print(file=sys.stderr)
    rows = table(outcomes)
    for name, row in rows.items():
        print(f"{name:<4}" + "".join(f"{key} {value:+9.4f}  " for key, value in row.items()))
    if arguments.save:
        path = RESULTS / f"{date.today().isoformat()}_selection.json"
        write_json(path, {"laboratories": arguments.laboratories, "cases": arguments.cases, "rows": rows})


if __name__ == "__main__":
    main()
