"""Lung nodules: measured features in, the malignancy ratings of four radiologists out, split by patient.

Five folds of patients: a ridge regression is fitted on three, calibrated on one and tested on the last, so that
every nodule is tested once. Radiologists differ between patients, so the labels are exchangeable by design.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
from pyarrow import csv
from scipy.special import log_softmax

from experiments import reproduce_from_arguments
from ml.agreement.coefficients import fleiss_kappa, krippendorff_alpha
from ml.calibration.calibrators import FitReport, calibrate
from ml.calibration.optimise import minimise
from ml.charts.reliability import reliability_diagram
from ml.charts.results import triage_chart
from ml.datasets.base import datasets_folder
from ml.distributions.families import (
    DirichletCpe,
    DirichletMixtureCpe,
    PointCpe,
    PredictiveDistribution,
    members_of,
    softmax_probs,
)
from ml.metrics import evaluate
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


FOLDS, SPLITS = 5, 3
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


@dataclass(frozen=True)
class Fold:
    """Outputs of a regression on other patients: nodules to calibrate on, and nodules to test."""

    logits: FloatArray
    features: FloatArray
    held: npt.NDArray[np.bool_]
    test: npt.NDArray[np.bool_]


def folds(data: Nodules, seed: int) -> list[Fold]:
    """Five folds of patients, each tested once and calibrated on once."""
    shares = {str(number): 1 / FOLDS for number in range(FOLDS)}
    fold = split_partitions(data.patients.tolist(), shares, seed).astype(int)
    found = []
    for number in range(FOLDS):
        test, held = fold == number, fold == (number + 1) % FOLDS
        train = ~(test | held)
        centre, spread = data.features[train].mean(axis=0), data.features[train].std(axis=0)
        # a few nodules are measured far outside the others' range
        inputs = np.clip((data.features - centre) / np.where(spread > 0, spread, 1.0), -5, 5)
        weight = fit_regression(inputs[train], data.label_counts[train])
        logits = np.column_stack([inputs, np.ones(len(inputs))]) @ weight
        # the head reads what the regression says, not its 67 inputs: a hundred nodules cannot support more
        found.append(Fold(logits, softmax_probs(logits), held, test))
    return found


def joined(parts: Sequence[tuple[npt.NDArray[np.bool_], PredictiveDistribution]]) -> PredictiveDistribution:
    """One distribution of all nodules, by those of the folds; of a single member there are as many alike."""
    members = [members_of(distribution) for _, distribution in parts]
    n_members = max(len(a) for _, a, _ in members)
    shape = (n_members, len(parts[0][0]))
    probs, a = np.empty((*shape, members[0][0].shape[-1])), np.empty(shape)
    for (rows, _), (fold_probs, fold_a, _) in zip(parts, members, strict=True):
        probs[:, rows], a[:, rows] = fold_probs, fold_a
    if n_members > 1:
        return DirichletMixtureCpe(probs, a)
    return PointCpe(probs[0]) if np.isinf(a).all() else DirichletCpe(probs[0], a[0])


def predictions(data: Nodules, seed: int, observer: Any) -> dict[str, PredictiveDistribution]:
    """Every nodule predicted by a model that saw no nodule of its patient."""
    parts: dict[str, list[tuple[npt.NDArray[np.bool_], PredictiveDistribution]]] = {}
    for number, fold in enumerate(folds(data, seed)):
        fitted_on = fold.logits[fold.held], fold.features[fold.held], data.label_counts[fold.held]
        for method, calibration in calibration_steps(*fitted_on, data.patients[fold.held].tolist()).items():
            said = calibration.apply(fold.logits[fold.test], fold.features[fold.test])
            parts.setdefault(method, []).append((fold.test, said))
        observer("fitting", number + 1, FOLDS)
    return {method: joined(by_fold) for method, by_fold in parts.items()}


def next_label_losses(distribution: PredictiveDistribution, labels: IntArray) -> FloatArray:
    """Log losses (n, N) of the next of n labels (N, n) after 0, 1, … of the others, over all choices of these."""
    n_classes = distribution.class_probs.shape[1]
    likelihoods = [np.zeros(len(labels))]
    for m in range(1, labels.shape[1] + 1):
        choices = list(combinations(range(labels.shape[1]), m))
        counts = [(labels[:, list(some), None] == np.arange(n_classes)).sum(axis=1) for some in choices]
        likelihoods.append(np.mean([distribution.log_likelihood(some) for some in counts], axis=0))
    return np.asarray(-np.diff(likelihoods, axis=0))


def error_by_patient(values: FloatArray, patients: npt.NDArray[np.str_]) -> float:
    """Standard error of a mean (N,) of nodules that hang together by patient."""
    sums = np.bincount(np.unique(patients, return_inverse=True)[1], values - values.mean())
    return float(np.sqrt(sums @ sums) / len(values))


class _SplitRow(TypedDict):
    """What a split into patients gains by all that is served after temperature and head."""

    seed: int
    loss: list[float]  # log loss of the next label after 0, 1, 2 and 3 labels, before
    change: list[float]
    change_se: list[float]
    skill_before: float
    skill: float
    skill_se: float
    fits: list[dict[str, Any]]  # by fold: what was chosen, on how many nodules of how many patients


def _split_row(data: Nodules, seed: int, observer: Any) -> _SplitRow:
    parts: dict[bool, list[tuple[npt.NDArray[np.bool_], PredictiveDistribution]]] = {False: [], True: []}
    fits = []
    for number, fold in enumerate(folds(data, seed)):
        patients = data.patients[fold.held].tolist()
        for refined, by_fold in parts.items():
            fitted_on = fold.logits[fold.held], fold.features[fold.held], data.label_counts[fold.held]
            fit: FitReport = calibrate(*fitted_on, patients, refined=refined, level="ordinal")
            by_fold.append((fold.test, fit.calibration.apply(fold.logits[fold.test], fold.features[fold.test])))
        size = {"n_nodules": int(fold.held.sum()), "n_patients": len(set(patients))}
        fits.append({**size, **fit.report.get("refinement", {})})
        observer(f"split {seed}", number + 1, FOLDS)
    before, after = (joined(by_fold) for by_fold in parts.values())
    first, change = next_label_losses(before, data.labels), next_label_losses(after, data.labels)
    change -= first
    skills = [
        evaluate(data.label_counts, d.class_probs, d.disagreement_probs, cluster=data.patients).metrics["skill_D"]
        for d in (before, after)
    ]
    return {
        "seed": seed,
        "loss": first.mean(axis=1).tolist(),
        "change": change.mean(axis=1).tolist(),
        "change_se": [error_by_patient(row, data.patients) for row in change],
        "skill_before": float(skills[0].value),
        "skill": float(skills[1].value),
        "skill_se": float(skills[1].se or np.nan),
        "fits": fits,
    }


def _split_table(rows: Sequence[_SplitRow]) -> str:
    header = "| split | after no label | after 1 | after 2 | after 3 | skill_φ before | skill_φ |"
    lines = [header, "|---" * 7 + "|"]
    for row in rows:
        losses = zip(row["loss"], row["change"], row["change_se"], strict=True)
        cells = [f"{loss:.4f} {change:+.4f} ± {se:.4f}" for loss, change, se in losses]
        skill = f"{row['skill_before']:.4f} | {row['skill']:.4f} ± {row['skill_se']:.4f}"
        lines.append(f"| {row['seed']} | {' | '.join(cells)} | {skill} |")
    lines += ["", "| split | fold | calibrated on | Dirichlet | logistic normal | chosen | map of φ | pair head |"]
    lines.append("|---" * 8 + "|")
    for row in rows:
        for number, fit in enumerate(row["fits"]):
            chosen = "logistic normal" if fit["neighbours"] else "Dirichlet"
            losses_of_fold = f"{fit['dirichlet']:.4f} | {fit['logistic_normal']:.4f}"
            sizes = f"{fit['n_nodules']} nodules of {fit['n_patients']} patients"
            last = f"{fit['map']} | {fit['pair_share']:g}"
            lines.append(f"| {row['seed']} | {number} | {sizes} | {losses_of_fold} | {chosen} | {last} |")
    return "\n".join(lines)


def reproduce(setting: Setting) -> Reproduction:
    """Fit, calibrate and test by patient."""
    data, n_splits = load_nodules(), 1 if setting.quick else SPLITS
    predicted = predictions(data, setting.seeds[0], setting.observer)
    rows = scored_rows(data.label_counts, predicted, data.patients)
    ordinal = krippendorff_alpha(data.label_counts, level="ordinal", cluster=data.patients)
    fleiss = fleiss_kappa(data.label_counts, cluster=data.patients)
    splits = [_split_row(data, seed, setting.observer) for seed in range(setting.seeds[0], setting.seeds[0] + n_splits)]
    best = predicted[SERVED]
    evaluation = evaluate(data.label_counts, best.class_probs, best.disagreement_probs, cluster=data.patients)
    triage = triage_rows(data.label_counts, best, data.patients)
    agree = f"Krippendorff's α (ordinal) {ordinal.value:.3f} ({ordinal.low:.3f} to {ordinal.high:.3f}), "
    agree += f"Fleiss' κ {fleiss.value:.3f} ({fleiss.low:.3f} to {fleiss.high:.3f})."
    text = f"{len(data.patients)} nodules of {len(set(data.patients.tolist()))} patients; errors by patient. {agree}"
    text += (
        f"\n\n{markdown(rows)}\n\n## Log loss of the next label\n\nWith temperature and head, and the change by all "
    )
    text += (
        "that is served. Each choice is made on one fold of patients, by likelihood or pairs out of fold, and judged "
    )
    text += f"on another.\n\n{_split_table(splits)}"
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
            "splits": splits,
            "krippendorff_ordinal": ordinal.to_dict(),
            "fleiss": fleiss.to_dict(),
            "triage": triage,
        },
    )


def main() -> None:
    reproduce_from_arguments("lidc", __doc__, reproduce)


if __name__ == "__main__":
    main()
