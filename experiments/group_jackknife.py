"""Errors from groups of patients beside those from patients: their ratio, the coverage of intervals, and memory.

    python -m experiments.group_jackknife --runs 1000 --save

Cells of a patient share the patient's class probabilities. Beside each interval of groups stands the one by patients of
the same draw (``evaluate`` in memory, every patient left out in turn); the truth is the mean of 400 further draws, with
fifty times as many patients. Memory is the peak of a process that goes through so many rows batch by batch.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from datetime import date
from typing import Any

import numpy as np
from rich.progress import Progress

from experiments import RESULTS
from ml.metrics import Estimate, evaluate
from ml.metrics.accumulator import GroupSums
from ml.metrics.evaluation import evaluate_groups
from ml.util.arrays import FloatArray, IntArray

SHOWN = ("L", "EL", "CL", "DL", "L_D", "CL_D", "skill", "skill_D", "agreement")
GOAL_RATIO, GOAL_COVERAGE = (0.9, 1.1), (0.93, 0.97)
GROUPS = (100, 400)
N_CLASSES, N_PATIENTS, N_CASES = 8, 2_000, 8_000
ROWS = (10**5, 10**6, 10**7, 10**8)


def draw(rng: np.random.Generator, n_patients: int = N_PATIENTS, n_cases: int = N_CASES) -> tuple[Any, ...]:
    """Label counts (n, K) of one to four labels, predictions that are too sure, DPEs, and patients."""
    patient = rng.integers(n_patients, size=n_cases)
    own = rng.dirichlet(np.full(N_CLASSES, 0.4), n_patients)[patient]
    truth = 0.7 * own + 0.3 * rng.dirichlet(np.full(N_CLASSES, 0.4), n_cases)
    counts: IntArray = rng.multinomial(rng.integers(1, 5, n_cases), truth)
    sharp = truth**1.3 + 1e-3
    probs: FloatArray = sharp / sharp.sum(axis=1, keepdims=True)
    dpe = np.clip(1.1 * (1 - (probs**2).sum(axis=1)), 0, 1)
    return counts, probs, dpe, patient


def by_groups(columns: tuple[Any, ...], n_groups: int) -> dict[str, Estimate]:
    sums = GroupSums(N_CLASSES, by_patient=True, n_groups=n_groups)
    sums.add(*columns[:3], units=columns[3])
    return evaluate_groups(sums, sums).metrics


def by_patients(columns: tuple[Any, ...]) -> dict[str, Estimate]:
    counts, probs, dpe, patient = columns
    return evaluate(counts, probs, disagreement_probs=dpe, cluster=patient).metrics


def aims(draws: int = 400) -> dict[str, float]:
    """Values over draws fifty times as large, each patient's cells apart."""
    values = []
    for seed in range(draws):
        sums = GroupSums(N_CLASSES, by_patient=False)
        columns = draw(np.random.default_rng([1, seed]), 50 * N_PATIENTS, N_CASES)
        sums.add(*columns[:3], units=columns[3])
        values.append({name: row.value for name, row in evaluate_groups(sums, sums).metrics.items()})
    return {name: float(np.mean([row[name] for row in values])) for name in SHOWN}


def simulate(runs: int) -> dict[str, Any]:
    """Coverage and the ratio of standard errors, by metric and number of groups."""
    truth = aims()
    held: dict[str, dict[str, int]] = {name: {} for name in SHOWN}
    ratios: dict[str, dict[str, list[float]]] = {name: {str(g): [] for g in GROUPS} for name in SHOWN}
    with Progress(transient=True) as bar:
        for run in bar.track(range(runs), description="laboratories"):
            columns = draw(np.random.default_rng([2, run]))
            exact = by_patients(columns)
            found = {"patients": exact} | {str(g): by_groups(columns, g) for g in GROUPS}
            for name in SHOWN:
                for how, metrics in found.items():
                    low, high = metrics[name].low or 0.0, metrics[name].high or 0.0
                    held[name][how] = held[name].get(how, 0) + bool(low <= truth[name] <= high)
                    if how != "patients":
                        ratios[name][how].append((metrics[name].se or 0.0) / (exact[name].se or 1.0))
    return {
        name: {
            "truth": truth[name],
            "coverage": {how: count / runs for how, count in held[name].items()},
            "ratio": {how: [float(np.mean(r)), *np.quantile(r, [0.025, 0.975])] for how, r in ratios[name].items()},
            "within": {
                how: float(np.mean([GOAL_RATIO[0] <= one <= GOAL_RATIO[1] for one in r]))
                for how, r in ratios[name].items()
            },
        }
        for name in SHOWN
    }


def through(rows: int) -> dict[str, float]:
    """Peak memory in MB and seconds of a pass over so many rows, of which a batch is drawn at a time."""
    batch = 50_000
    columns = draw(np.random.default_rng(0), n_cases=batch)
    sums, start = GroupSums(N_CLASSES, by_patient=True), time.perf_counter()
    for _ in range(rows // batch):
        sums.add(*columns[:3], units=columns[3])
    evaluate_groups(sums, sums)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rows": rows, "peak_mb": round(peak, 1), "seconds": round(time.perf_counter() - start, 2)}


def memory() -> list[dict[str, float]]:
    found = []
    for rows in ROWS:
        command = [sys.executable, "-m", "experiments.group_jackknife", "--through", str(rows)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout))
        print(found[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--through", type=int, help="go through so many rows and print the peak of memory")
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    options = parser.parse_args()
    if options.through:
        print(json.dumps(through(options.through)))
        return
    found = simulate(options.runs)
    print(
        f"{'metric':<10} {'coverage in per cent: patients':>30} {'100':>6} {'400':>6}   ratio of errors, 2.5 to 97.5 %"
    )
    for name, row in found.items():
        shares = "".join(f"{100 * row['coverage'][how]:>7.1f}" for how in ("100", "400"))
        spread = "   ".join(
            f"{g}: {row['ratio'][str(g)][0]:.3f} ({row['ratio'][str(g)][1]:.2f} to {row['ratio'][str(g)][2]:.2f})"
            for g in GROUPS
        )
        print(f"{name:<10} {100 * row['coverage']['patients']:>30.1f}{shares}   {spread}")
    document = {
        "date": date.today().isoformat(),
        "runs": options.runs,
        "goal": {"ratio": GOAL_RATIO, "coverage": GOAL_COVERAGE},
        "metrics": found,
        "memory": memory(),
    }
    if options.save:
        path = RESULTS / f"{date.today().isoformat()}_group_jackknife.json"
        path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
