"""Coverage of a service's intervals by both designs of second reads: the service panels of `reproduce coverage` alone.

    python -m benchmarks.service_coverage --runs 4000 --design "all or audit" --out FILE.json

Estimates come from ``evaluate``, ``paired_changes`` and ``triage_recall`` as the service calls them; with 4,000 runs a
coverage of 95 % is known to ± .35 points (one standard error), a side of 2.5 % to ± .25.
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from ml.reproduce.coverage import SERVICE_SIZES, drawing, simulate
from ml.reproduce.coverage_worlds import designs, draw, of_a_service, truths


def main() -> None:
    """Simulate, print a table and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=4_000)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SERVICE_SIZES))
    parser.add_argument("--design", choices=["all or audit", "graded"], required=True)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    started = time.perf_counter()
    aims = truths(draw(4_000_000, np.random.default_rng([0, 1]), clustered=True))
    design = designs(np.random.default_rng([0, 2]), 40_000)[asked.design]
    rng, rows = np.random.default_rng([0, 3]), []
    print("| cases | estimator | truth | bias (± its error) | spread | coverage | truth above, below |")
    print("|---" * 7 + "|")
    for n_cases in asked.sizes:
        one = drawing(rng, clustered=True, design=design)
        found = simulate(asked.design, n_cases, asked.runs, one, of_a_service, aims, _progress)
        for row in found:
            print(
                f"| {n_cases:,} | {row.estimator} | {row.truth:.4f} | {row.bias:+.5f} (± {row.bias_se:.5f}) | "
                f"{row.spread:.4f} | {row.coverage:.3f} | {row.above:.3f}, {row.below:.3f} |",
                flush=True,
            )
        rows += [asdict(row) for row in found]
        document = {"seconds": round(time.perf_counter() - started), "runs": asked.runs, "rows": rows}
        asked.out.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def _progress(what: str, done: int, total: int) -> None:
    if done % 500 == 0:
        print(f"{what}: {done:,} of {total:,}", flush=True)


if __name__ == "__main__":
    main()
