"""How long the shares of specimens take: 100 specimens of 200 cells, and one specimen after a label, processor time."""

import time

import numpy as np

from benchmarks.harness import Figures, main
from ml.distributions.families import DirichletCpe
from ml.specimens.cells import Group, Specimen, Threshold
from ml.specimens.shares import measure_specimen

N_SPECIMENS, N_CELLS, ROUNDS = 100, 200, 5


def specimens(n_classes: int, count: int) -> list[Specimen]:
    """Simulated specimens whose mixes differ, with experts who disagree."""
    rng, mix = np.random.default_rng(n_classes), np.full(n_classes, 1 / n_classes)
    cells, classes = tuple(f"{row:03d}" for row in range(N_CELLS)), tuple(f"{k:02d}" for k in range(n_classes))
    result = []
    for number in range(count):
        kinds = rng.choice(n_classes, N_CELLS, p=rng.dirichlet(2 * mix))
        evidence = rng.normal(0, 1.2, (N_CELLS, n_classes))
        evidence[np.arange(N_CELLS), kinds] += 6
        probs = np.exp(evidence) / np.exp(evidence).sum(axis=1, keepdims=True)
        prior = DirichletCpe(probs, np.full(N_CELLS, np.log(3.0)))
        result.append(Specimen(str(number), cells, classes, prior, mix))
    return result


def seconds(some: list[Specimen]) -> float:
    """Processor seconds of all shares, each class a group with two thresholds."""
    groups = [Group(code, (code,), (Threshold(0.05), Threshold(0.2))) for code in some[0].classes]
    begin = time.process_time()
    for one in some:
        measure_specimen(one, groups)
    return time.process_time() - begin


def measure(quick: bool) -> Figures:
    """Seconds of many specimens, and milliseconds of one by number of classes."""
    many = specimens(8, 4 if quick else N_SPECIMENS)
    figures: Figures = {"specimens": len(many), "cells": N_CELLS, "8 classes (s)": seconds(many)}
    for n_classes in (8, 22):
        one = specimens(n_classes, 1)
        figures[f"one of {n_classes} classes (ms)"] = 1e3 * float(np.median([seconds(one) for _ in range(ROUNDS)]))
    return figures


if __name__ == "__main__":
    main(__doc__, {"specimens": measure})
