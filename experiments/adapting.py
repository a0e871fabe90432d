"""How often the gate passes what few double reads teach: a laboratory whose annotators are not the release's.

    python -m experiments.adapting --runs 100 --save

A small release (tests/support/tiny_release.py) made of simulated cells and annotators. A laboratory reads cells of its
own twice, by two of five annotators; half of its patients calibrate and half judge. Fits, fits without each annotator
and the gate are the service's own; only what the database would give is made here. What is right is known: how often
the crowd itself differs.
"""

import argparse
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from app.metrics.cohort import CohortQuery, build_cohort
from app.metrics.dataset import EvaluationDataset
from app.metrics.queries import LabelRow
from app.recalibration.change_plan import ChangePlan
from app.recalibration.evidence import GateJudgement, SinceFirstChampion, measure_paired_change
from app.recalibration.gate_decision import GateEvidence
from app.recalibration.service import RecalibrationInputs, fit_candidate, judge_candidate
from app.recalibration.training_data import StoredOutputs, count_case_labels
from app.releases.schemas import RecalibrationMethod
from experiments import RESULTS
from ml.datasets.cells import AnnotatorPool, simulate_cells
from ml.distributions.families import gini
from ml.metrics.paired_difference import Change
from ml.release.artifact import Release, read_release
from ml.release.predictor import Predictor
from ml.reproduce.report import versions
from ml.util.arrays import FloatArray
from tests.support.tiny_release import write_tiny_release

ANNOTATORS, POOL, CELLS_OF_A_PATIENT = 5, 1500, 2
#: Powers of the true probabilities by which a crowd labels.
CROWDS: dict[str, float] = {"as the release's": 1.0, "differ twice as often": 0.5, "differ a third as often": 2.0}
METHODS: tuple[RecalibrationMethod, ...] = ("adapt", "temperature")
#: The shipped plan asks for 50 labelled cases before it fits everything anew; here both are tried on the same.
PLAN = ChangePlan(min_labelled_cases=20)
CHAMPION = uuid.UUID(int=1)


@dataclass(frozen=True)
class Laboratory:
    """Cells as the release's network sees them, and how a crowd labels them."""

    release: Release
    logits: FloatArray
    features: FloatArray
    probs: FloatArray

    def outputs(self, rows: FloatArray) -> StoredOutputs:
        ids = [uuid.UUID(int=int(row) + 2) for row in rows]
        groups = [f"p{row // CELLS_OF_A_PATIENT}" for row in range(len(rows))]
        return StoredOutputs(ids, groups, self.logits[rows], self.features[rows])

    def material(self, n: int, rng: np.random.Generator) -> RecalibrationInputs:
        """What the database gives of n cells read twice, half of them to calibrate and half to judge."""
        rows = rng.permutation(POOL)[:n]
        people, labels = AnnotatorPool(ANNOTATORS).read(self.probs[rows], 2, rng)
        given = [
            [
                LabelRow(
                    uuid.UUID(int=int(row) + 2),
                    f"reader {people[at, order]}",
                    self.release.classes[labels[at, order]],
                    outside=False,
                    ordinal=order + 1,
                    round="planned",
                    answered_at=datetime(2026, 11, 23, tzinfo=UTC),
                )
                for order in (0, 1)
            ]
            for at, row in enumerate(rows)
        ]
        fitting, judging = self.outputs(rows[: n // 2]), self.outputs(rows[n // 2 :])
        judged_by = [label for two in given[n // 2 :] for label in two]
        columns = EvaluationDataset.empty(list(self.release.classes), n - n // 2)
        said = judging.predicted(self.release, self.release.calibration)
        columns = replace(
            columns,
            case_id=np.stack([np.frombuffer(case.bytes, dtype=np.uint8) for case in judging.case_ids]),
            cluster=np.unique(judging.groups, return_inverse=True)[1],
            evaluation=np.ones(len(columns), dtype=bool),
            pi=np.ones(len(columns)),
            class_probs=said.class_probs,
            disagreement_probs=said.disagreement_probs,
            label_counts=count_case_labels(judged_by, judging.case_ids, list(self.release.classes)),
            first_class=labels[n // 2 :, 0],
            n_planned=np.full(len(columns), 2),
        )
        return RecalibrationInputs(
            CHAMPION,
            self.release,
            fitting,
            [label for two in given[: n // 2] for label in two],
            build_cohort(columns, CohortQuery(), 0.0),
            judging,
            judged_by,
            list(self.release.classes),
        )

    def gap(self, calibration: object) -> float:
        """Mean squared distance of the disagreement probability from the crowd's own, over all cells."""
        said = calibration.apply(self.logits, self.features)  # type: ignore[attr-defined]
        return float(np.mean((said.disagreement_probs - gini(self.probs)) ** 2))


def one_run(laboratory: Laboratory, n: int, method: RecalibrationMethod, seed: int) -> dict[str, float | str | bool]:
    """One recalibration and its judgement, the first attempt on the champion."""
    material = laboratory.material(n, np.random.default_rng([seed, n]))
    before = laboratory.gap(material.parent.calibration)
    try:
        made = fit_candidate(material, method, PLAN)
    except ValueError as exc:
        return {"passed": False, "fitted": False, "why": str(exc), "before": before, "after": before}
    names = sorted({label.annotator for label in [*material.fitting_labels, *material.judging_labels]})
    tried: dict[str, Change | str] = {}
    for name in names:
        try:
            tried[name] = judge_candidate(material, fit_candidate(material, method, PLAN, name).calibration, name)
        except ValueError as exc:
            tried[name] = str(exc)
    after = material.judging.predicted(material.parent, made.calibration)
    whole = measure_paired_change(material.cohort, material.cohort.columns, after)
    evidence = GateEvidence(whole, material.cohort.columns.cluster, len(names), None, tried)
    gate = GateJudgement(CHAMPION, 1, evidence, SinceFirstChampion(CHAMPION, None)).gate()
    return {
        "passed": gate.passed,
        "fitted": True,
        "why": "; ".join(gate.reasons),
        "before": before,
        "after": laboratory.gap(made.calibration),
    }


def laboratories(folder: Path) -> dict[str, Callable[[], Laboratory]]:
    """One for each crowd."""
    release = read_release(write_tiny_release(folder / "release"))
    cells = simulate_cells(POOL, seed=23, size=32)
    logits, features = Predictor(release).outputs([Image.fromarray(cell.pixels) for cell in cells])
    truth = np.stack([cell.true_probs for cell in cells])

    def of(power: float) -> Laboratory:
        probs = truth**power
        return Laboratory(release, logits, features, probs / probs.sum(axis=1, keepdims=True))

    return {name: lambda power=power: of(power) for name, power in CROWDS.items()}  # type: ignore[misc]


def table(rows: list[dict[str, float | str]], command: str) -> str:
    """The rows as Markdown."""
    lines = [
        "# What few double reads teach a release, and how often the gate passes it",
        "",
        f"`{command}`: the first attempt on the champion, five annotators, two cells a patient, half of the",
        "double reads to calibrate and half to judge. Gap: mean squared distance of φ from the crowd's own, over all",
        "cells; ± is the Monte-Carlo standard error.",
        "",
        "| crowd | differs on | double reads | method | runs | passed | truly nearer | gap before | after | worst |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        n = int(row["runs"])
        nearer = float(row["truly nearer"])
        lines.append(
            f"| {row['crowd']} | {row['crowd differs on']:.3f} | {row['double reads']} | {row['method']} | {n} | "
            f"{row['passed']:.3f} ± {row['monte-carlo error']:.3f} | "
            f"{nearer:.3f} ± {np.sqrt(nearer * (1 - nearer) / n):.3f} | {row['squared gap before']:.4f} | "
            f"{row['squared gap after']:.4f} | {row['worst gap after']:.4f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--reads", type=int, nargs="+", default=[60, 120, 240], help="cells read twice, in all")
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    asked = parser.parse_args()
    path = RESULTS / f"{date.today()}_adapting.json"
    reads, methods = " ".join(map(str, asked.reads)), " ".join(asked.methods)
    command = f"python -m experiments.adapting --runs {asked.runs} --reads {reads} --methods {methods} --save"
    rows: list[dict[str, float | str]] = []
    with TemporaryDirectory() as folder:
        for crowd, made in laboratories(Path(folder)).items():
            laboratory = made()
            for n in asked.reads:
                for method in asked.methods:
                    runs = [one_run(laboratory, n, method, seed) for seed in range(asked.runs)]
                    share = float(np.mean([run["passed"] for run in runs]))
                    row: dict[str, float | str] = {
                        "crowd": crowd,
                        "crowd differs on": float(gini(laboratory.probs).mean()),
                        "double reads": n,
                        "method": method,
                        "runs": asked.runs,
                        "fitted": float(np.mean([run["fitted"] for run in runs])),
                        "passed": share,
                        "monte-carlo error": float(np.sqrt(share * (1 - share) / asked.runs)),
                        "truly nearer": float(np.mean([run["after"] < run["before"] for run in runs])),
                        "squared gap before": float(np.mean([run["before"] for run in runs])),
                        "squared gap after": float(np.mean([run["after"] for run in runs])),
                        "worst gap after": float(max(run["after"] for run in runs)),
                    }
                    rows.append(row)
                    print(row, flush=True)
                    document = {"what": __doc__.splitlines()[0], "versions": versions(), "rows": rows}
                    if asked.save:
                        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
                        path.with_suffix(".md").write_text(table(rows, command))


if __name__ == "__main__":
    main()
