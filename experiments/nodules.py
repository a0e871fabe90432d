"""Lung nodules: measured features in, the malignancy ratings of four radiologists out, split by patient.

Five folds of patients: a ridge regression is fitted on three, calibrated on one and tested on the last, so that
every nodule is tested once. Radiologists differ between patients, so the labels are exchangeable by design.
"""

from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
from pyarrow import csv
from scipy.special import log_softmax

from experiments import reproduce_from_arguments
from ml.agreement.coefficients import fleiss_kappa, krippendorff_alpha
from ml.calibration.optimise import minimise
from ml.charts.reliability import reliability_diagram
from ml.charts.results import triage_chart
from ml.datasets.base import datasets_folder
from ml.distributions.families import DirichletCpe, PointCpe, PredictiveDistribution, softmax_probs
from ml.metrics import evaluate
from ml.metrics.jackknife import EstimateDocument
from ml.metrics.u_statistics import expected_statistic, statistic_calibration_loss, statistic_loss
from ml.reproduce.report import Reproduction, Setting
from ml.reproduce.scoring import SERVED, calibration_steps, markdown, scored_rows, triage_rows
from ml.util.arrays import FloatArray, IntArray
from ml.util.splits import split_partitions

#: 1 highly unlikely … 3 indeterminate … 5 highly suspicious.
MALIGNANCY = ("1", "2", "3", "4", "5")
N_READERS = 4
_KEYS = {"patient", "nodule_id", "instance_id", "z_position"}
_RATINGS = (
    "Subtlety",
    "InternalStructure",
    "Calcification",
    "Sphericity",
    "Margin",
    "Lobulation",
    "Spiculation",
    "Texture",
    "Malignancy",
)


@dataclass(frozen=True)
class Nodules:
    """Measured features (N, D), malignancy by position (N, 4), whose persons differ between patients, and patients."""

    features: FloatArray
    labels: IntArray
    label_counts: IntArray
    patients: npt.NDArray[np.str_]


def load_nodules() -> Nodules:
    """All 809 nodules of 522 patients (LIDC-IDRI)."""
    folder = datasets_folder("lidc_nodule_ratings", "github.com/ysriram1/LIDC, LIDC_REU2015.csv")
    table = csv.read_csv(folder / "lidc_nodules.csv.gz")
    ratings = [f"Malignancy_{reader}" for reader in range(1, N_READERS + 1)]
    ratings_of_all = {f"{rating}_{reader}" for rating in _RATINGS for reader in range(1, N_READERS + 1)}
    measured = [name for name in table.column_names if name not in _KEYS | ratings_of_all]
    labels = np.stack([table.column(name).to_numpy() for name in ratings], axis=1).astype(np.int64) - 1
    return Nodules(
        features=np.stack([table.column(name).to_numpy().astype(np.float64) for name in measured], axis=1),
        labels=labels,
        label_counts=np.asarray((labels[..., None] == np.arange(len(MALIGNANCY))).sum(axis=1), dtype=np.int64),
        patients=np.array([str(name) for name in table.column("patient").to_pylist()]),
    )


FOLDS = 5
RIDGE = 3e-3


def fit_regression(features: FloatArray, counts: IntArray) -> FloatArray:
    """Weights (D + 1, K) of a multinomial regression with a ridge on all but the constant."""
    design = np.column_stack([features, np.ones(len(features))])
    shape, n_labels = (design.shape[1], counts.shape[1]), counts.sum()

    def objective(x: FloatArray) -> tuple[float, FloatArray]:
        weight = x.reshape(shape)
        logs = log_softmax(design @ weight, axis=1)
        residual = (counts.sum(axis=1, keepdims=True) * np.exp(logs) - counts) / n_labels
        slope = design.T @ residual
        slope[:-1] += RIDGE * weight[:-1]
        loss = -(counts * logs).sum() / n_labels + 0.5 * RIDGE * (weight[:-1] ** 2).sum()
        return float(loss), slope.ravel()

    return minimise(objective, np.zeros(shape[0] * shape[1]), "regression")[0].reshape(shape)


def _fold(data: Nodules, fold: Any, number: int) -> dict[str, tuple[FloatArray, FloatArray | None]]:
    """Class probabilities and log concentrations of the test nodules of one fold, by method."""
    test, held = fold == number, fold == (number + 1) % FOLDS
    train = ~(test | held)
    centre, spread = data.features[train].mean(axis=0), data.features[train].std(axis=0)
    inputs = (data.features - centre) / np.where(spread > 0, spread, 1.0)
    # a few nodules are measured far outside the others' range
    inputs = np.clip(inputs, -5, 5)
    weight = fit_regression(inputs[train], data.label_counts[train])
    logits = np.column_stack([inputs, np.ones(len(inputs))]) @ weight
    # the head reads what the regression says, not its 67 inputs: a hundred nodules cannot support more
    features = softmax_probs(logits)
    steps = calibration_steps(logits[held], features[held], data.label_counts[held], data.patients[held].tolist())
    predicted = {}
    for method, calibration in steps.items():
        distribution = calibration.apply(logits[test], features[test])
        a = distribution.log_concentration if isinstance(distribution, DirichletCpe) else None
        predicted[method] = (distribution.class_probs, a)
    return predicted


def predictions(data: Nodules, seed: int, observer: Any) -> dict[str, PredictiveDistribution]:
    """Every nodule predicted by a model that saw no nodule of its patient."""
    names = [str(number) for number in range(FOLDS)]
    shares = dict.fromkeys(names, 1 / FOLDS)
    fold = split_partitions(data.patients.tolist(), shares, seed).astype(int)
    parts = []
    for number in range(FOLDS):
        parts.append(_fold(data, fold, number))
        observer("fitting", number + 1, FOLDS)
    predicted: dict[str, PredictiveDistribution] = {}
    for method in parts[0]:
        probs, a = np.empty(data.label_counts.shape), np.empty(len(fold))
        for number, part in enumerate(parts):
            probs[fold == number] = part[method][0]
            if part[method][1] is not None:
                a[fold == number] = part[method][1]
        predicted[method] = DirichletCpe(probs, a) if "α" in method else PointCpe(probs)
    return predicted


def malignant_majority(counts: IntArray) -> float:
    """1 where at least two of three radiologists call a nodule suspicious (4 or 5)."""
    return float(counts[3:].sum() >= 2)


class _MajorityRow(TypedDict):
    """Accuracy of a method for the majority's verdict that a nodule is suspicious."""

    method: str
    majority_loss: EstimateDocument
    majority_CL: EstimateDocument


def _majority_table(data: Nodules, distributions: dict[str, PredictiveDistribution]) -> tuple[str, list[_MajorityRow]]:
    lines = ["| method | squared loss | calibration loss |", "|---|---|---|"]
    rows: list[_MajorityRow] = []
    for method, distribution in distributions.items():
        predicted = expected_statistic(distribution, malignant_majority, 3)
        args = (data.label_counts, np.clip(predicted, 0, 1), malignant_majority, 3)
        loss = statistic_loss(*args, cluster=data.patients)
        gap = statistic_calibration_loss(*args, cluster=data.patients)
        rows.append({"method": method, "majority_loss": loss.to_dict(), "majority_CL": gap.to_dict()})
        lines.append(f"| {method} | {loss.value:.4f} ± {loss.se:.4f} | {gap.value:.5f} ± {gap.se:.5f} |")
    return "\n".join(lines), rows


def reproduce(setting: Setting) -> Reproduction:
    """Fit, calibrate and test by patient."""
    data = load_nodules()
    predicted = predictions(data, setting.seeds[0], setting.observer)
    rows = scored_rows(data.label_counts, predicted, data.patients)
    ordinal = krippendorff_alpha(data.label_counts, level="ordinal", cluster=data.patients)
    fleiss = fleiss_kappa(data.label_counts, cluster=data.patients)
    majority, majority_rows = _majority_table(data, predicted)
    best = predicted[SERVED]
    evaluation = evaluate(data.label_counts, best.class_probs, best.disagreement_probs, cluster=data.patients)
    triage = triage_rows(data.label_counts, best, data.patients)
    agree = f"Krippendorff's α (ordinal) {ordinal.value:.3f} ({ordinal.low:.3f} to {ordinal.high:.3f}), "
    agree += f"Fleiss' κ {fleiss.value:.3f} ({fleiss.low:.3f} to {fleiss.high:.3f})."
    text = f"{len(data.patients)} nodules of {len(set(data.patients.tolist()))} patients; errors by patient. {agree}"
    text += f"\n\n{markdown(rows)}\n\n## At least two of three radiologists call it suspicious\n\n{majority}"
    return Reproduction(
        what="Lung nodules: malignancy by four radiologists",
        rows=rows,
        text=text,
        charts={
            "triage": triage_chart(triage),
            "reliability_disagreement": reliability_diagram(
                evaluation.disagreement_bins, title="served: disagreement", what="disagreement"
            ),
            "reliability_classes": reliability_diagram(
                evaluation.class_bins, title="served: all classes", what="probability"
            ),
        },
        further={
            "majority": majority_rows,
            "krippendorff_ordinal": ordinal.to_dict(),
            "fleiss": fleiss.to_dict(),
            "triage": triage,
        },
    )


def main() -> None:
    reproduce_from_arguments("lidc", __doc__, reproduce)


if __name__ == "__main__":
    main()
