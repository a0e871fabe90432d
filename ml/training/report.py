"""Recall of each class on held-out cases, and the comparison with logistic regression on colour histograms."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from ml.calibration.calibrators import Calibration
from ml.calibration.scaling import Scaling
from ml.datasets.base import ImageDataset
from ml.images.preprocess import Pixels
from ml.metrics import evaluate
from ml.metrics.paired_difference import paired_changes
from ml.release.card import BaselineDocument, RecallDocument
from ml.release.dropout_head import DropoutHead
from ml.training.calibrate import member_outputs
from ml.training.run_folder import RunFolder
from ml.util.arrays import FloatArray, IntArray

BASELINE_NAME = "multinomial logistic regression on colour histograms"
#: Strengths of the penalty, of which the partition ``valid`` chooses one.
_PENALTIES = (1.0, 0.1, 0.01, 0.001)
_LEVELS, _SHADES = 4, 8
# images at a time: their pixels are counted as whole numbers of eight bytes
_BLOCK = 256


@dataclass(frozen=True)
class Baseline:
    """Baseline: standardisation and weights (D + 1, K), intercept last."""

    mean: FloatArray
    scale: FloatArray
    weight: FloatArray

    def __call__(self, pixels: Pixels) -> FloatArray:
        """Class probabilities (N, K) of images (N, H, W, C)."""
        return np.asarray(softmax(_columns(histograms(pixels), self.mean, self.scale) @ self.weight, axis=1))


def histograms(pixels: Pixels) -> FloatArray:
    """Square roots of colour shares, by channel and jointly for RGB."""
    blocks = [_histograms(pixels[start : start + _BLOCK]) for start in range(0, len(pixels), _BLOCK)]
    return np.sqrt(np.concatenate(blocks or [_histograms(pixels)]))


def _histograms(pixels: Pixels) -> FloatArray:
    n, channels = len(pixels), pixels.shape[-1]
    flat = pixels.reshape(n, -1, channels).astype(np.int64)
    parts = [_shares(flat[..., c] * _SHADES // 256, _SHADES) for c in range(channels)]
    if channels == 3:
        level = flat * _LEVELS // 256
        parts.append(_shares((level[..., 0] * _LEVELS + level[..., 1]) * _LEVELS + level[..., 2], _LEVELS**3))
    return np.hstack(parts)


def _shares(values: IntArray, n_values: int) -> FloatArray:
    offset = np.arange(len(values))[:, None] * n_values
    counts = np.bincount((values + offset).ravel(), minlength=len(values) * n_values)
    return np.asarray(counts.reshape(len(values), n_values) / values.shape[1])


def _columns(features: FloatArray, mean: FloatArray, scale: FloatArray) -> FloatArray:
    return np.hstack([(features - mean) / scale, np.ones((len(features), 1))])


def fit_baseline(dataset: ImageDataset) -> Baseline:
    """Fit by L-BFGS on ``train``; ``valid`` chooses the penalty."""
    train, valid = dataset.rows("train"), dataset.rows("valid")
    features = histograms(dataset.pixels[train])
    mean, scale = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-3)
    inner, counts = _columns(features, mean, scale), dataset.label_counts[train].astype(np.float64)
    outer = _columns(histograms(dataset.pixels[valid]), mean, scale)
    weight = np.zeros((inner.shape[1], counts.shape[1]))
    fits: list[tuple[float, FloatArray]] = []
    for penalty in _PENALTIES:
        weight = _fitted(inner, counts, penalty, weight)
        fits.append((_nll(outer @ weight, dataset.label_counts[valid]), weight))
    return Baseline(mean, scale, min(fits, key=lambda fit: fit[0])[1])


def _nll(logits: FloatArray, counts: IntArray | FloatArray) -> float:
    return -float((counts * log_softmax(logits, axis=1)).sum()) / max(float(counts.sum()), 1.0)


def _fitted(columns: FloatArray, counts: FloatArray, penalty: float, start: FloatArray) -> FloatArray:
    """Weights (D + 1, K) of least penalised loss."""
    total, shape = max(float(counts.sum()), 1.0), start.shape
    n_labels = counts.sum(axis=1, keepdims=True)
    free = np.ones((shape[0], 1))
    free[-1] = 0.0  # the intercept is not shrunk

    def loss(flat: FloatArray) -> tuple[float, FloatArray]:
        weight = flat.reshape(shape)
        logits = columns @ weight
        gradient = columns.T @ (n_labels * softmax(logits, axis=1) - counts) / total + penalty * free * weight
        return _nll(logits, counts) + penalty / 2 * float((free * weight**2).sum()), gradient.ravel()

    optimum = minimize(loss, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 300})
    return np.asarray(optimum.x, dtype=np.float64).reshape(shape)


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
