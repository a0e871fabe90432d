"""What it is worth to know who said it: simulated laboratories, annotators by name against annotators taken as alike.

    python -m experiments.named_readers --runs 20 --save

The worlds are those of ``experiments.worlds.named_reader_worlds``, half of them made by another mechanism than the
model's. A network is calibrated on 800 cases by the paper's way; matrices are fitted on the same, chosen by left-out
labels, and used only where 800 cases more say so (``ml.annotators.fitting``). Judged on 1,500 further cases by what is
known there: the population's answers. All cases have one to three labels.
"""

import argparse
import json
import resource
import time
from datetime import date

import numpy as np

from experiments import RESULTS
from experiments.worlds.named_reader_worlds import MECHANISMS, N_CLASSES, READERS, SITUATIONS, World, world
from ml.annotations import Annotations
from ml.annotators.choosing import Choice, choose_readers
from ml.annotators.confusions import ReaderModel
from ml.annotators.fitting import held_out_gain, next_label_losses
from ml.annotators.posterior import answer_distribution, named_posterior
from ml.calibration.calibrators import calibrate
from ml.distributions.decisions import class_intervals
from ml.distributions.families import PredictiveDistribution
from ml.reproduce.report import versions
from ml.util.arrays import FloatArray

CALIBRATION, GATE, JUDGED = 800, 800, 1500
#: Cases whose intervals are looked at.
INTERVALS = 300
ARMS = ("alike", "named", "served")


def long_labels(drawn: World) -> Annotations:
    """Its labels."""
    return Annotations(drawn.case, drawn.annotator, drawn.label, len(drawn.logits), drawn.answers.shape[1], N_CLASSES)


def first_labels(long: Annotations) -> Annotations:
    """The first label of each case."""
    first = np.concatenate([[True], long.case[1:] != long.case[:-1]])
    of_first = long.case[first], long.annotator[first], long.label[first]
    return Annotations(*of_first, long.n_cases, long.n_annotators, long.n_classes)


class Laboratory:
    """One draw, calibrated and fitted."""

    def __init__(self, situation: str, mechanism: str, n_readers: int, seed: int) -> None:
        drawn = world(situation, mechanism, n_readers, CALIBRATION + GATE + JUDGED, seed)
        self.names = [f"reader {number}" for number in range(n_readers)]
        fitted_on = drawn.some(slice(0, CALIBRATION))
        self.gate_cases = drawn.some(slice(CALIBRATION, CALIBRATION + GATE))
        self.judged = drawn.some(slice(CALIBRATION + GATE, None))
        long = long_labels(fitted_on)
        groups = [str(case) for case in range(CALIBRATION)]
        none = np.zeros((CALIBRATION, 1))
        self.calibration = calibrate(fitted_on.logits, none, long.counts(), groups, method="temperature").calibration
        begun = time.process_time()
        self.choice: Choice = choose_readers(self.prior(fitted_on), long, self.names)
        self.seconds = time.process_time() - begun

    def prior(self, drawn: World) -> PredictiveDistribution:
        """What the calibrated network says."""
        return self.calibration.apply(drawn.logits, np.zeros((len(drawn.logits), 1)))

    def passed(self) -> bool:
        """What the gate says."""
        cases, models = self.gate_cases, (self.choice.model, self.choice.alike)
        return held_out_gain(self.prior(cases), long_labels(cases), self.names, models).passed

    def scores(self, model: ReaderModel) -> dict[str, float]:
        """EL′ after one label, log loss of the next one, coverage of the leading class's interval after one label."""
        prior, long = self.prior(self.judged), long_labels(self.judged)
        first, confusions = first_labels(long), model.matrices(self.names)
        truth = self.judged.population
        answers = named_posterior(model.opinions(prior), first, confusions).answer_probs(model.population)
        losses = next_label_losses(prior, long, self.names, model)
        of_several = long.per_case[long.case] >= 2
        return {
            "EL": float(((answers - truth) ** 2).sum(axis=1).mean()),
            "log_loss": float(losses[of_several].mean()),
            "coverage": self._coverage(model, first, truth),
        }

    def _coverage(self, model: ReaderModel, first: Annotations, truth: FloatArray) -> float:
        rows = np.arange(INTERVALS)
        few = first.case < INTERVALS
        some = Annotations(
            first.case[few], first.annotator[few], first.label[few], INTERVALS, first.n_annotators, N_CLASSES
        )
        opinions = model.opinions(self.prior(self.judged)).rows(rows)
        said = answer_distribution(opinions, some, model.matrices(self.names), model.population)
        leader = said.class_probs.argmax(axis=1)
        interval, true = class_intervals(said)[rows, leader], truth[rows, leader]
        return float(((interval[:, 0] <= true) & (true <= interval[:, 1])).mean())


def one_run(situation: str, mechanism: str, n_readers: int, seed: int) -> dict[str, float | str]:
    """Scores of annotators taken as alike, by name, and as the gate has it."""
    laboratory = Laboratory(situation, mechanism, n_readers, seed)
    alike = laboratory.scores(ReaderModel.alike(N_CLASSES))
    named = laboratory.scores(laboratory.choice.model) if laboratory.choice.kind != "alike" else alike
    passed = laboratory.choice.kind != "alike" and laboratory.passed()
    arms = {"alike": alike, "named": named, "served": named if passed else alike}
    row: dict[str, float | str] = {f"{arm} {name}": value for arm in ARMS for name, value in arms[arm].items()}
    return row | {"kind": laboratory.choice.kind, "passed": float(passed), "seconds": laboratory.seconds}


def summary(rows: list[dict[str, float | str]]) -> dict[str, object]:
    """Means over runs with Monte-Carlo errors, and of the differences to alike."""
    result: dict[str, object] = {"runs": len(rows)}
    for name in ("EL", "log_loss", "coverage"):
        alike = np.array([row[f"alike {name}"] for row in rows], dtype=np.float64)
        result[f"alike {name}"] = float(alike.mean())
        for arm in ("named", "served"):
            values = np.array([row[f"{arm} {name}"] for row in rows], dtype=np.float64)
            result[f"{arm} {name}"] = float(values.mean())
            result[f"{arm} {name} change"] = float((values - alike).mean())
            result[f"{arm} {name} change_error"] = float((values - alike).std(ddof=1) / np.sqrt(len(rows)))
    result["passed"] = float(np.mean([row["passed"] for row in rows]))
    result["seconds"] = float(np.mean([row["seconds"] for row in rows]))
    kinds = [str(row["kind"]) for row in rows]
    result["kinds"] = {kind: kinds.count(kind) for kind in sorted(set(kinds))}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--readers", type=int, nargs="*", default=list(READERS))
    parser.add_argument("--situations", nargs="*", default=list(SITUATIONS), choices=SITUATIONS)
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    title = f"{'situation':12} {'made':10} {'R':>2} {'passed':>6}"
    print(f"{title}  EL′ alike → served (± error)   log loss                    coverage       CPU s")
    table = []
    for situation in arguments.situations:
        for mechanism in MECHANISMS:
            for n_readers in arguments.readers:
                rows = [one_run(situation, mechanism, n_readers, seed) for seed in range(arguments.runs)]
                found = summary(rows)
                table.append({"situation": situation, "mechanism": mechanism, "readers": n_readers, **found})
                print(
                    f"{situation:12} {mechanism:10} {n_readers:2} {found['passed']:6.0%}  {_shown(found)}", flush=True
                )
    if arguments.save:
        document = {
            "command": f"python -m experiments.named_readers --runs {arguments.runs} --save",
            "cases": {"calibration": CALIBRATION, "gate": GATE, "judged": JUDGED},
            "rows": table,
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "versions": versions(),
        }
        path = RESULTS / f"{date.today()}_named_readers.json"
        path.write_text(json.dumps(document, indent=1) + "\n")
        print(f"saved {path}")


def _shown(found: dict[str, object]) -> str:
    parts = [
        f"{found[f'alike {name}']:.4f} → {found[f'served {name}']:.4f} "
        f"({found[f'served {name} change']:+.4f} ± {found[f'served {name} change_error']:.4f})"
        for name in ("EL", "log_loss")
    ]
    return f"{'  '.join(parts)}  {found['alike coverage']:.1%} → {found['served coverage']:.1%}  {found['seconds']:.1f}"


if __name__ == "__main__":
    main()
