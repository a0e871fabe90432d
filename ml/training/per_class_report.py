"""Per-class report of a card: recall by class, and the baseline on the same cells."""

import numpy as np

from ml.calibration.calibrators import Calibration
from ml.calibration.scaling import Scaling
from ml.release.card import BaselineDocument, RecallDocument
from ml.release.dropout_head import DropoutHead
from ml.training.baseline import compare_with_baseline
from ml.training.calibrate import member_outputs
from ml.training.run_folder import RunFolder
from ml.util.arrays import FloatArray, IntArray


def class_recalls(label_counts: IntArray, class_probs: FloatArray, classes: list[str]) -> list[RecallDocument]:
    """Recall of each class: the share of its labels on cells where it is the most probable class; equal leaders share.

    Args:
        label_counts: (N, K) of held-out cells.
        class_probs: (N, K).
        classes: K codes.

    Returns:
        For each class its recall (None without labels), and of how many cells and labels.
    """
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
    """Recall on held-out cells, and the network beside the baseline there, or on ``valid`` where none was held out.

    Args:
        folder: finished run.
        calibration: of the network's outputs.
        head: dropout head in between, or None.

    Returns:
        The baseline's document is None where fewer than two cells can judge it.
    """
    outputs = folder.read_outputs()
    classes = [info["code"] for info in folder.read_config()["dataset"]["classes"]]
    judged_on = "test" if (outputs.partition == "test").sum() >= 2 else "valid"
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
