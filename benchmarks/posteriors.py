"""Posterior class probabilities of a million cases, of 22 classes and one to three labels each.

    python -m benchmarks.posteriors --save

Of a single Dirichlet each, as releases with a head give them; beside it the same by adding counts to α, which is the
least that could do: mean class probabilities alone, and none where α0 is beyond float64.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np

from ml.distributions.families import DirichletCpe
from ml.util.arrays import FloatArray

CASES, CLASSES, ROUNDS = 1_000_000, 22, 5


def seconds(work: Callable[[], object]) -> float:
    """Of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(n_cases: int, rounds: int) -> dict[str, float]:
    """Medians over rounds, the two in turn."""
    rng = np.random.default_rng(5)
    probs = rng.dirichlet(np.full(CLASSES, 0.5), n_cases)
    log_concentration = rng.normal(1.0, 1.0, n_cases)
    counts = rng.multinomial(1, probs) + rng.multinomial(1, probs) * (rng.random((n_cases, 1)) < 0.5)
    prior = DirichletCpe(probs, log_concentration)

    def by_adding() -> FloatArray:
        alpha = np.exp(log_concentration)[:, None] * probs + counts
        return np.asarray(alpha / alpha.sum(axis=1, keepdims=True))

    ours, plain = [], []
    for _ in range(rounds):
        ours.append(seconds(lambda: prior.posterior(counts)))
        plain.append(seconds(by_adding))
    np.testing.assert_allclose(prior.posterior(counts).class_probs, by_adding(), atol=1e-9)
    return {"posteriors (s)": statistics.median(ours), "adding counts to α (s)": statistics.median(plain)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    options = parser.parse_args()
    found = measure(options.cases, options.rounds)
    for name, value in found.items():
        print(f"{value:8.3f}  {name}")
    if options.save:
        path = Path(__file__).parent / "results" / f"{date.today().isoformat()}_posteriors.json"
        machine = {"machine": f"2 cores, {platform.machine()}", "cases": options.cases}
        path.write_text(json.dumps(machine | {"figures": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
