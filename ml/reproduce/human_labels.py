"""Real human labels: trained on CIFAR-10N (one or three), tested on CIFAR-10H."""

from typing import Any

import numpy as np

from ml.charts.reliability import reliability_diagram
from ml.charts.results import thinning_chart, triage_chart
from ml.charts.rows import ThinningRow, TriagePoint
from ml.datasets.cifar import load_cifar10h
from ml.distributions.families import PredictiveDistribution
from ml.metrics import evaluate
from ml.reproduce.report import Reproduction, Setting
from ml.reproduce.scoring import (
    SERVED,
    ScoredRow,
    calibration_steps,
    markdown,
    markdown_table,
    scored_rows,
    triage_rows,
)
from ml.training.run_folder import CachedOutputs, RunFolder, TrainConfig
from ml.training.train import choose_device, choose_precision, train
from ml.util.arrays import IntArray

TRAIN_LABELS = (1, 3)
THINNED = (2, 3, 5)
QUICK_CASES = 300
COMPARED = ("EL", "EL_plugin", "CL", "CL_plugin", "CL_D", "CL_D_plugin")


def config(setting: Setting, seed: int, labels: int, precision: str) -> TrainConfig:
    """Training on so many labels per photograph."""
    network = setting.network or ("compact" if setting.quick else "vgg16")
    epochs = 1 if setting.quick else (12 if network == "compact" else 100)
    return TrainConfig(
        data="cifar10h",
        data_options={"train_labels": labels, "seed": seed} | ({"cases": QUICK_CASES} if setting.quick else {}),
        network=network,
        epochs=epochs,
        batch_size=128,
        learning_rate=2e-3 if network == "compact" else 1e-3,
        warmup_epochs=1 if network == "compact" else 5,
        decay_epochs=(int(epochs * 0.6), int(epochs * 0.85)),
        patience=epochs,
        seed=seed,
        precision=precision,
        compiled=False,
        backbone_weights=None,
    )


def _outputs(setting: Setting, seed: int, labels: int) -> CachedOutputs:
    device = choose_device(setting.device)
    chosen = config(setting, seed, labels, choose_precision("auto", device))
    folder = RunFolder(setting.out / f"labels-{labels}_seed-{seed}")

    def training(report: Any) -> None:
        done = report.epoch * report.steps + report.step
        setting.observer(f"seed {seed}, {labels} label(s): training", done, chosen.epochs * report.steps)

    if not folder.finished:
        dataset = load_cifar10h(**chosen.data_options)
        train(dataset, chosen, folder, device=device, observer=training)
    return folder.read_outputs()


def thin(counts: IntArray, n_labels: int, seed: int) -> IntArray:
    """Keep that many labels (N, K) of each case, drawn without replacement."""
    rng = np.random.default_rng(seed)
    return np.stack([rng.multivariate_hypergeometric(row, n_labels) for row in counts]).astype(np.int64)


class _HumanRow(ScoredRow):
    train_labels: int
    seed: int


def _thinning_rows(test: CachedOutputs, distribution: PredictiveDistribution, seed: int) -> list[ThinningRow]:
    full = evaluate(test.label_counts, distribution.class_probs, distribution.disagreement_probs).metrics
    rows: list[ThinningRow] = []
    for labels in THINNED:
        counts = thin(test.label_counts, labels, seed)
        thinned = evaluate(counts, distribution.class_probs, distribution.disagreement_probs).metrics
        for name in COMPARED:
            metric, estimate = name.removesuffix("_plugin"), thinned[name].to_dict()
            rows.append(
                {
                    "metric": metric,
                    "estimator": "plug-in" if name != metric else "debiased",
                    "labels": labels,
                    "full": full[metric].to_dict()["value"],
                    "value": estimate["value"],
                    "low": estimate["low"],
                    "high": estimate["high"],
                    "se": estimate["se"],
                }
            )
    return rows


def _thinning_table(rows: list[ThinningRow]) -> str:
    lines = []
    for metric, estimator in dict.fromkeys((row["metric"], row["estimator"]) for row in rows):
        some = [row for row in rows if (row["metric"], row["estimator"]) == (metric, estimator)]
        values = [f"{row['value']:.4f} ± {row['se']:.4f}" for row in some]
        lines.append([metric, f"{some[0]['full']:.4f}", estimator, *values])
    return markdown_table("metric | from all labels | estimator | " + " | ".join(f"n = {n}" for n in THINNED), lines)


def reproduce(setting: Setting) -> Reproduction:
    """Train with one and with three labels, calibrate on three, test on all."""
    rows: list[_HumanRow] = []
    thinning: list[ThinningRow] = []
    triage: list[TriagePoint] = []
    sections, charts = [], {}
    for labels in TRAIN_LABELS:
        for seed in setting.seeds:
            outputs = _outputs(setting, seed, labels)
            valid, test = (outputs.take(outputs.partition == part) for part in ("valid", "test"))
            steps = calibration_steps(valid.logits, valid.features, valid.label_counts, valid.groups.tolist())
            predicted = {method: step.apply(test.logits, test.features) for method, step in steps.items()}
            scored: list[_HumanRow] = [
                {**row, "train_labels": labels, "seed": seed} for row in scored_rows(test.label_counts, predicted, None)
            ]
            rows += scored
            sections.append(f"## {labels} label(s) a training photograph, seed {seed}\n\n{markdown(scored)}")
            best = predicted[SERVED]
            if labels == TRAIN_LABELS[-1] and not thinning:
                thinning = _thinning_rows(test, best, seed)
                triage = triage_rows(test.label_counts, best, None)
                evaluation = evaluate(test.label_counts, best.class_probs, best.disagreement_probs)
                charts = {
                    "thinning": thinning_chart(thinning),
                    "triage": triage_chart(triage),
                    "reliability_disagreement": reliability_diagram(
                        evaluation.disagreement_bins, title="served: disagreement", what="disagreement"
                    ),
                }
    text = "\n\n".join([*sections, "## Few labels against all of them (served)", _thinning_table(thinning)])
    return Reproduction(
        what="CIFAR-10N → CIFAR-10H: real human labels",
        rows=rows,
        text=text,
        charts=charts,
        further={"thinning": thinning, "triage": triage, "network": config(setting, 0, 3, "float32").network},
    )
