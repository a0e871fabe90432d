"""Cost of an ensemble in serving: one pass, one pass with 20 dropout heads, and 20 augmented passes.

Each is the whole path from a decoded image to intervals, for one image at a time, as a lone request sees it.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.harness import Figures, interleaved, main
from ml.calibration.calibrators import Calibration
from ml.calibration.concentration import ConcentrationHead
from ml.calibration.scaling import Scaling
from ml.distributions.decisions import class_intervals
from ml.distributions.families import PredictiveDistribution
from ml.images.preprocess import Preprocessing
from ml.release.artifact import Release
from ml.release.dropout_head import DropoutHead
from ml.release.predictor import Predictor
from ml.training.export import _Tapped, to_onnx
from ml.training.networks import build_network

ROUNDS, SAMPLES, CLASSES = 40, 20, 8


def predictors(name: str, side: int, folder: Path) -> tuple[Predictor, Predictor]:
    """The same network served plainly, and as a dropout ensemble."""
    torch.manual_seed(0)
    network = build_network(name, 3, CLASSES).eval()
    example = torch.randn(2, 3, side, side)
    layers = [(p, layer.weight.detach().numpy(), layer.bias.detach().numpy()) for p, layer in network.head_layers()]
    width = network.head.in_features
    calibration = Calibration(Scaling(), ConcentrationHead(np.zeros(width), 1.0))
    preprocessing = Preprocessing(3, None, side, (0.5,) * 3, (0.25,) * 3)
    classes = tuple(f"class {k}" for k in range(CLASSES))
    built: list[Predictor] = []
    for kind, served in (("plain", network), ("dropout", _Tapped(network).eval())):
        path = folder / f"{name}_{kind}"
        path.mkdir()
        (path / "network.onnx").write_bytes(to_onnx(served, example, ["logits", "features"]))
        release = Release(path, {"orientation": "any"}, "", classes, preprocessing, calibration)
        if kind == "dropout":
            release = replace(release, head=DropoutHead.draw(layers, samples=SAMPLES))
        built.append(Predictor(release))
    return built[0], built[1]


def measure(quick: bool) -> Figures:
    """Processor seconds of one image by each way."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, side, rounds in (("compact", 48, ROUNDS), ("vgg16", 224, 8)):
            plain, dropout = predictors(name, side, Path(folder))
            image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (side, side, 3), dtype=np.uint8))
            ways = {
                "one pass": lambda plain=plain, image=image: plain.predict([image]).distribution,
                "20 dropout heads": lambda dropout=dropout, image=image: dropout.predict([image]).distribution,
                "20 augmented passes": partial(plain.predict_augmented, [image], samples=SAMPLES),
            }
            works = ways | {f"{path}, with intervals": partial(_with_intervals, run) for path, run in ways.items()}
            figures[name] = interleaved(works, 1 if quick else rounds)
    return figures


def _with_intervals(run: Callable[[], PredictiveDistribution]) -> None:
    class_intervals(run())


if __name__ == "__main__":
    main(__doc__, {"ensembles": measure})
