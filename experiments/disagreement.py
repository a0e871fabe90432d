"""The disagreement probability that is served beside the paper's, and the posterior after one label.

``python -m experiments.disagreement [--nodules 5] [--outputs NAME=outputs.npz …] [--save]``: lung nodules by several
splits into patients (fitted here), and cached outputs of runs: ``mix-mnist`` and ``cells`` are judged by their exact
truth, others by their labels. An ensemble of 20 dropout heads (members of the last layers) beside the network where
the file ``head_layers.npz`` lies next to the outputs. CL_φ is signed and pair-debiased.
"""

import argparse
import json
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from experiments import RESULTS
from experiments.nodules import folds, joined, load_nodules
from ml.calibration.calibrators import FitReport, calibrate
from ml.datasets.blends import load_mix_mnist, read_blend_table
from ml.datasets.cells import load_cells
from ml.distributions.families import PredictiveDistribution
from ml.metrics import evaluate
from ml.metrics.cases import observed_disagreement
from ml.metrics.losses import exact_metrics
from ml.metrics.posterior_gain import exact_posterior_epistemic_loss, posterior_epistemic_loss, posterior_gain
from ml.release.dropout_head import SAMPLES, DropoutHead
from ml.reproduce.report import versions
from ml.training.calibrate import member_outputs
from ml.training.run_folder import CachedOutputs, RunFolder
from ml.util.arrays import FloatArray, IntArray

WAYS = {"paper": False, "served": True}


@dataclass(frozen=True)
class Judged:
    """Held-out labels, patients where several cells are of one, and the truth where it is known."""

    counts: IntArray
    cluster: Any
    truth: FloatArray | None = None

    def row(self, distribution: PredictiveDistribution) -> dict[str, float]:
        """Losses of a prediction."""
        probs, dpe = distribution.class_probs, distribution.disagreement_probs
        low = np.argsort(dpe)[: max(len(dpe) // 10, 1)]
        if self.truth is not None:
            exact = exact_metrics(self.truth, probs, dpe)
            row = {name: exact[name].value for name in ("EL", "CE", "L_D", "CE_D", "CL_D", "skill_D")}
            row["EL_posterior"] = exact_posterior_epistemic_loss(self.counts, self.truth, distribution).value
            seen = 1 - (self.truth[low] ** 2).sum(axis=1)
        else:
            metrics = evaluate(self.counts, probs, dpe, cluster=self.cluster).metrics
            row = {name: metrics[name].value for name in ("EL", "CE", "L_D", "CE_D", "CL_D", "skill_D")}
            row["gain"] = posterior_gain(self.counts, distribution, cluster=self.cluster).value
            if (self.counts.sum(axis=1) >= 3).all():
                row["EL_posterior"] = posterior_epistemic_loss(self.counts, distribution, cluster=self.cluster).value
            seen = observed_disagreement(self.counts[low])
        return row | {"lowest_tenth_says": float(dpe[low].mean()), "lowest_tenth_seen": float(seen.mean())}


def chosen(fit: FitReport) -> str:
    """What a fit refined, in words."""
    document = fit.report.get("refinement", {})
    spread = "logistic normal" if document.get("neighbours") else "Dirichlet"
    head = f"map: {document.get('map', 'none')}; pair head: {document.get('pair_share', 0):g}"
    return f"{document.get('variant', 'not refined')}; {spread}; {head}"


def of_nodules(seed: int) -> list[dict[str, Any]]:
    """Every nodule judged by a calibration that saw no nodule of its patient."""
    data, rows = load_nodules(), []
    for way, refined in WAYS.items():
        parts, words = [], []
        for fold in folds(data, seed):
            fitted_on = fold.logits[fold.held], fold.features[fold.held], data.label_counts[fold.held]
            fit = calibrate(*fitted_on, data.patients[fold.held].tolist(), refined=refined)
            parts.append((fold.test, fit.calibration.apply(fold.logits[fold.test], fold.features[fold.test])))
            words.append(chosen(fit))
        row = Judged(data.label_counts, data.patients).row(joined(parts))
        rows.append({"data": "nodules", "way": way, "seed": seed, "chosen": " | ".join(words), **row})
    return rows


def truth_of(name: str, outputs: CachedOutputs, folder: RunFolder) -> FloatArray | None:
    """True class probabilities of the cached cases, None where nobody knows them."""
    if name == "mix-mnist":
        data = load_mix_mnist()
    elif name == "cells":
        options = folder.read_config()["train"]["data_options"]
        data = load_cells(**options)
    else:
        return None
    row_of = {case: row for row, case in enumerate(data.case_ids)}
    if data.true_probs is None:
        return None
    return data.true_probs[[row_of[str(case)] for case in outputs.case_ids]]


def of_outputs(name: str, path: Path, labels: int) -> list[dict[str, Any]]:
    """The network, and the ensemble where its layers are there, on held-out cases with two labels or more."""
    folder = RunFolder(path.parent)
    outputs = folder.read_outputs()
    truth = truth_of(name, outputs, folder)
    if name == "mix-mnist":
        table = read_blend_table("mix_mnist", labels)
        by_case = dict(zip(table.case_ids, table.label_counts, strict=True))
        counts = np.array([by_case[str(case)] for case in outputs.case_ids])
        outputs = CachedOutputs(**{**vars(outputs), "label_counts": counts})
    part = "calibration" if (outputs.partition == "calibration").any() else "valid"
    fitted = outputs.take(np.flatnonzero(outputs.partition == part))
    rows_held = np.flatnonzero((outputs.partition == "test") & (outputs.label_counts.sum(axis=1) >= 2))
    held = outputs.take(rows_held)
    cluster = held.groups if len(set(held.groups.tolist())) < len(held.groups) else None
    judged = Judged(held.label_counts, cluster, None if truth is None else truth[rows_held])
    kinds: dict[str, DropoutHead | None] = {"network": None}
    if folder.head_layers.is_file():
        kinds["ensemble"] = DropoutHead.draw(folder.read_head_layers(), samples=SAMPLES, seed=0)
    rows = []
    for kind, head in kinds.items():
        inside, outside = member_outputs(fitted, head), member_outputs(held, head)
        for way, refined in WAYS.items():
            fit = calibrate(*inside, fitted.label_counts, fitted.groups.tolist(), refined=refined)
            row = judged.row(fit.calibration.apply(*outside))
            rows.append(
                {"data": name, "way": f"{way} ({kind})", "n_fit": len(fitted.case_ids), "n": len(held.case_ids)}
            )
            rows[-1] |= {"chosen": chosen(fit), **row}
    return rows


METRICS = ("EL", "CE", "L_D", "skill_D", "CE_D", "CL_D", "EL_posterior", "gain")


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as Markdown; those of several seeds as their mean."""
    lines = [
        "| data | way | " + " | ".join(METRICS) + " | lowest tenth: says, seen |",
        "|---" * (3 + len(METRICS)) + "|",
    ]
    for key in dict.fromkeys((row["data"], row["way"]) for row in rows):
        same = [row for row in rows if (row["data"], row["way"]) == key]

        def mean(name: str, digits: int, same: list[dict[str, Any]] = same) -> str:
            values = [row[name] for row in same if row.get(name) is not None]
            return f"{np.mean(values):.{digits}f}" if values else "–"

        cells = [mean(name, 5 if name == "CL_D" else 4) for name in METRICS]
        ends = f"{mean('lowest_tenth_says', 3)}, {mean('lowest_tenth_seen', 3)}"
        lines.append(f"| {key[0]} | {key[1]} | " + " | ".join(cells) + f" | {ends} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodules", type=int, default=5, help="splits of the nodules")
    parser.add_argument("--outputs", action="append", default=[], metavar="NAME=outputs.npz", help="of a finished run")
    parser.add_argument("--labels", type=int, default=2, help="per validation image of mix-mnist")
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in range(options.nodules):
        rows += of_nodules(seed)
    for named in options.outputs:
        name, _, path = named.partition("=")
        rows += of_outputs(name, Path(path), options.labels)
    print(table(rows))
    for row in rows:
        print(f"{row['data']} {row['way']}: {row['chosen']}")
    if options.save:
        document = {"what": __doc__.splitlines()[0], "versions": versions(), "rows": rows}
        path = RESULTS / f"{date.today()}_disagreement.json"
        path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
