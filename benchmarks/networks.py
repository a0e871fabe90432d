"""Releases of VGG16 with random weights, which change no figure of speed."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from benchmarks.pictures import blobs
from ml.calibration.calibrators import Calibration
from ml.calibration.concentration import ConcentrationHead
from ml.calibration.scaling import Scaling
from ml.datasets.base import ClassInfo
from ml.images.image_quality_features import compute_quality_features, feature_columns
from ml.images.preprocess import Preprocessing
from ml.release.artifact import FAMILIARITY_FILE, Release, read_release, write_release
from ml.release.ood_detector import DetectorInputs, fit_ood_detector
from ml.release.predictor import Predictor
from ml.training.export import to_onnx
from ml.training.networks import build_network
from tests.support.tiny_release import write_tiny_release

VGG_SIDE, VGG_CLASSES = 224, 22


def write_network_release(folder: Path, graph: bytes, width: int, preprocessing: Preprocessing, name: str) -> Release:
    """A release of VGG16 as a graph, with checks of how familiar an image looks.

    Args:
        folder: to work in.
        graph: the network in ONNX.
        width: of its features.
        preprocessing: of its images.
        name: of the release.
    """
    classes = [ClassInfo(f"class-{k}", f"Class {k}", "") for k in range(VGG_CLASSES)]
    card = {
        **read_release(write_tiny_release(folder / f"tiny {name}")).card,
        "preprocessing": preprocessing.to_dict(),
        "classes": [asdict(info) for info in classes],
        "network": "vgg16",
    }
    calibration = Calibration(Scaling(), ConcentrationHead(np.zeros(width), 1.0))
    plain = write_release(folder / f"plain {name}", {"network.onnx": graph}, calibration, card, "for benchmarks")
    files = {"network.onnx": graph, FAMILIARITY_FILE: _familiarity(plain)}
    return write_release(folder / name, files, calibration, card, "for benchmarks")


def vgg_graph() -> tuple[bytes, int, Preprocessing]:
    """The paper's VGG16 in ONNX, the width of its features, and the preprocessing of its images."""
    torch.manual_seed(0)
    network = build_network("vgg16", 3, VGG_CLASSES).eval()
    graph = to_onnx(network, torch.randn(2, 3, VGG_SIDE, VGG_SIDE), ["logits", "features"])
    return graph, network.head.in_features, Preprocessing(3, None, VGG_SIDE, (0.5,) * 3, (0.25,) * 3)


def _familiarity(release: Release) -> bytes:
    pixels = blobs(40, release.preprocessing.size, 2)
    logits, features = Predictor(release, device="cpu").outputs(list(pixels))
    looks = compute_quality_features(pixels)
    halves = [DetectorInputs(features[rows], logits[rows], looks[rows]) for rows in (slice(0, 20), slice(20, 40))]
    detector = fit_ood_detector(halves[0], halves[1], feature_columns(release.preprocessing.size, 3))
    assert detector is not None
    return detector.to_bytes()
