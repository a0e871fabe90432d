"""A release of some ten kilobytes that a laptop makes in a second: for tests of what the service does with one.

It is a real release: an ONNX network of two layers on 8 × 8 pixels, fitted by least squares to simulated cells in full
and in faded stain (so that it still tells cells apart where a test lets the stain fade), calibrated by the library,
with a feature distance, a reference and held-out metrics on its card.
"""

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image, ImageEnhance

from ml.annotations import Annotations
from ml.calibration.calibrators import calibrate
from ml.datasets.base import ClassInfo
from ml.datasets.cells import CLASSES, AnnotatorPool, SimulatedCell, simulate_cells
from ml.images.image_quality_features import compute_quality_features, feature_columns, optical_density
from ml.images.preprocess import Preprocessing, fit_normalisation
from ml.metrics import evaluate
from ml.release.artifact import DISTANCE_FILE, FAMILIARITY_FILE, read_release, write_release
from ml.release.device import open_session
from ml.release.ood_detector import DetectorInputs, fit_feature_distance, fit_ood_detector
from ml.release.predictor import Predictor
from ml.release.training_index import INDEX_FILE, TrainingIndex
from ml.util.files import file_sha256, read_json, write_json

SIDE, FEATURES, CELLS, LABELS = 8, 12, 240, 3
FITTED, CALIBRATED = slice(0, 120), slice(120, 180)
HELD_OUT = slice(180, CELLS)
#: Colour of a faded stain.
FADED = 0.6
METRICS = ("agreement", "L", "skill", "EL", "CE", "L_D", "skill_D", "CE_D")

PARTITIONS = {"train": 120, "calibration": 60, "test": 60}


def split_classes(parts: int, *, grouped: bool) -> tuple[ClassInfo, ...]:
    """Each class of the cells split into so many, without keys."""
    return tuple(
        ClassInfo(f"{info.code}_{part}", f"{info.name} {part}", "", info.group if grouped else "")
        for info in CLASSES
        for part in range(1, parts + 1)
    )


def write_tiny_release(path: Path, name: str = "tiny cells", classes: tuple[ClassInfo, ...] = CLASSES) -> Path:
    """Write the release; ``classes`` are those of the cells, or each split into equally many."""
    cells = simulate_cells(CELLS, seed=11, size=32)
    plain = Preprocessing(3, None, SIDE, (0.0,) * 3, (1.0,) * 3)
    pixels = np.stack([plain.pixels(Image.fromarray(cell.pixels)) for cell in cells])
    preprocessing = Preprocessing(3, None, SIDE, *fit_normalisation(pixels[FITTED]))
    inputs = preprocessing.normalise(pixels)
    share = 1.0 / np.arange(1, len(classes) // len(CLASSES) + 1)
    truth = np.kron(np.stack([cell.true_probs for cell in cells]), share / share.sum())
    faded = [ImageEnhance.Color(Image.fromarray(cell.pixels)).enhance(FADED) for cell in cells[FITTED]]
    seen = np.concatenate([inputs[FITTED], preprocessing.normalise(np.stack([plain.pixels(cell) for cell in faded]))])
    network = _network(seen, np.concatenate([truth[FITTED]] * 2))
    logits, features = open_session(network).run(["logits", "features"], {"image": inputs})
    counts = _label_counts(truth)
    groups = [cell.patient for cell in cells]
    fit = calibrate(logits[CALIBRATED], features[CALIBRATED], counts[CALIBRATED], groups[CALIBRATED])
    distance = fit_feature_distance(features[FITTED], features[HELD_OUT])
    assert distance is not None
    predicted = fit.calibration.apply(logits[HELD_OUT], features[HELD_OUT])
    measured = evaluate(counts[HELD_OUT], predicted.class_probs, predicted.disagreement_probs).to_dict()["metrics"]
    card = _card(name, classes, preprocessing, fit.report, {metric: measured[metric] for metric in METRICS})
    squared = np.square(distance(features[HELD_OUT]))
    card["reference"] = _reference(cells, counts) | {
        "distance_sq_mean": float(squared.mean()),
        "distance_sq_sd": float(squared.std(ddof=1)),
        "n_distance": len(squared),
    }
    card["measured_network_sha256"] = hashlib.sha256(network).hexdigest()
    files = {"network.onnx": network, DISTANCE_FILE: distance.to_bytes()}
    return write_release(path, files, fit.calibration, card).path


def with_training(source: Path, out: Path, index: TrainingIndex) -> Path:
    """The same release, which says that it was trained on what the index has."""
    return edit_release(source, out, {INDEX_FILE: index.to_bytes()}, training=index.document())


def edit_release(source: Path, out: Path, files: Mapping[str, bytes] = MappingProxyType({}), **card: Any) -> Path:
    """A copy of a release with other files, and with other fields on its card."""
    shutil.copytree(source, out)
    document = read_json(out / "card.json") | card
    for name, data in files.items():
        (out / name).write_bytes(data)
        document["files"][name] = file_sha256(out / name)
    write_json(out / "card.json", document)
    return out


def _network(inputs: npt.NDArray[np.float32], truth: npt.NDArray[np.float64]) -> bytes:
    """Image → ReLU of random projections (the features) → log probabilities by ridge regression."""
    flat = inputs.reshape(len(inputs), -1).astype(np.float64)
    rng = np.random.default_rng(5)
    project = rng.normal(size=(flat.shape[1], FEATURES)) / np.sqrt(flat.shape[1])
    shift = rng.uniform(0, 1, FEATURES)
    features = np.maximum(flat @ project + shift, 0)
    columns = np.column_stack([features, np.ones(len(features))])
    target = np.log(truth + 0.02)
    weight = np.linalg.solve(columns.T @ columns + np.eye(FEATURES + 1), columns.T @ target)
    tensors = {"project": project, "shift": shift, "weight": weight[:-1], "bias": weight[-1]}
    nodes = [
        helper.make_node("Flatten", ["image"], ["flat"]),
        helper.make_node("Gemm", ["flat", "project", "shift"], ["projected"]),
        helper.make_node("Relu", ["projected"], ["features"]),
        helper.make_node("Gemm", ["features", "weight", "bias"], ["logits"]),
    ]
    shapes: dict[str, list[int | str]] = {
        "image": ["batch", 3, SIDE, SIDE],
        "logits": ["batch", truth.shape[1]],
        "features": ["batch", FEATURES],
    }
    infos = {key: helper.make_tensor_value_info(key, TensorProto.FLOAT, shape) for key, shape in shapes.items()}
    initial = [numpy_helper.from_array(values.astype(np.float32), key) for key, values in tensors.items()]
    graph = helper.make_graph(nodes, "tiny", [infos["image"]], [infos["logits"], infos["features"]], initial)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))


def _label_counts(truth: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    _, labels = AnnotatorPool().read(truth, LABELS, np.random.default_rng(6))
    return np.asarray(Annotations.of_matrix(labels, truth.shape[1]).counts())


def _reference(cells: list[SimulatedCell], counts: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Stain and mix of labels of familiar cells."""
    stain = np.array([optical_density(cell.pixels) for cell in cells[FITTED]])
    mix = counts[HELD_OUT].sum(axis=0)
    return {
        "stain_mean": stain.mean(axis=0).tolist(),
        "stain_sd": stain.std(axis=0, ddof=1).tolist(),
        "n_stain": len(stain),
        "label_share": (mix / mix.sum()).tolist(),
        "n_labels": int(mix.sum()),
    }


def _card(
    name: str,
    classes: tuple[ClassInfo, ...],
    preprocessing: Preprocessing,
    fit: dict[str, Any],
    held_out: dict[str, Any],
) -> dict[str, Any]:
    return {
        "name": name,
        "classes": [asdict(info) for info in classes],
        "preprocessing": preprocessing.to_dict(),
        "orientation": "any",
        "network": "two layers",
        "seed": 5,
        "data": {
            "name": "cells",
            "source": f"{CELLS} simulated cells",
            "partitions": PARTITIONS,
            "class_counts": {part: [count // len(classes)] * len(classes) for part, count in PARTITIONS.items()},
            "annotators": None,
            "split_by": "patient",
        },
        "licence": "Apache-2.0, simulated by this project",
        "calibration": fit,
        "mc_dropout": None,
        "disagreement_calibrated": True,
        "held_out": {"with concentration head": held_out},
        "n_held_out": CELLS - HELD_OUT.start,
        "parity": None,
        "parent": None,
        "versions": {},
        "limits_of_use": ["For tests."],
    }


def with_familiarity(source: Path, out: Path) -> Path:
    """The same release with checks of familiarity, fitted to cells like those that it was made from."""
    predictor = Predictor(read_release(source))
    cells = [Image.fromarray(cell.pixels) for cell in simulate_cells(CELLS, seed=11, size=32)]
    pixels = predictor.pixels(cells)
    logits, features = predictor.outputs(pixels)
    seen = [
        DetectorInputs(features[rows], logits[rows], compute_quality_features(np.stack(pixels[rows])))
        for rows in (slice(0, CELLS, 2), slice(1, CELLS, 2))
    ]
    found = fit_ood_detector(seen[0], seen[1], feature_columns(SIDE, 3))
    assert found is not None
    return edit_release(source, out, {FAMILIARITY_FILE: found.to_bytes()})


def without_check(source: Path, out: Path) -> Path:
    """The same release with nothing that notices unlike images."""
    shutil.copytree(source, out)
    (out / DISTANCE_FILE).unlink()
    card = read_json(out / "card.json")
    del card["files"][DISTANCE_FILE]
    write_json(out / "card.json", card)
    return read_release(out).path


def with_stated_metrics(source: Path, out: Path, **changes: Any) -> Path:
    """The same release with a card whose metrics were measured on another network."""
    return read_release(edit_release(source, out, **({"measured_network_sha256": "0" * 64} | changes))).path
