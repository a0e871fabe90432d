"""Bias of the pair form of CL under triage, where bins without a pair are left out, not counted, or joined to others.

    python -m experiments.pair_form --runs 8000 --out FILE.json

Simulated laboratories (``experiments/worlds/laboratory.py``), a tenth of the cases read twice for certain and a
tenth of the others; CL on cases with two labels and CL_φ, 15 bins; the truth comes from cases with known
probabilities.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from experiments.worlds.laboratory import AUDIT_RATE, CLASSES, open_laboratory
from ml.metrics import exact_metrics
from ml.metrics.binned import Binned, contributions, usable_bins
from ml.metrics.cases import class_frequencies, observed_disagreement, select_sample

FORMS = ("left out", "not counted", "joined")


def forms(binned: Binned) -> list[float]:
    """CL by each treatment of bins without a pair; the last is what the library says."""
    bins, first = binned.bins, binned.slots.first[:-1]
    losses = np.add.reduceat(contributions(bins, "pair"), first)
    whole, used = (np.add.reduceat(part, first) for part in (bins.weight, np.where(usable_bins(bins), bins.weight, 0)))
    return [float((losses / whole).sum()), float((losses / np.maximum(used, 1e-300)).sum()), binned.value("pair")]


def main() -> None:
    """Simulate, print relative biases with their errors, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=8_000)
    parser.add_argument("--cases", type=int, default=1_000)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    large = [open_laboratory(10**7 + seed, 100_000) for seed in range(20)]
    above = float(np.quantile(np.concatenate([lab.prediction.disagreement_probs for lab in large]), 0.9))
    exact = [
        exact_metrics(lab.true_probs, lab.prediction.class_probs, lab.prediction.disagreement_probs) for lab in large
    ]
    found: dict[str, list[list[float]]] = {"CL": [], "CL_D": []}
    for run in range(asked.runs):
        lab = open_laboratory(run, asked.cases)
        pi = np.where(lab.prediction.disagreement_probs > above, 1.0, AUDIT_RATE)
        sample = select_sample(lab.u < pi, 1 / pi, lab.cluster)
        counts = np.eye(CLASSES, dtype=np.int64)[lab.labels[sample.rows]].sum(axis=1)
        by_class = class_frequencies(counts), lab.prediction.class_probs[sample.rows]
        differ = observed_disagreement(counts)[:, None], lab.prediction.disagreement_probs[sample.rows][:, None]
        for name, (freqs, probs) in (("CL", by_class), ("CL_D", differ)):
            found[name].append(forms(Binned.of(freqs, probs, sample, 15, "uniform", "pair")))
    rows = []
    for name, values in found.items():
        truth = float(np.mean([row[name].value for row in exact]))
        for form, column in zip(FORMS, np.array(values).T, strict=True):
            bias, error = column.mean() / truth - 1, column.std() / np.sqrt(len(column)) / truth
            rows.append({"loss": name, "bins": form, "truth": truth, "relative_bias": bias, "error": error})
            print(f"{name} {form}: truth {truth:.5f}, relative bias {bias:+.2%} ± {error:.2%}, runs {asked.runs:,}")
    asked.out.write_text(json.dumps({"cases": asked.cases, "runs": asked.runs, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
