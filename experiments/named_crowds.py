"""What it is worth to know who said it, on real labels: nodules by position, photographs by worker.

    python -m experiments.named_crowds --save

- **Nodules**: malignancy by four radiologists. The four positions are other persons from one patient to the next, so
  that names must be found worthless, and must cost nothing. Each of five folds of patients is judged once; of the
  others three fit the regression and one fits calibration, matrices and gate (halves).
- **CIFAR-10N**: 747 workers by number, three labels per photograph. 10,000 photographs train a small network (that of
  ``experiments.new_crowd``), others calibrate it and fit the matrices, others are the gate's, others are judged.
  Photographs were given out in blocks of ten, which are the clusters.

``kind`` is what left-out labels chose, ``gain`` the fall of the log loss of a label given the others of its case, on
the judged cases, beside annotators taken as alike as served and as refitted. What is served is the model only where
the gate passed: else the difference is zero by construction.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np

from experiments import RESULTS
from experiments.new_crowd import TRAINED, Patches
from experiments.nodules import FOLDS, fit_regression, load_nodules
from ml.annotations import Annotations
from ml.annotators.choosing import ALIKE, choose_readers
from ml.annotators.fitting import held_out_gain
from ml.calibration.calibrators import calibrate
from ml.datasets.base import datasets_folder
from ml.datasets.cifar import load_photographs
from ml.distributions.families import softmax_probs
from ml.reproduce.report import versions
from ml.util.arrays import FloatArray, IntArray
from ml.util.splits import split_partitions

CLASSES = 10


@dataclass(frozen=True)
class Crowd:
    """Cases with logits of a network that has seen none of them, and labels with names.

    Attributes:
        logits: (N, K).
        annotators: (N, L) of each label.
        labels: (N, L) classes.
        clusters: (N,) patients, or blocks.
        parts: (N,) fit, gate or judge.
    """

    logits: FloatArray
    annotators: IntArray
    labels: IntArray
    clusters: IntArray
    parts: np.ndarray[Any, np.dtype[np.str_]]

    def long(self, rows: IntArray) -> Annotations:
        """Labels of some cases."""
        per_case = self.labels.shape[1]
        case = np.repeat(np.arange(len(rows)), per_case)
        by = [str(name) for name in self.annotators[rows].ravel()]
        return Annotations.of_names(case, by, self.labels[rows].ravel(), len(rows), self.logits.shape[1])

    def judged(self) -> dict[str, Any]:
        """Fit, gate and judgement."""
        fit, gate, judge = (np.flatnonzero(self.parts == part) for part in ("fit", "gate", "judge"))
        long = self.long(fit)
        groups = [str(cluster) for cluster in self.clusters[fit]]
        shares = softmax_probs(self.logits)
        calibration = calibrate(self.logits[fit], shares[fit], long.counts(), groups, method="temperature").calibration
        begun = time.process_time()
        prior = calibration.apply(self.logits[fit], shares[fit])
        choice = choose_readers(prior, long, long.annotators, np.unique(self.clusters[fit], return_inverse=True)[1])
        found: dict[str, Any] = {
            "labels": len(long.case),
            "annotators": long.n_annotators,
            "kind": choice.kind,
            "left out": choice.losses,
            "seconds": time.process_time() - begun,
        }
        models = choice.model, choice.alike
        for what, rows in (("gate", gate), ("judge", judge)):
            labels = self.long(rows)
            said = calibration.apply(self.logits[rows], shares[rows])
            gain = held_out_gain(said, labels, labels.annotators, models, cluster=self.clusters[rows])
            found[what] = {
                "over served": gain.over_served.to_dict(),
                "over alike": gain.over_alike.to_dict(),
                "passed": choice.kind != ALIKE and gain.passed,
            }
        return found


def nodules(seed: int) -> Iterator[Crowd]:
    """Folds of patients, each judged once."""
    data = load_nodules()
    names = [str(number) for number in range(FOLDS)]
    fold = split_partitions(data.patients.tolist(), dict.fromkeys(names, 1 / FOLDS), seed).astype(int)
    clusters = np.unique(data.patients, return_inverse=True)[1]
    for number in range(FOLDS):
        judge, held = fold == number, fold == (number + 1) % FOLDS
        train = ~(judge | held)
        centre, spread = data.features[train].mean(axis=0), data.features[train].std(axis=0)
        inputs = np.clip((data.features - centre) / np.where(spread > 0, spread, 1.0), -5, 5)
        weight = fit_regression(inputs[train], data.label_counts[train])
        logits = np.column_stack([inputs, np.ones(len(inputs))]) @ weight
        parts = np.where(judge, "judge", np.where(held & (clusters % 2 == 0), "gate", np.where(held, "fit", "")))
        positions = np.broadcast_to(np.arange(data.labels.shape[1]), data.labels.shape)
        yield Crowd(logits, positions, data.labels, clusters, parts)


def cifar10n(cases: int, seed: int) -> Crowd:
    """Photographs that the network has not seen, in parts of ``cases``."""
    rng = np.random.default_rng(seed)
    folder = datasets_folder("cifar10n", "github.com/UCSC-REAL/cifar-10-100n")
    with np.load(folder / "cifar10n_labels.npz", allow_pickle=False) as data:
        labels, workers = data["labels"].astype(np.int64), data["worker_id"].astype(np.int64)
    blocks = rng.permutation(len(labels) // 10)
    wanted = (blocks[:, None] * 10 + np.arange(10)).ravel()[: TRAINED + 3 * cases]
    pixels, _ = load_photographs(np.sort(wanted))
    train, rest = wanted[:TRAINED], wanted[TRAINED:]
    patches = Patches(pixels[train], rng)
    inputs = patches(pixels[wanted])
    centre, spread = inputs[:TRAINED].mean(axis=0), inputs[:TRAINED].std(axis=0) + 1e-9
    counts = (labels[train][:, :, None] == np.arange(CLASSES)).sum(axis=1)
    weight = fit_regression((inputs[:TRAINED] - centre) / spread, counts)
    logits = (inputs[TRAINED:] - centre) / spread @ weight[:-1] + weight[-1]
    parts = np.repeat(["fit", "gate", "judge"], cases)
    return Crowd(logits, workers[rest], labels[rest], rest // 10, parts)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=8000, help="photographs of each part; a multiple of ten")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    options = parser.parse_args()
    document: dict[str, Any] = {"what": str(__doc__).splitlines()[0], "versions": versions(), "nodules": []}
    for fold, crowd in enumerate(nodules(options.seed)):
        document["nodules"].append(crowd.judged())
        print("nodules, fold", fold, json.dumps(document["nodules"][-1], indent=1))
    document["cifar10n"] = cifar10n(options.cases, options.seed).judged()
    print("CIFAR-10N", json.dumps(document["cifar10n"], indent=1))
    if options.save:
        path = RESULTS / f"{date.today()}_named_crowds.json"
        path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
