"""What a darker stain does to a release, and what recalibrating on new labels mends, through the service itself."""

import argparse
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

from experiments import RESULTS
from experiments.worlds.drifted_stain import AFTER, BEFORE, live
from ml.util.files import write_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        drift = live(Path(folder))
    for name, row in drift.rows().items():
        print(f"{name:<5}" + "".join(f"{key} {value:.4f}  " for key, value in row.items()))
    passed, reasons = drift.report["gate"]["passed"], drift.report["gate"]["reasons"]
    print("the gate lets it pass" if passed else f"the gate refuses: {'; '.join(reasons)}")
    if arguments.save:
        path = RESULTS / f"{date.today().isoformat()}_stain.json"
        cases = {"before": BEFORE, "drifted": AFTER, "evaluated": drift.report["n_evaluated"]}
        write_json(path, {"cases": cases, "rows": drift.rows(), "gate": {"passed": passed, "reasons": reasons}})


if __name__ == "__main__":
    main()
