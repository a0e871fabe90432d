"""How often annotators who are alike are called different, where readings of one patient hang together.

The world: patients with 15 cells of two classes, three annotators who read every cell; each leans to one class in one
patient and to the other in the next (``lean``), which makes them no different on average; or the first of them says the
second class more often everywhere (``moved``). Compared: permuting identities case by case, as before, and turning
whole patients. ``--save`` keeps the figures in ``results/``.
"""

import json
import sys
from datetime import date
from pathlib import Path

import numpy as np

from ml.agreement.coefficients import rater_marginal_test
from ml.metrics.reader_test import reader_test

RUNS, PERMUTATIONS, CELLS = 1000, 199, 15
LEVEL = 0.05


def readings(seed: int, lean: float, moved: float, patients: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels (N, 3) and the patient (N,) of each cell."""
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(patients), CELLS)
    truth = rng.uniform(0.3, 0.7, patient.size)[:, None]
    leaning = rng.choice((-lean, lean), (patients, 3))[patient]
    chance = np.clip(truth + leaning + np.array([moved, 0, 0]), 0, 1)
    return (rng.random(chance.shape) < chance).astype(np.int64), patient


def rejections(lean: float, moved: float, patients: int) -> tuple[float, float]:
    """Share of runs in which each test rejects at 5 %: case by case, and by patient."""
    old = new = 0
    for seed in range(RUNS):
        labels, patient = readings(seed, lean, moved, patients)
        case, annotator = np.nonzero(labels >= 0)
        given = (case, annotator, labels[case, annotator], patient[case])
        old += rater_marginal_test(labels, 2, permutations=PERMUTATIONS, seed=seed).p_value <= LEVEL
        new += reader_test(*given, permutations=PERMUTATIONS, seed=seed).p_value <= LEVEL
    return old / RUNS, new / RUNS


def main() -> None:
    rows = []
    print(f"{RUNS} runs, {CELLS} cells a patient; Monte-Carlo error at 5 %: {100 * np.sqrt(0.0475 / RUNS):.1f} %")
    print(f"{'patients':>8} {'lean':>6} {'moved':>6} {'case by case':>14} {'by patient':>12}")
    for patients in (8, 24):
        for lean, moved in ((0.0, 0.0), (0.1, 0.0), (0.2, 0.0), (0.0, 0.1), (0.1, 0.1), (0.2, 0.2)):
            old, new = rejections(lean, moved, patients)
            print(f"{patients:>8} {lean:>6} {moved:>6} {old:>14.3f} {new:>12.3f}", flush=True)
            rows.append({"patients": patients, "lean": lean, "moved": moved, "case by case": old, "by patient": new})
    if "--save" in sys.argv:
        path = Path(__file__).parent / "results" / f"{date.today().isoformat()}_reader_differences.json"
        document = {"date": date.today().isoformat(), "runs": RUNS, "level": LEVEL, "permutations": PERMUTATIONS}
        path.write_text(json.dumps(document | {"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
