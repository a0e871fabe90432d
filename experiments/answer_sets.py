"""Sets for the next annotator's answer: coverage and size, simulated, on lung nodules and on CIFAR-10H.

Beside what is served: every cell counted alike, sets calibrated on the majority's class, the score 1 − f, the
randomised cumulative score, the smallest set whose predicted probabilities sum to 90 %, and all classes. ``--save``
keeps the rows in ``benchmarks/results``; ``--runs`` contains the network of CIFAR-10H, which is trained if it is
missing (four epochs of the compact network).
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TypedDict

import numpy as np

from experiments import RESULTS
from ml.calibration import calibrate as fit_calibration
from ml.conformal import MISSES, calibrate, patient_masses, scores
from ml.distributions.families import DirichletCpe, PredictiveDistribution
from ml.util.arrays import FloatArray, IntArray

RUNS, SPLITS = 400, 200

NOTES = """\
Mean over random draws of answers, ± their Monte-Carlo error; each patient counts once. Simulated: 400 laboratories
with one to twelve cells per patient, whose opinions hang together, and predictions that are too sure; 20 further
patients judge. Nodules (four radiologists, 522 patients) and CIFAR-10H (about 51 annotators per photograph, a compact
network of four epochs): 200 random halves, one drawn answer per cell. After one label: a fifth is read twice for
certain, a tenth of the others by coin.

- Served sets contain the answer at least as often as they say, in every row. With few patients they do so more often
  and are large: with nine the limit is the largest score of all. After one label few patients cost more, since one
  read by the audit stands for ten.
- Sets calibrated on the majority's class miss the next answer in up to one case in five or six.
- The score 1 − f gives sets 1 % smaller on nodules and 1 % larger on CIFAR-10H; the randomised one larger sets
  everywhere.
- After one label on CIFAR-10H the leading class alone contains the next answer more often than in nine of ten, so
  that each set is that class.
- The hardest fifth may be covered less than all (CIFAR-10H): the promise is for all cells together."""


@dataclass(frozen=True)
class Cells:
    """Cells with predictions before and after a first answer, that answer and another one.

    Attributes:
        patients: (N,).
        prior: what is predicted.
        label_counts: (N, K) of which answers are drawn.
        pi: (N,) probability of the second read.
    """

    patients: IntArray
    prior: PredictiveDistribution
    label_counts: IntArray
    pi: FloatArray


def drawn(counts: IntArray, rng: np.random.Generator) -> IntArray:
    """One label (N,) of each cell."""
    place = rng.random(len(counts)) * counts.sum(axis=1)
    return np.asarray((np.cumsum(counts, axis=1) <= place[:, None]).sum(axis=1))


def one_hot(answers: IntArray, n_classes: int) -> IntArray:
    return np.asarray(np.eye(n_classes, dtype=np.int64)[answers])


def measures(sets: np.ndarray, answers: IntArray, patients: IntArray, hard: np.ndarray) -> FloatArray:
    """Coverage, mean size, share of single classes, and coverage among the hard cells; each patient counts once."""
    masses = patient_masses(patients)
    inside, size = sets[np.arange(len(answers)), answers], sets.sum(axis=1)
    values = [float(np.average(column, weights=masses)) for column in (inside, size, size == 1)]
    return np.array([*values, float(np.average(inside[hard], weights=masses[hard]))])


@dataclass(frozen=True)
class Draw:
    """Answers to the cells, and which of the cells calibrate.

    Attributes:
        first: (N,) answer to the first read.
        second: (N,) answer to the second, whether it is asked for or not.
        voted: (N,) class that most annotators name.
        known: (N,) whose answers are known.
    """

    first: IntArray
    second: IntArray
    voted: IntArray
    known: np.ndarray


def sets_before(cells: Cells, draw: Draw, rng: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    """Sets of the cells that are not known, by each method."""
    probs, patients, known = cells.prior.class_probs, cells.patients, draw.known
    rows, new = np.arange(len(probs)), ~draw.known
    above, gap = scores(probs), 1 - probs
    random = above + rng.random(len(probs))[:, None] * probs
    masses, alike = patient_masses(patients[known]), np.ones(int(known.sum()))

    def limit(score: FloatArray, said: IntArray, weights: FloatArray = masses) -> float:
        found = calibrate(score[rows, said][known], weights, patients[known]).at()
        return np.inf if found is None else found

    top = (above == 0)[new]
    yield "served", (above <= limit(above, draw.first))[new] | top
    yield "every cell alike", (above <= limit(above, draw.first, alike))[new] | top
    yield "calibrated on the majority", (above <= limit(above, draw.voted))[new] | top
    yield "score 1 − f", (gap <= limit(gap, draw.first))[new] | top
    yield "randomised cumulative score", (random <= limit(random, draw.first))[new]
    yield "predicted 90 %", above[new] < 1 - MISSES - 1e-9
    yield "all classes", np.ones_like(above, dtype=bool)[new]


def sets_after(cells: Cells, draw: Draw, rng: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    """Sets after the first answer of the cells that are not known, where triage chose whose second answer is."""
    first, second, known = draw.first, draw.second, draw.known
    probs = cells.prior.posterior(one_hot(first, cells.label_counts.shape[1])).class_probs
    above, rows = scores(probs), np.arange(len(first))
    asked, new, patients = rng.random(len(first)) < cells.pi, ~known, cells.patients
    top, answered = above == 0, above[rows, second]
    weighted = patient_masses(patients, asked, cells.pi)
    fitted = calibrate(answered[known], weighted[known], patients[known])
    size = np.bincount(patients)[patients]
    total = np.bincount(patients, weights=weighted)[patients]
    own = total + np.where(asked, 0.0, 1 / (cells.pi * size))  # a cell that was asked about is in the total already
    limits = np.array([np.inf if (at := fitted.at(mass)) is None else at for mass in own[new].tolist()])
    yield "served", (above[new] <= limits[:, None]) | top[new]
    some = known & asked
    plain = calibrate(answered[some], patient_masses(patients[some]), patients[some]).at()
    yield "as if chosen at random", (above <= (np.inf if plain is None else plain))[new] | top[new]
    yield "predicted 90 %", above[new] < 1 - MISSES - 1e-9
    yield "all classes", np.ones_like(above, dtype=bool)[new]


Table = dict[tuple[str, str], list[FloatArray]]


def one_split(cells: Cells, known: np.ndarray, rng: np.random.Generator, table: Table) -> None:
    """Answers drawn once, sets calibrated on the known cells and judged on the others."""
    counts, new = cells.label_counts, ~known
    first = drawn(counts, rng)
    second = drawn(counts - one_hot(first, counts.shape[1]), rng)
    phi = cells.prior.disagreement_probs
    hard = (phi >= np.quantile(phi, 0.8))[new]
    draw = Draw(first, second, np.asarray(counts.argmax(axis=1)), known)
    for method, sets in sets_before(cells, draw, rng):
        table.setdefault(("before", method), []).append(measures(sets, first[new], cells.patients[new], hard))
    for method, sets in sets_after(cells, draw, rng):
        table.setdefault(("after one label", method), []).append(measures(sets, second[new], cells.patients[new], hard))


class Row(TypedDict):
    """A method's means over the runs, and the Monte-Carlo error of its coverage."""

    data: str
    sets: str
    method: str
    runs: int
    coverage: float
    se: float
    mean_size: float
    single: float
    coverage_hard: float


def rows_of(name: str, table: Table) -> list[Row]:
    rows: list[Row] = []
    for (when, method), values in table.items():
        mean, error = np.mean(values, axis=0).round(4).tolist(), np.std(values, axis=0, ddof=1) / np.sqrt(len(values))
        rows.append(
            {
                "data": name,
                "sets": when,
                "method": method,
                "runs": len(values),
                "coverage": mean[0],
                "se": round(float(error[0]), 4),
                "mean_size": mean[1],
                "single": mean[2],
                "coverage_hard": mean[3],
            }
        )
    return rows


def triaged(prior: PredictiveDistribution) -> FloatArray:
    """The fifth with the highest disagreement probability is read twice for certain, a tenth of the others by coin."""
    phi = prior.disagreement_probs
    return np.where(phi > np.quantile(phi, 0.8), 1.0, 0.1)


def laboratory(rng: np.random.Generator, n_patients: int) -> Cells:
    """One to twelve cells per patient, whose opinions hang together; predictions are too sure, and wrong in part."""
    sizes = rng.integers(1, 13, n_patients)
    patients = np.repeat(np.arange(n_patients), sizes)
    n_classes = 6
    own = 0.7 * rng.normal(size=(n_patients, n_classes))[patients]
    logits = 2.0 * rng.normal(size=(patients.size, n_classes))
    truth = np.exp(logits + own)
    truth /= truth.sum(axis=1, keepdims=True)
    said = np.exp(1.5 * logits)
    prior = DirichletCpe(said / said.sum(axis=1, keepdims=True), np.full(patients.size, np.log(4.0)))
    counts = rng.multinomial(5, truth)
    return Cells(patients, prior, counts, triaged(prior))


def simulated(n_patients: int, runs: int = RUNS) -> list[Row]:
    """New laboratories, answers and one further patient group each time."""
    table: Table = {}
    for run in range(runs):
        rng = np.random.default_rng([run, n_patients])
        cells = laboratory(rng, n_patients + 20)
        one_split(cells, cells.patients < n_patients, rng, table)
    return rows_of(f"simulated, {n_patients} patients calibrate", table)


def split_in_half(name: str, cells: Cells) -> list[Row]:
    """Half of the patients calibrate, the others judge, in many random ways."""
    table: Table = {}
    names, patients = np.unique(cells.patients, return_inverse=True)
    for split in range(SPLITS):
        rng = np.random.default_rng(split)
        known = (rng.permutation(names.size) < names.size // 2)[patients.ravel()]
        one_split(cells, known, rng, table)
    return rows_of(name, table)


def nodules() -> Cells:
    from experiments.nodules import load_nodules, predictions
    from ml.reproduce.scoring import SERVED

    data = load_nodules()
    prior = predictions(data, 0, lambda *_: None)[SERVED]
    patients = np.unique(data.patients, return_inverse=True)[1].astype(np.int64).ravel()
    return Cells(patients, prior, data.label_counts, triaged(prior))


def photographs(runs: Path) -> Cells:
    """CIFAR-10H by a compact network of four epochs, trained and calibrated on CIFAR-10N."""
    from ml.datasets.cifar import load_cifar10h
    from ml.training.run_folder import RunFolder, TrainConfig
    from ml.training.train import choose_device, choose_precision, train

    folder, device = RunFolder(runs / "labels-1_seed-0"), choose_device("cpu")
    options = {"train_labels": 1, "seed": 0}
    if not folder.finished:
        config = TrainConfig(
            data="cifar10h",
            data_options=options,
            network="compact",
            epochs=4,
            batch_size=128,
            learning_rate=2e-3,
            warmup_epochs=1,
            decay_epochs=(2, 3),
            patience=4,
            seed=0,
            precision=choose_precision("auto", device),
            compiled=False,
            backbone_weights=None,
        )
        train(load_cifar10h(**options), config, folder, device=device, observer=lambda _: None)
    outputs = folder.read_outputs()
    valid, test = (outputs.take(outputs.partition == part) for part in ("valid", "test"))
    groups = valid.groups.tolist()
    fitted = fit_calibration(valid.logits, valid.features, valid.label_counts, groups, method="temperature")
    prior = fitted.calibration.apply(test.logits, test.features)
    return Cells(np.arange(len(test.case_ids)), prior, test.label_counts, triaged(prior))


def markdown(rows: list[Row]) -> str:
    lines = ["| data | sets | method | contain the answer | classes per set | one class | hardest fifth contain it |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in rows:
        share = f"{100 * row['coverage']:.1f} ± {100 * row['se']:.1f} %"
        rest = f"{row['mean_size']:.2f} | {100 * row['single']:.0f} % | {100 * row['coverage_hard']:.1f} %"
        lines.append(f"| {row['data']} | {row['sets']} | {row['method']} | {share} | {rest} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/answer_sets"), help="of the network of CIFAR-10H")
    parser.add_argument("--quick", action="store_true", help="only the simulated laboratories, a few of them")
    parser.add_argument("--save", action="store_true", help="keep the rows in benchmarks/results")
    options = parser.parse_args()
    if options.quick:
        print(markdown(simulated(9, runs=4)))
        return
    rows = [row for n_patients in (9, 30, 100) for row in simulated(n_patients)]
    rows += split_in_half("nodules", nodules())
    rows += split_in_half("CIFAR-10H", photographs(options.runs))
    print(markdown(rows))
    if options.save:
        path = RESULTS / f"{date.today().isoformat()}_answer_sets"
        path.with_suffix(".json").write_text(json.dumps({"rows": rows}, indent=1, ensure_ascii=False) + "\n")
        path.with_suffix(".md").write_text(f"# Sets for the next answer\n\n{NOTES}\n\n{markdown(rows)}\n")


if __name__ == "__main__":
    main()
