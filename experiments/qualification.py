"""Who passes a qualification? Simulated laboratories, and readers who are alike, guess, or confuse two classes.

    python -m experiments.qualification --runs 200 --save

Cells with a Dirichlet prior of their own are labelled by three annotators, and by up to two more while no class leads
with .8. Of those a balanced set is chosen, a fifth of it borderline. Each run makes a laboratory, a set and one reader
of each kind; answers have 2 % of slips. In one row the posterior believes the network twice as much as it should.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from datetime import date

import numpy as np

from experiments import RESULTS
from ml.agreement.qualification import balanced_choice, judge_answers, slip_rate
from ml.util.arrays import FloatArray, IntArray

#: Classes, cells per run, and how much too strongly the posterior believes the network.
PANELS = ((3, 30, 1.0), (4, 40, 1.0), (4, 40, 2.0), (8, 40, 1.0), (8, 80, 1.0))
SLIPS, BORDERLINE = 0.02, 0.2


@dataclass(frozen=True)
class Test:
    """Cells of one attempt.

    Attributes:
        posterior: (N, K) by the labels of the others.
        opinions: (N, K) true distribution of answers.
        slips: learned from the pool.
    """

    posterior: FloatArray
    opinions: FloatArray
    slips: float


def laboratory(rng: np.random.Generator, n_classes: int, n: int, trust: float) -> Test:
    """A set of n cells, chosen from six times as many."""
    posteriors, opinions, left_out, said = [], [], [], []
    for _ in range(6 * n + 200):
        prior = 0.97 * rng.dirichlet(np.full(n_classes, 0.15)) + 0.03 / n_classes
        a = np.exp(rng.normal(1.0, 0.6))
        q = rng.dirichlet(a * prior)
        counts, answers = np.zeros(n_classes), []
        believed = trust * a
        while len(answers) < 3 or (len(answers) < 5 and posteriors_of(prior, believed, counts).max() < 0.8):
            answers.append(int(rng.choice(n_classes, p=q)))
            counts[answers[-1]] += 1
        posteriors.append(posteriors_of(prior, believed, counts))
        opinions.append(q)
        left_out.append([posteriors_of(prior, believed, counts - np.eye(n_classes)[y]) for y in answers])
        said.append(answers)
    table = np.array(posteriors)
    rows = balanced_choice(table, n, BORDERLINE, rng)
    slips = slip_rate(
        np.concatenate([left_out[row] for row in rows]), np.concatenate([np.array(said[row]) for row in rows])
    )
    return Test(table[rows], np.array(opinions)[rows], slips)


def posteriors_of(prior: FloatArray, a: float, counts: FloatArray) -> FloatArray:
    """Probabilities of the next answer."""
    return np.asarray((a * prior + counts) / (a + counts.sum()))


def answers(rng: np.random.Generator, probs: FloatArray) -> IntArray:
    """One answer to each cell, with slips."""
    mixed = (1 - SLIPS) * probs + SLIPS / probs.shape[1]
    return np.array([rng.choice(len(row), p=row / row.sum()) for row in mixed])


@dataclass
class Row:
    """How many of the runs each kind of reader passed."""

    classes: int
    cells: int
    trust: float
    runs: int
    like_the_others: float
    guessing: float
    confusing: float


def panel(n_classes: int, n: int, trust: float, runs: int) -> Row:
    passed = np.zeros((runs, 3))
    for run in range(runs):
        rng = np.random.default_rng([n_classes, n, run])
        test = laboratory(rng, n_classes, n, trust)
        k = int(rng.integers(n_classes))
        other = (k + 1 + int(rng.integers(n_classes - 1))) % n_classes
        habit = np.eye(n_classes)
        habit[k, k] = habit[k, other] = 0.5
        readers = (test.opinions, np.full_like(test.opinions, 1 / n_classes), test.opinions @ habit)
        passed[run] = [judge_answers(test.posterior, answers(rng, probs), test.slips).passed for probs in readers]
    return Row(n_classes, n, trust, runs, *passed.mean(axis=0).tolist())


def table(rows: list[Row]) -> str:
    lines = [
        "| classes | cells | trust in the network | like the others | guessing | one class half of the time |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.classes} | {row.cells} | {row.trust:g} | {row.like_the_others:.3f} | {row.guessing:.3f} | "
        f"{row.confusing:.3f} |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="of each panel")
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    options = parser.parse_args()
    rows = [panel(*which, options.runs) for which in PANELS]
    print(table(rows))
    if options.save:
        path = RESULTS / f"{date.today().isoformat()}_qualification.json"
        path.write_text(json.dumps({"runs": options.runs, "panels": [asdict(row) for row in rows]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
