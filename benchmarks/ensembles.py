"""What an ensemble costs in serving: one pass, one pass with 20 dropout heads, and 20 augmented passes.

Each is the whole path from a decoded image to intervals, for one image at a time, as a lone request sees it.
Times are medians of interleaved rounds. ``--save`` keeps the figures in ``results/``.
"""

import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

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
    found = []
    for kind, served in (("plain", network), ("dropout", _Tapped(network).eval())):
        path = folder / f"{name}_{kind}"
        path.mkdir()
        (path / "network.onnx").write_bytes(to_onnx(served, example, ["logits", "features"]))
        release = Release(path, {"orientation": "any"}, "", classes, preprocessing, calibration)
        if kind == "dropout":
            release = replace(release, head=DropoutHead.draw(layers, samples=SAMPLES))
        found.append(Predictor(release))
    return found[0], found[1]


def predicted(predictor: Predictor, image: Image.Image) -> PredictiveDistribution:
    return predictor.predict([image]).distribution


def main() -> None:
    document: dict[str, object] = {"date": date.today().isoformat(), "machine": f"{platform.machine()}, two cores"}
    with tempfile.TemporaryDirectory() as folder:
        for name, side, rounds in (("compact", 48, ROUNDS), ("vgg16", 224, 8)):
            plain, dropout = predictors(name, side, Path(folder))
            image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (side, side, 3), dtype=np.uint8))
            paths: dict[str, Callable[[], PredictiveDistribution]] = {
                "one pass": partial(predicted, plain, image),
                "20 dropout heads": partial(predicted, dropout, image),
                "20 augmented passes": partial(plain.predict_augmented, [image], samples=SAMPLES),
            }
            seconds: dict[str, list[float]] = {key: [] for path in paths for key in (path, f"{path}, with intervals")}
            for _ in range(rounds):
                for path, run in paths.items():
                    started = time.perf_counter()
                    found = run()
                    seconds[path].append(time.perf_counter() - started)
                    class_intervals(found)
                    seconds[f"{path}, with intervals"].append(time.perf_counter() - started)
            median = {path: statistics.median(values) for path, values in seconds.items()}
            print(f"{name}, {side} px, one image")
            for path, value in median.items():
                print(f"  {path:<36}{1000 * value:>9.2f} ms{value / median['one pass']:>8.2f} × one pass")
            document[name] = median
    if "--save" in sys.argv:
        saved = Path(__file__).parent / "results" / f"{document['date']}_ensembles.json"
        saved.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
