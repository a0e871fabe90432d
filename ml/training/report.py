"""Recall of each class on held-out cases, and the comparison with the simple baseline."""

from collections.abc import Sequence

import numpy as np

from ml.calibration.calibrators import Calibration
from ml.calibration.scaling import Scaling
from ml.metrics import evaluate
from ml.metrics.paired_difference import paired_changes
from ml.release.card import BaselineDocument, RecallDocument
from ml.release.dropout_head import DropoutHead
from ml.training.baseline import BASELINE_NAME, judged_partition
from ml.training.calibrate import member_outputs
from ml.training.run_folder import RunFolder
from ml.util.arrays import FloatArray, IntArray


def compare_with_baseline(
    label_counts: IntArray, baseline: FloatArray, network: FloatArray, judged_on: str, cluster: Sequence[str]
) -> BaselineDocument:
    """Compare with the baseline on N cells, intervals by patient."""
    probs = [(values, 1 - np.square(values).sum(axis=1)) for values in (baseline, network)]
    clusters = np.array(cluster) if len(set(cluster)) < len(cluster) else None
    changes = paired_changes(label_counts, *probs, cluster=clusters)
    metrics_of_both = [evaluate(label_counts, *pair, cluster=clusters).metrics for pair in probs]
    names = [name for name in ("L", "agreement", "accuracy") if name in changes and name in metrics_of_both[0]]
    before, after = ({str(name): metrics[name].to_dict() for name in names} for metrics in metrics_of_both)
    return {
        "name": BASELINE_NAME,
        "judged_on": judged_on,
        "n_cells": len(label_counts),
        "baseline": before,
        "network": after,
        "change": {name: changes[name].to_dict() for name in names},
    }


def class_recalls(label_counts: IntArray, class_probs: FloatArray, classes: list[str]) -> list[RecallDocument]:
    """Label recall by class; equal leaders share."""
    leads = class_probs == class_probs.max(axis=1, keepdims=True, initial=0.0)
    share = leads / np.maximum(leads.sum(axis=1, keepdims=True), 1)
    n_labels, n_cells = label_counts.sum(axis=0), (label_counts > 0).sum(axis=0)
    hits = (label_counts * share).sum(axis=0)
    return [
        {
            "class": code,
            "recall": float(hits[k] / n_labels[k]) if n_labels[k] else None,
            "n_cells": int(n_cells[k]),
            "n_labels": int(n_labels[k]),
        }
        for k, code in enumerate(classes)
    ]


def report_classes(
    folder: RunFolder, calibration: Calibration, head: DropoutHead | None = None
) -> tuple[list[RecallDocument], BaselineDocument | None]:
    """Report recall by class and the baseline on held-out cells."""
    outputs = folder.read_outputs()
    classes = [info["code"] for info in folder.read_config()["dataset"]["classes"]]
    judged_on = judged_partition(outputs.partition)
    rows = np.flatnonzero(outputs.partition == judged_on)
    part = outputs.take(rows)
    if not len(rows):
        return [], None
    probs = calibration.apply(*member_outputs(part, head)).class_probs
    recall = class_recalls(part.label_counts, probs, classes) if judged_on == "test" else []
    if len(rows) < 2:
        return recall, None
    baseline = np.load(folder.baseline, allow_pickle=False)[rows]
    return recall, compare_with_baseline(part.label_counts, baseline, probs, judged_on, part.groups.tolist())


def trained_beside_baseline(folder: RunFolder) -> BaselineDocument | None:
    """The network as it was trained, before any calibration, beside the baseline."""
    return report_classes(folder, Calibration(Scaling(), None))[1]
