"""The default training on two small sets beside logistic regression on colour histograms, over grouped splits.

``python -m experiments.small_sets [--save] [--splits 5] [--cells 400]``: real blood cells of eight types in natural
proportions (one label each; the source names no patients, so that each cell is its own group), and simulated cells of
40 patients with rare classes (two labels each). Each split trains as ``secondread train`` does by default, with light
augmentation, with that and twice the steps, as it did before there were passes (13 epochs of batches of 128), and with
rare classes weighed up. L is the squared error of the class probabilities for one label; a change is network minus
baseline on the same held-out cells, negative is better. Shifts: change of agreement on the same cells, of the kinds in
``ml.images.standard_shifts``.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from experiments import RESULTS
from ml.annotations import Annotations
from ml.calibration.calibrators import Calibration
from ml.datasets.base import ImageDataset
from ml.datasets.cells import AnnotatorPool, load_cells
from ml.datasets.folder import SHARES
from ml.datasets.pbc import load_pbc
from ml.images.preprocess import Preprocessing, fit_normalisation
from ml.training.calibrate import calibrate_run
from ml.training.data import EPOCHS, batch_for, passes_for
from ml.training.export import export_run
from ml.training.release_checks import UNSHIFTED, ShiftTrial
from ml.training.report import report_classes, trained_beside_baseline
from ml.training.run_folder import RunFolder, TrainConfig
from ml.training.train import choose_precision, train
from ml.util.arrays import FloatArray
from ml.util.files import read_json
from ml.util.splits import stratified_partitions

CPU = torch.device("cpu")
#: Batch size, multiple of the passes for ``MIN_STEPS`` (0: one pass), exponent of the class weights, augmentation.
WAYS: dict[str, tuple[int | None, int, float, str]] = {
    "default": (None, 2, 0.0, "wide"),
    "light augmentation": (None, 1, 0.0, "light"),
    "light augmentation, twice the steps": (None, 2, 0.0, "light"),
    "before (one pass, batches of 128)": (128, 0, 0.0, "light"),
    "rare classes weighed up (0.5)": (None, 1, 0.5, "light"),
}


def picked(data: ImageDataset, rows: FloatArray, groups: list[str], counts: FloatArray, seed: int) -> ImageDataset:
    """Some cells of a data set with these labels, split anew by group."""
    partition = stratified_partitions(groups, counts, SHARES, seed)
    pixels = data.pixels[rows]
    mean, std = fit_normalisation(pixels[partition == "train"])
    old = data.preprocessing
    return replace(
        data,
        pixels=pixels,
        label_counts=counts,
        partition=partition,
        case_ids=[data.case_ids[row] for row in rows],
        patients=groups,
        preprocessing=Preprocessing(old.channels, old.crop, old.size, mean, std),
        true_probs=None,
        pixel_digests=None,
    )


def blood_cells(n: int, seed: int, whole: ImageDataset) -> ImageDataset:
    rows = np.random.default_rng([seed, 1]).choice(len(whole.case_ids), n, replace=False)
    return picked(whole, rows, [whole.case_ids[row] for row in rows], whole.label_counts[rows], seed)


def rare_cells(n: int, seed: int, whole: ImageDataset) -> ImageDataset:
    """Each class half as frequent as the one before, down to a hundredth, in the cells of 40 patients."""
    rng = np.random.default_rng([seed, 2])
    truth, patients = np.asarray(whole.true_probs), np.array(whole.patients)
    kind = truth.argmax(axis=1)
    share = np.maximum(0.5 ** np.arange(truth.shape[1]), 0.02)
    weight = share[rng.permutation(truth.shape[1])][kind] / np.bincount(kind)[kind]
    rows = rng.choice(len(kind), n, replace=False, p=weight / weight.sum())
    _, labels = AnnotatorPool().read(truth[rows], 2, rng)
    order = np.unique(patients[rows], return_inverse=True)[1] % 40
    return picked(whole, rows, [f"p{k}" for k in order], Annotations.of_matrix(labels, truth.shape[1]).counts(), seed)


def one_run(data: ImageDataset, way: str, seed: int, folder: Path) -> dict[str, float]:
    """L, agreement and recall of one training, raw and calibrated, and of the baseline; agreement under shifts."""
    batch, times, balance, augmentation = WAYS[way]
    n = data.rows("train").size
    batch = batch or batch_for(n)
    config = TrainConfig(
        data=data.name,
        data_options={},
        network="compact",
        epochs=EPOCHS,
        batch_size=batch,
        learning_rate=2e-3,
        warmup_epochs=1,
        decay_epochs=(round(0.6 * EPOCHS), round(0.85 * EPOCHS)),
        patience=10,
        seed=seed,
        precision=choose_precision("auto", CPU),
        compiled=False,
        backbone_weights=None,
        passes=times * passes_for(n, batch, "light") or 1,
        class_balance=balance,
        augmentation=augmentation,
    )
    run = RunFolder(folder)
    train(data, config, run, device=CPU)
    raw = trained_beside_baseline(run)
    calibrate_run(run, method="temperature", alpha=False)
    recall, beside = report_classes(run, Calibration.from_dict(read_json(run.calibration)))
    assert raw is not None
    assert beside is not None
    known = [row["recall"] for row in recall if row["recall"] is not None]
    figures = shift_figures(run) | {
        "baseline L": beside["baseline"]["L"]["value"],
        "network L, raw": raw["network"]["L"]["value"],
        "network L": beside["network"]["L"]["value"],
        "change of L": beside["change"]["L"]["value"],
        "change of L, low": beside["change"]["L"]["low"],
        "change of L, high": beside["change"]["L"]["high"],
        "mean recall": float(np.mean(known)),
        "n": float(beside["n_cells"]),
    }
    return {name: float("nan") if value is None else float(value) for name, value in figures.items()}


def shift_figures(run: RunFolder) -> dict[str, float | None]:
    """Agreement on the held-out cells, and by how much hue, defocus and all mild shifts change it."""
    rows = export_run(run, run.path.parent / "release", shifts=ShiftTrial()).card["shifts"]
    found = {(row["kind"], row["strength"]): row for row in rows}
    mild = [row["agreement_change"] for row in rows if row["strength"] == "mild"]
    return {
        "agreement": found[UNSHIFTED, "none"]["agreement"],
        "hue turned by .08": found["hue", "standard"]["agreement_change"],
        "defocus": found["defocus", "standard"]["agreement_change"],
        "mild shifts": float(np.mean([change for change in mild if change is not None])),
    }


def summary(rows: list[dict[str, float]]) -> dict[str, float | int]:
    change = np.array([row["change of L"] for row in rows])
    figures: dict[str, float | int] = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    if len(rows) > 1:
        figures["standard error of the mean change"] = float(change.std(ddof=1) / np.sqrt(len(rows)))
    figures["splits"] = len(rows)
    figures["splits better"] = int((change < 0).sum())
    return figures


def keep(path: Path, name: str, way: str, rows: list[dict[str, float]]) -> None:
    """Write what is known so far; other sets and ways in the file stay."""
    document = read_json(path) if path.is_file() else {"command": "python -m experiments.small_sets --save", "sets": {}}
    document["sets"].setdefault(name, {})[way] = {"splits": rows, "mean": summary(rows)}
    path.write_text(json.dumps(document, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--cells", type=int, default=400)
    parser.add_argument("--sets", nargs="*", default=["blood cells", "simulated"])
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results, after each split")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    makers = {"blood cells": (load_pbc, blood_cells), "simulated": (lambda: load_cells(2500, seed=100), rare_cells)}
    path = RESULTS / f"{date.today().isoformat()}_small_sets.json"
    for name in asked.sets:
        load, make = makers[name]
        whole = load()
        for way in asked.ways:
            rows: list[dict[str, float]] = []
            for seed in range(asked.splits):
                with TemporaryDirectory() as folder:
                    rows.append(one_run(make(asked.cells, seed, whole), way, seed, Path(folder) / "run"))
                print(f"{name}, {way}, split {seed}: " + _line(rows[-1]), flush=True)
                if asked.save:
                    keep(path, name, way, rows)
            print(f"= {name}, {way}: " + _line(summary(rows)), flush=True)


def _line(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in figures.items())


if __name__ == "__main__":
    main()
