"""Time and memory of named annotators: posteriors of 100,000 cases, and a fit of 50 annotators.

    python -m benchmarks.reader_speed --save

Posteriors of three labels and eight classes, beside the posterior that takes annotators as alike; a fit of 50
annotators on 20,000 labels at one strength, and with the strength chosen by left-out labels.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np

from ml.annotations import Annotations
from ml.annotators.choosing import choose_readers
from ml.annotators.fitting import Anchor, FitInputs, fit_readers
from ml.annotators.posterior import Opinions, named_posterior
from ml.distributions.families import DirichletCpe
from ml.reproduce.report import versions
from ml.util.arrays import FloatArray

CASES, LABELS, CLASSES, READERS = 100_000, 3, 8, 50
FITTED_CASES = 9_100


def matrices(rng: np.random.Generator) -> FloatArray:
    """Annotators of whom each says something else in up to 30 % of cases."""
    rate = rng.uniform(0, 0.3, READERS)[:, None, None]
    return np.asarray((1 - rate) * np.eye(CLASSES) + rate * (1 - np.eye(CLASSES)) / (CLASSES - 1))


def laboratory(per_case: FloatArray, rng: np.random.Generator) -> tuple[DirichletCpe, Annotations, FloatArray]:
    """Predictions, labels by random annotators, and the annotators' matrices."""
    n = len(per_case)
    prior = DirichletCpe(rng.dirichlet(np.full(CLASSES, 0.3), size=n), np.full(n, np.log(3.0)))
    gammas = rng.standard_gamma(np.maximum(3.0 * prior.class_probs, 1e-3)) + 1e-12
    opinions = gammas / gammas.sum(axis=1, keepdims=True)
    case = np.repeat(np.arange(n), per_case.astype(np.int64))
    annotator, confusions = rng.integers(READERS, size=len(case)), matrices(rng)
    chances = np.einsum("mk,mkl->ml", opinions[case], confusions[annotator]).cumsum(axis=1)
    label = (rng.uniform(size=len(case))[:, None] > chances[:, :-1]).sum(axis=1)
    return prior, Annotations(case, annotator, label, n, READERS, CLASSES), confusions


def timed(work: Callable[[], object], repeats: int = 3) -> dict[str, float]:
    """Least wall and processor seconds."""
    wall, cpu = [], []
    for _ in range(repeats):
        begun = time.perf_counter(), time.process_time()
        work()
        wall.append(time.perf_counter() - begun[0])
        cpu.append(time.process_time() - begun[1])
    return {"wall_s": min(wall), "cpu_s": min(cpu)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    prior, long, confusions = laboratory(np.full(CASES, float(LABELS)), rng)
    opinions, counts = Opinions.of(prior), long.counts()
    fit_prior, fit_long, _ = laboratory(
        rng.choice((1.0, 2.0, 3.0, 4.0), p=(0.3, 0.35, 0.2, 0.15), size=FITTED_CASES), rng
    )
    material, names = FitInputs(Opinions.of(fit_prior), fit_long), [f"reader {number}" for number in range(READERS)]
    works: dict[str, tuple[Callable[[], object], int]] = {
        "posterior, alike": (lambda: prior.posterior(counts).disagreement_probs, 3),
        "posterior, named": (lambda: named_posterior(opinions, long, confusions), 3),
        "fit, one strength": (lambda: fit_readers(material, Anchor(np.eye(CLASSES), 30.0)), 1),
        "fit, strength chosen": (lambda: choose_readers(fit_prior, fit_long, names), 1),
    }
    rows = {}
    for name, (work, repeats) in works.items():
        rows[name] = timed(work, repeats)
        print(f"{name:22} {rows[name]['wall_s']:8.2f} s, {rows[name]['cpu_s']:8.2f} s of processors", flush=True)
    ratio = rows["posterior, named"]["cpu_s"] / rows["posterior, alike"]["cpu_s"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"named / alike {ratio:.1f}; peak memory {peak:.0f} MB; {len(fit_long.case):,} labels fitted")
    if arguments.save:
        document = {
            "command": "python -m benchmarks.reader_speed --save",
            "cases": CASES,
            "labels_per_case": LABELS,
            "classes": CLASSES,
            "readers": READERS,
            "labels_fitted": len(fit_long.case),
            "rows": rows,
            "named_over_alike": ratio,
            "peak_memory_mb": peak,
            "versions": versions(),
        }
        path = Path(__file__).parent / "results" / f"{date.today()}_reader_speed.json"
        path.write_text(json.dumps(document, indent=1) + "\n")
        print(f"saved {path}")


if __name__ == "__main__":
    main()
